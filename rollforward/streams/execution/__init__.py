"""Execution: hooks over one bundle of records."""
