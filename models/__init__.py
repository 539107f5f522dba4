"""The entities of the demo app."""
