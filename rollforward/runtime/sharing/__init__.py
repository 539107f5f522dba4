"""Commits that callers of a process share."""
