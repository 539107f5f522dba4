"""Backoff of a sweep: it wakes a row that keeps waiting less and less often, then once an hour.

| age of the row | woken | step | task number |
|---|---|---:|---:|
| below `stale_s` | not yet: its own process does | 0 | 0 |
| to 10 minutes | by every sweep | 0 | 0 |
| from 10 minutes | once | 1 | 1 |
| from 20 minutes | once | 2 | 1 |
| from 40 minutes | once | 3 | 1 |
| from 1, 2, 3 ... hours | once in each | 4, 5, 6 ... | 2, 3, 4 ... |
"""

from __future__ import annotations

from dataclasses import dataclass

from rollforward.runtime.clock import CLOCK_SKEW_S

PATIENT_AFTER_S = 600.0
HOUR_S = 3600.0


@dataclass(frozen=True)
class Backoff:
    """The wakes of one row, by its age."""

    stale_s: float

    def is_due(self, age_s: float, age_before_s: float | None) -> bool:
        """Return whether this sweep must wake a row.

        >>> minutes = [0, 0.5, 9, 10, 11, 19, 20, 21, 40, 41, 60, 61, 120]
        >>> [at for at in minutes if Backoff(15).is_due(at * 60, (at - 1) * 60)]
        [0.5, 9, 10, 20, 40, 60, 120]

        A row that became due while no sweep ran is due in the next one:

        >>> Backoff(15).is_due(25 * 60, 15 * 60), Backoff(15).is_due(25 * 60, None)
        (True, True)

        Args:
            age_s: Below zero the row is from a wrong clock, so it is due.
            age_before_s: The row's age when the last sweep began; None: there was none.
        """
        if age_s < -CLOCK_SKEW_S:
            return True
        if age_s < PATIENT_AFTER_S:
            return age_s >= self.stale_s
        return age_before_s is None or self.step(age_s) > self.step(age_before_s)

    @staticmethod
    def step(age_s: float) -> int:
        """Return the number of wakes that a row was due since it was ten minutes old.

        >>> [Backoff.step(m * 60) for m in (9, 10, 19, 20, 40, 59, 60, 119, 120, 1440)]
        [0, 1, 1, 2, 3, 3, 4, 4, 5, 27]
        """
        if age_s < 0:
            return 0
        doublings = int(min(age_s, HOUR_S - 1) / PATIENT_AFTER_S).bit_length()
        return doublings + int(age_s / HOUR_S)

    @staticmethod
    def task_number(age_s: float) -> int:
        """Return the number of a row's task, if each task has a name of its own.

        It changes rarely, so that a slow queue is not flooded:

        >>> [Backoff.task_number(m * 60) for m in (0, 9, 10, 40, 59, 60, 119, 120)]
        [0, 0, 1, 1, 1, 2, 2, 3]
        """
        return int(age_s // HOUR_S) + 1 if age_s >= PATIENT_AFTER_S else 0
