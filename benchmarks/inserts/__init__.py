"""Inserts over HTTP: lone ones, with and without keys, and batches."""
