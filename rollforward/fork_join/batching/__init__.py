"""Batching: which batch is open, and which shape the next ones have."""
