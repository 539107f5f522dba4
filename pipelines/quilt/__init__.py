"""Quilts: a batch of tasks of which each paints a square, and one more when all are painted."""
