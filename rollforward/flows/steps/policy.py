"""Policies of retries: the number of attempts, and the pauses between them."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

# Of a policy without a bound of its own, such as infinity: a later time would have no date.
LONGEST_S = 366 * 24 * 3600.0


@dataclass(frozen=True)
class RetryPolicy:
    """Retries of a step.

    RetryPolicy(attempts=None, longest_s=60, until=noon)

    Attributes:
        attempts: How often it may fail; None: any number of times.
        first_s: Seconds before the second attempt.
        factor: Each pause is longer than the last one by this factor.
        longest_s: No pause is longer, in seconds, nor is any than a year.
        until: An aware time after which a failure is the last one; None: there is none.
    """

    attempts: int | None = 10
    first_s: float = 1.0
    factor: float = 2.0
    longest_s: float = 600.0
    until: datetime.datetime | None = None

    def __post_init__(self) -> None:
        if self.attempts is not None and self.attempts < 1:
            raise ValueError(f"attempts must be at least 1, got {self.attempts}")
        if not 0 <= self.first_s <= self.longest_s or not self.factor >= 1:
            raise ValueError(
                f"first_s must be 0 to longest_s, and factor at least 1, got {self.first_s}, "
                f"{self.longest_s} and {self.factor}"
            )
        if self.until is not None and self.until.tzinfo is None:
            raise ValueError(f"until must be an aware time, got {self.until}")

    def pause_s(self, failures: int) -> float:
        """Return the seconds to wait after a number of failures, at least one.

        >>> [RetryPolicy().pause_s(failures) for failures in (1, 2, 5, 30)]
        [1.0, 2.0, 16.0, 600.0]
        """
        longest_s = min(self.longest_s, LONGEST_S)
        try:
            return float(min(longest_s, self.first_s * self.factor ** (failures - 1)))
        except OverflowError:
            return longest_s

    def is_over(self, failures: int, now_utc: datetime.datetime) -> bool:
        """Return whether there is no further attempt after a number of failures."""
        is_late = self.until is not None and now_utc >= self.until
        return is_late or (self.attempts is not None and failures >= self.attempts)
