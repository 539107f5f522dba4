"""A post office with lanes, version 1."""

from __future__ import annotations

from collections.abc import Sequence

from flask import Flask

from rollforward.lanes import Call, Lane, Rate, debounced, hints, sweep
from rollforward.lanes.runs import claims, ends
from tests.process import lane_work
from tests.process.lane_work import Piece, job, run_window

LETTERS = Lane("office-letters", order=True)
PARCELS = Lane("office-parcels", limit=4)
STAMPS = Lane("office-stamps", limit=2)
BILLS = Lane("office-bills", rate=Rate(200))


@debounced("office-digest", wait_s=0.3)
def digest(key: str, calls: Sequence[Call[Piece]]) -> None:
    """Do all jobs of a window."""
    run_window("office-digest", key, calls)


def shorten_waits() -> None:
    """Let a test wait for seconds, where people have half a minute."""
    sweep.STALE_S = sweep.SWEPT_FOR_S = 3.0
    hints.MARK_S = 3
    claims.LEASE_S = 8
    ends.VERSION_PAUSE_S = 1.0


def serve() -> Flask:
    shorten_waits()
    return lane_work.serve([LETTERS, PARCELS, STAMPS, BILLS, digest], job)
