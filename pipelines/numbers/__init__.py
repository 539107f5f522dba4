"""Numbers everyone should know: what this stack's operations cost, measured on it."""
