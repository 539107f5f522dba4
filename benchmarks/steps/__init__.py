"""Benchmark of flows: what a step costs, and flows a second against DBOS."""
