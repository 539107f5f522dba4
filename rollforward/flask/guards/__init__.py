"""Checks of a request before any endpoint: its caller, its origin, the size of its texts."""
