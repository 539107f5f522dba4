"""Schedules in which pushes offer their commits to workers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

LINGER_S = (0.02, 0.02, 0.02)  # A worker that has left takes no offers.


def join_pushes(schedule: Any) -> Any:
    """Let the pushes of a schedule join the commits of workers; return the schedule."""
    simulation = schedule.simulation
    simulation.joining.is_on = True
    simulation.config = replace(simulation.config, linger=LINGER_S)
    return schedule
