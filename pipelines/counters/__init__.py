"""Counters: one count under many writers, kept in four ways.

Pattern: sharded counters, beside one row, a fork-join queue, and sums in memory.
Seed: B. Slatkin, "Building scalable web apps with Google App Engine", Google I/O 2008.
"""
