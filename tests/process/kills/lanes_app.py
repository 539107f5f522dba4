"""An app whose lanes have an order, a limit, a rate and windows: its workers are killed by a test.

Hints that a worker takes with it into its grave are found by the sweep, here after three seconds
and not after thirty, so that a test need not wait.
"""

from __future__ import annotations

from collections.abc import Sequence

from flask import Flask

from rollforward.lanes import Call, Lane, Rate, debounced, hints, sweep
from tests.process import lane_work
from tests.process.lane_work import Piece, job, quick_job, run_window

QUEUE = "fan-out"  # It has sixteen deliveries at a time.
RATE = Rate(10, burst=2)

IN_ORDER = Lane("killed-order", queue=QUEUE, order=True)
FOUR = Lane("killed-four", queue=QUEUE, limit=4)
PACED = Lane("killed-paced", queue=QUEUE, rate=RATE)

QUICK = Lane("killed-quick", queue=QUEUE, order=True)


@debounced("killed-digest", wait_s=0.5, max_s=2.0, queue=QUEUE)
def digest(key: str, calls: Sequence[Call[Piece]]) -> None:
    """Do all jobs of a window."""
    run_window("killed-digest", key, calls)


def serve() -> Flask:
    sweep.STALE_S = sweep.SWEPT_FOR_S = 3.0
    hints.MARK_S = 3
    lanes = [IN_ORDER, FOUR, PACED, QUICK, digest]
    return lane_work.serve(lanes, job, quick_job, quick=QUICK.name)
