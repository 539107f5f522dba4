"""Measurements: `make bench` runs those of __main__, and some are commands of their own.

A folder a subject, with `benchmark` (what is measured) and `app` (what is measured on). On top are
subjects of one file, and `python -m benchmarks.emulators` and its like; `harness` serves them all.
"""
