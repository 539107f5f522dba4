"""The rate of a key: how many tasks may begin now, and when the next one may.

The generic cell rate algorithm (GCRA): each key has a theoretical arrival time of its next task,
which each task moves on by one interval. A task may begin early by as much as a burst takes. So in
any t seconds at most `burst + t * rate` tasks of a key are claimed, by one clock. Each of them
begins within the turn of its delivery, or goes back.

A clock that is ahead moves the arrival time ahead: others wait until then, up to a minute. An
arrival time that is further ahead is of a wrong clock, or of a rate that the lane had before. Then
one task may begin, and the time starts from now.
"""

from __future__ import annotations

import datetime
import math
from dataclasses import dataclass

from rollforward.runtime.clock import CLOCK_SKEW_S

MAX_INTERVAL_S = 366 * 24 * 3600


@dataclass(frozen=True)
class Rate:
    """A number of tasks in a number of seconds: `rf.lanes.Rate(10)`, `Rate(1, per_s=60)`.

    At least one task in 366 days.

    Attributes:
        burst: How many may begin at once after a rest; None: as many as in one second, at least 1.
    """

    tasks: float
    per_s: float = 1.0
    burst: int | None = None

    def __post_init__(self) -> None:
        is_some = 0 < self.tasks < math.inf and 0 < self.per_s < math.inf
        if not is_some or not 0 < self.interval_ms <= 1000 * MAX_INTERVAL_S:
            raise ValueError(
                "a rate must be some tasks in some seconds, and one in 366 days at least, "
                f"got {self.tasks} in {self.per_s}"
            )
        if self.burst is not None and self.burst < 1:
            raise ValueError(f"burst must be at least 1, got {self.burst}")

    @property
    def interval_ms(self) -> float:
        """The time from one task to the next."""
        return 1000 * self.per_s / self.tasks

    @property
    def most_at_once(self) -> int:
        """The number of tasks that may begin together after a pause."""
        return self.burst if self.burst is not None else max(1, int(self.tasks / self.per_s))

    def allowed(self, arrival_ms: int, now_ms: int) -> int:
        """Return how many tasks may begin now.

        >>> Rate(10, burst=3).allowed(0, 1_000), Rate(10, burst=3).allowed(1_150, 1_000)
        (3, 1)
        """
        early_ms = self.interval_ms * self.most_at_once
        start_ms = max(now_ms, self._valid(arrival_ms, now_ms))
        return max(0, int((now_ms + early_ms - start_ms) / self.interval_ms + 1e-6))

    def moved(self, arrival_ms: int, now_ms: int, tasks: int) -> int:
        """Return the arrival time after some tasks have begun."""
        return round(max(now_ms, self._valid(arrival_ms, now_ms)) + tasks * self.interval_ms)

    def given_back(self, arrival_ms: int, tasks: int) -> int:
        """Return the arrival time when some tasks have not begun after all."""
        return round(arrival_ms - tasks * self.interval_ms)

    def next_at(self, arrival_ms: int, now_ms: int) -> datetime.datetime:
        """Return when the next task may begin, aware."""
        early_ms = self.interval_ms * (self.most_at_once - 1)
        due_ms = max(now_ms, self._valid(arrival_ms, now_ms) - early_ms)
        return datetime.datetime.fromtimestamp(due_ms / 1000, datetime.UTC)

    def _valid(self, arrival_ms: int, now_ms: int) -> int:
        """Return an arrival time that clocks a minute apart, and this rate, can give."""
        early_ms = self.interval_ms * self.most_at_once
        if arrival_ms <= now_ms + early_ms + 1000 * CLOCK_SKEW_S:
            return arrival_ms
        return round(now_ms + early_ms - self.interval_ms)
