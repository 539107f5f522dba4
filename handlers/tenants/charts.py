"""The picture of a rush: a strip of time for each tenant, with bars for the tasks that began."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from handlers.shared.formatting import duration, number, plural
from pipelines.tenants.progress import RushProgress, TenantLine
from pipelines.tenants.rushes import FLOODER, PER_S

BARS = 60
LEAST_PERCENT = 22.0  # Of the height: one task must be seen.
RULE_NAMES = {
    "none": "no rule of its own",
    "order": "in order",
    "limit": "at most 2 at once",
    "rate": f"{PER_S} a second",
}


@dataclass(frozen=True)
class Bar:
    """Tasks that began in a part of the time; `x` and `height` in percent."""

    x: float
    height: float
    count: int


@dataclass(frozen=True)
class Strip:
    """A tenant's line over time, and the verdict on its rule.

    Attributes:
        verdict: The rule in words, by the notes of the tasks.
        state: "done", "failed" or "waiting": whether the rule was kept.
        came_at: The place on the strip where its tasks came, in percent; None: not yet.
    """

    line: TenantLine
    bars: Sequence[Bar]
    verdict: str
    state: str
    came_at: float | None

    @property
    def done_percent(self) -> float:
        return _percent(self.line.done, self.line.asked)

    @property
    def dead_percent(self) -> float:
        return _percent(self.line.dead, self.line.asked)

    @property
    def label(self) -> str:
        """All of it in a sentence, for screen readers."""
        line = self.line
        waited = "none started" if line.waited_s is None else f"first after {when(line)}"
        return (
            f"Tenant {line.tenant}: {number(line.done)} of {plural(line.asked, 'task')} done, "
            f"{waited}, {self.verdict}."
        )


def when(line: TenantLine) -> str:
    """Return how long a tenant waited for its first task, in words."""
    return duration(line.waited_s) if line.waited_s is not None else "–"


def strips_of(rush: RushProgress, length_s: float) -> list[Strip]:
    """Return a strip for each tenant, on one axis of time."""
    return [_strip(rush, line, max(length_s, 0.1)) for line in rush.lines]


def _strip(rush: RushProgress, line: TenantLine, length_s: float) -> Strip:
    counts = Counter(min(BARS - 1, int(BARS * began / length_s)) for began in line.begins)
    highest = max(counts.values(), default=1)
    bars = [
        Bar(round(100 * place / BARS, 2), _height(count, highest), count)
        for place, count in sorted(counts.items())
    ]
    verdict, state = _verdict(rush, line)
    came_at = None
    if line.came_s is not None and line.tenant != FLOODER:
        came_at = round(min(100.0, 100 * line.came_s / length_s), 2)
    return Strip(line, bars, verdict, state, came_at)


def _height(count: int, highest: int) -> float:
    """Return the height of a bar: by a root, so that a single task is visible."""
    return round(max(LEAST_PERCENT, 100 * math.sqrt(count / highest)), 1)


def _verdict(rush: RushProgress, line: TenantLine) -> tuple[str, str]:
    """Return the verdict on a tenant's rule, by the notes of its tasks, and its state."""
    if not line.done:
        return f"{RULE_NAMES[line.rule]}: no task done yet", "waiting"
    if line.rule == "none":
        return f"peak concurrency {line.at_a_time}", "waiting"
    if line.rule == "order":
        broken = line.out_of_order
        words = "in order" if not broken else f"{plural(broken, 'task')} out of order"
        return words, _kept(not broken)
    if line.rule == "limit":
        return f"peak concurrency {line.at_a_time}, limit 2", _kept(line.at_a_time <= 2)
    if line.per_s is None:
        return f"limit {PER_S} per second: too few tasks to judge", "waiting"
    return f"{line.per_s:.1f} per second, limit {PER_S}", _kept(line.per_s <= 1.05 * PER_S)


def _kept(is_kept: bool) -> str:
    return "done" if is_kept else "failed"


def _percent(part: int, total: int) -> float:
    return round(100 * part / max(1, total), 2)
