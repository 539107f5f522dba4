"""Pipelines and schedules that the simulator plays."""
