"""Benchmark of flows: the cost of a step, and flows a second against DBOS."""
