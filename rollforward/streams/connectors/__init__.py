"""Connectors: readers of pull sources, and sinks."""
