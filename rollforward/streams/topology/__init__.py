"""Topology: computations are attached, replaced and detached while a pipeline runs."""
