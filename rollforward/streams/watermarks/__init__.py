"""Watermarks: a cut through all rows, and what follows from it."""
