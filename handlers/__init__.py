"""The HTTP of the demo app: one call of a pipeline in, one page out. Nothing is imported here."""
