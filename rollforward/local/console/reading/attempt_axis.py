"""Attempts on a time axis, in lanes; only coordinates, which a template draws as SVG."""

import collections
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

WIDTH = 1000.0
MAX_LANES = 12
MAX_BARS = 600
LANE_HEIGHT = 14.0


@dataclass(frozen=True)
class Bar:
    """One attempt on the time axis."""

    x: float
    y: float
    width: float
    kind: str  # done, failed, retrying (put off), running, copy
    is_struck: bool  # By a fault.
    title: str


@dataclass(frozen=True)
class AttemptAxis:
    """From the start of the first attempt to the end of the last one, or to now."""

    begins: float
    seconds: float
    bars: list[Bar]
    height: float
    counts: dict[str, int]  # Attempts by kind.
    faults: dict[str, int]  # How often each fault struck.
    is_cut: bool

    def mark(self, share: float) -> float:
        """Return the seconds at a part of the axis."""
        return self.seconds * share


def attempt_axis(attempts: Sequence[Any], now_s: float) -> AttemptAxis | None:
    """Return the axis of some attempts, None if there are none.

    Args:
        attempts: Rows of the emulator's attempts: kind, started_at, duration_ms, status, error,
            faults.
    """
    if not attempts:
        return None
    begins = min(row["started_at"] for row in attempts)
    ends = max(row["started_at"] + _duration_ms(row, now_s) / 1000 for row in attempts)
    seconds = max(ends - begins, 0.001)
    shown = [*attempts[-MAX_BARS:]]
    bars, lanes = _bars(shown, begins, seconds, now_s)
    counts = collections.Counter(_kind(row) for row in attempts)
    faults = collections.Counter(kind for row in attempts for kind in json.loads(row["faults"]))
    return AttemptAxis(
        begins=begins,
        seconds=seconds,
        bars=bars,
        height=lanes * LANE_HEIGHT + 4,
        counts=dict(counts),
        faults=dict(faults),
        is_cut=len(attempts) > len(shown),
    )


def _bars(
    attempts: Sequence[Any], begins: float, seconds: float, now_s: float
) -> tuple[list[Bar], int]:
    """Return attempts in as few lanes as they need; what finds none shares the last one."""
    free_at: list[float] = []
    bars: list[Bar] = []
    for row in sorted(attempts, key=lambda row: row["started_at"]):
        start, took_ms = row["started_at"], _duration_ms(row, now_s)
        lane = next((i for i, free in enumerate(free_at) if free <= start), len(free_at))
        if lane == len(free_at) and lane < MAX_LANES:
            free_at.append(0.0)
        lane = min(lane, MAX_LANES - 1)
        free_at[lane] = start + took_ms / 1000
        x = max(0.0, (start - begins) / seconds * WIDTH)
        kind, faults = _kind(row), json.loads(row["faults"])
        bars.append(
            Bar(
                x=round(min(x, WIDTH - 2), 1),
                y=lane * LANE_HEIGHT + 4,
                width=round(max(2.0, took_ms / 1000 / seconds * WIDTH), 1),
                kind=kind,
                is_struck=bool(faults),
                title=", ".join(
                    [str(row["status"] or row["error"] or "runs"), f"{took_ms:.0f} ms", *faults]
                ),
            )
        )
    return bars, len(free_at)


def _duration_ms(row: Any, now_s: float) -> float:
    if row["duration_ms"] is not None:
        return float(row["duration_ms"])
    return max(0.0, now_s - row["started_at"]) * 1000


def _kind(row: Any) -> str:
    if row["kind"] in ("duplicate", "overlap"):
        return "copy"
    if row["duration_ms"] is None:
        return "running"
    if row["error"] is None and row["status"] is not None and 200 <= row["status"] <= 299:
        return "done"
    return "retrying" if row["status"] in (409, 429, 503) and row["error"] is None else "failed"
