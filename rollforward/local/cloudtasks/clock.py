"""The engine's clock: the machine's, plus the seconds added to it."""

import time
from collections.abc import Callable


class Clock:
    """A clock that can be moved forward, so that a test never waits for an ETA."""

    def __init__(self, source: Callable[[], float] = time.time, offset_s: float = 0.0) -> None:
        self.source = source
        self.offset_s = offset_s

    def now(self) -> float:
        """Return the engine's time, in seconds since 1970."""
        return self.source() + self.offset_s

    def real(self) -> float:
        """Return the time without the seconds added, as other programs see it."""
        return self.source()

    def advance(self, seconds: float) -> None:
        """Move forward.

        Raises:
            ValueError: seconds is negative; nothing here could run backwards.
        """
        if seconds < 0:
            raise ValueError(f"the clock moves forward only, not by {seconds} s")
        self.offset_s += seconds
