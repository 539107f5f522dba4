"""Operators: computations that are ready to be used."""
