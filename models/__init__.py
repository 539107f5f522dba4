"""The entities of the demos."""
