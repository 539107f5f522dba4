"""Sums: many writers, one row, and books that add up."""
