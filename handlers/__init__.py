"""HTTP in, one call of a demo or a pattern, HTTP out. Nothing is imported here, no demo either."""
