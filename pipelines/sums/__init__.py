"""Sums: many writers add to one row, and accepted items equal folded items.

Pattern: a fork-join queue, which folds each batch of items in one transaction.
Seed: B. Slatkin, "Building high-throughput data pipelines on Google App Engine", Google I/O 2010.
"""
