"""Grades: a chart of students by grade that costs one read a bar.

Pattern: materialized views, ranked and joined; continuations import lists of students.
Seed: B. Slatkin, "Building high-throughput data pipelines on Google App Engine", Google I/O 2010.
"""
