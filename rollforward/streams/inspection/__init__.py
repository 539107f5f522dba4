"""Inspection: states, status and dead letters, read at any time."""
