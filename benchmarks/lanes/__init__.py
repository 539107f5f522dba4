"""Benchmark of lanes: what a task costs, its rate, and fairness under a flood."""
