"""Rows of flows: what each says of its steps, values and events."""
