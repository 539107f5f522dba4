"""Benchmark of inserts over HTTP: single ones, with and without keys, and batches."""
