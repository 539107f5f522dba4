"""A post office with lanes, version 2. What has changed since version 1, in one deployment:

LETTERS             turns four times as long, and tasks that only this version knows
PARCELS             one at a time, and not four
STAMPS              in an order, and not two at a time
BILLS               a rate that is ten times slower
digest              a longer wait, and calls with one more field
NEWS                a new lane
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flask import Flask

from rollforward.lanes import Call, Lane, Rate, debounced
from rollforward.tasks import task
from tests.process import lane_work
from tests.process.lane_work import do, job, run_window
from tests.process.versions.first_office import shorten_waits

RATE = Rate(20, burst=1)

LETTERS = Lane("office-letters", order=True, weight=4)
PARCELS = Lane("office-parcels", limit=1)
STAMPS = Lane("office-stamps", order=True)
BILLS = Lane("office-bills", rate=RATE)
NEWS = Lane("office-news", order=True)


@dataclass(frozen=True)
class ColouredPiece:
    """The arguments of a call that is gathered."""

    number: int
    colour: str = "red"


@debounced("office-digest", wait_s=0.6, max_s=2)
def digest(key: str, calls: Sequence[Call[ColouredPiece]]) -> None:
    """Do all jobs of a window."""
    run_window("office-digest", key, calls)


@task("/tasks/tests/coloured-job", queue="default")
def coloured_job(lane: str, key: str, number: int) -> None:
    """Do a job."""
    do(lane, key, f"{number:06}", [number])


def serve() -> Flask:
    shorten_waits()
    lanes = [LETTERS, PARCELS, STAMPS, BILLS, digest, NEWS]
    return lane_work.serve(lanes, coloured_job, job, piece=ColouredPiece)
