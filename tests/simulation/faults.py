"""Faults of a schedule: at which remote call, counted over all processes, and of which kind.

    error:CODE         the call fails, and has no effect
    reply-lost:CODE    it has its effect, and the caller sees an error
    crash-before, crash-after: the process dies around it
    pause-before:S, pause-after:S: its caller sleeps so long around it; others go on
    flush              memcached is emptied
    purge              all queues are purged by hand
    double:S           the delivery that makes the call is delivered once more, S seconds later
    clock:S            the clock of the process that makes the call is wrong by S seconds

A text has them, and a failure prints it: "17 reply-lost:UNAVAILABLE, 203 purge".
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from rollforward.testing.injection import (
    CRASH_AFTER,
    CRASH_BEFORE,
    ERROR,
    FAILURES,
    FLUSH,
    REPLY_LOST,
    UNKNOWN_OUTCOMES,
)

PAUSE_BEFORE, PAUSE_AFTER = "pause-before", "pause-after"
PURGE, DOUBLE, CLOCK = "purge", "double", "clock"
# Around what an advisory lock, a lease, a transaction and a delivery may last.
PAUSES_S = (1, 8, 45, 100, 320, 700)
DOUBLED_AFTER_S = (0, 0, 2, 70, 3_700)
WRONG_BY_S = (-150, -40, -5, 5, 40, 150)


class Fault(NamedTuple):
    """A fault at a call."""

    at: int
    kind: str

    def __str__(self) -> str:
        return f"{self.at} {self.kind}"


def drawn(chance: random.Random, calls: int, most: int) -> list[Fault]:
    """Draw some faults at the calls of a schedule, at most one at each."""
    count = chance.randrange(1, most + 1)
    return [Fault(at, _kind(chance)) for at in sorted(chance.sample(range(calls), count))]


def _kind(chance: random.Random) -> str:
    match chance.choice(KINDS):
        case "error":
            return f"{ERROR}:{chance.choice(FAILURES).name}"
        case "reply-lost":
            return f"{REPLY_LOST}:{chance.choice(UNKNOWN_OUTCOMES).name}"
        case "pause-before" | "pause-after" as pause:
            return f"{pause}:{chance.choice(PAUSES_S)}"
        case "double":
            return f"{DOUBLE}:{chance.choice(DOUBLED_AFTER_S)}"
        case "clock":
            return f"{CLOCK}:{chance.choice(WRONG_BY_S)}"
        case kind:
            return kind


KINDS = (
    *(ERROR, REPLY_LOST, REPLY_LOST, CRASH_BEFORE, CRASH_AFTER, PAUSE_BEFORE, PAUSE_AFTER),
    *(FLUSH, PURGE, DOUBLE, CLOCK),
)


def written(faults: Sequence[Fault]) -> str:
    """Return faults as a text."""
    return ", ".join(map(str, faults))


def parsed(text: str) -> list[Fault]:
    """Return the faults of a text.

    >>> parsed("17 reply-lost:UNAVAILABLE, 203 purge")
    [Fault(at=17, kind='reply-lost:UNAVAILABLE'), Fault(at=203, kind='purge')]
    """
    parts = (part.split() for part in text.split(",") if part.strip())
    return [Fault(int(at), kind) for at, kind in parts]
