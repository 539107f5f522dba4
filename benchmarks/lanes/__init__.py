"""Benchmark of lanes: the cost and the rate of tasks, and fairness under a flood."""
