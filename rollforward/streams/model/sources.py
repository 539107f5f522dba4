"""Sources: where the records of a stream come from, and how late they may be."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from rollforward.runtime.clients import Clients

MAX_PROCESSES = 100
IDLE = timedelta(seconds=60)


@dataclass(frozen=True)
class PushSource:
    """A stream whose records are pushed, each with an id.

    Attributes:
        stream: Its name.
        disorder: How far behind the latest record others may come in time: the watermark follows
            the latest at this distance, unless a push states one itself.
        processes: The names of those that push. The watermark is that of the slowest of them.
        idle: A process that was silent for so long, while others were heard, is left out until it
            pushes again. A pause in which nobody was heard is nobody's silence.
        advance_when_idle: When all processes were silent for `idle`, the watermark follows the
            clock at this distance, so that windows close; what comes later than that is late.
            None: it stands until somebody pushes.
        dedup: For how long the id of a record is remembered at least; a record that is pushed again
            later than that is taken for a new one.
    """

    stream: str
    disorder: timedelta = timedelta(seconds=2)
    processes: Sequence[str] = ("",)
    idle: timedelta = IDLE
    dedup: timedelta = timedelta(hours=1)
    advance_when_idle: timedelta | None = None

    def __post_init__(self) -> None:
        names = list(self.processes)
        if not 0 < len(set(names)) == len(names) <= MAX_PROCESSES:
            raise TypeError(f"{self.stream}: 1 to {MAX_PROCESSES} processes, of different names")
        if not all(re.fullmatch(r"[a-z0-9-]{0,60}", name) for name in names):
            raise TypeError(f"{self.stream}: a process has a name of a-z, 0-9 and -")
        spans = self.disorder, self.dedup, self.advance_when_idle or timedelta(0)
        if min(spans) < timedelta(0) or self.idle <= timedelta(0):
            raise TypeError(f"{self.stream}: no span of time is below zero")


@dataclass(frozen=True)
class Pulled:
    """What one read of a pull source found.

    Attributes:
        records: Values, each with its time.
        position: Where the next read begins: anything that JSON knows. If it stays, and there is
            no record, there is no more for now.
        watermark: No later record is expected before this time; None: it follows the latest record,
            at the source's `disorder`.
        is_over: There will be no more.
    """

    records: Sequence[tuple[Any, int]]
    position: Any
    watermark: int | None = None
    is_over: bool = False


@dataclass(frozen=True)
class PullSource:
    """A stream whose records are read from somewhere, from a position on.

    The position and the records are one commit: so no record needs an id, and none is read twice.
    While there is much to read, several reads become one commit.

    Attributes:
        stream: Its name.
        read: Takes the clients, the position (None: the beginning) and how many records to return
            at most. Read from one position it always finds the same, or more behind it. It returns
            what is there, and does not wait for more: what was read before may wait for it.
        disorder: As of `PushSource`.
        poll: How long a reader that found nothing waits; None: somebody calls `pull` again.
        advance_when_idle: When a reader finds nothing, and states no watermark, that follows the
            clock at this distance. It takes a `poll`. None: it stands until there is a record.
    """

    stream: str
    read: Callable[[Clients, Any, int], Pulled]
    disorder: timedelta = timedelta(seconds=2)
    poll: timedelta | None = None
    advance_when_idle: timedelta | None = None
    processes: Sequence[str] = field(default=("",), init=False)

    def __post_init__(self) -> None:
        if self.advance_when_idle is not None and self.poll is None:
            raise TypeError(f"{self.stream}: advance_when_idle takes a poll: nobody looks without")

    @property
    def idle(self) -> timedelta:
        """After so long without a read it is no measure for others (`skew`)."""
        return max(IDLE, 2 * (self.poll or timedelta(0)))


Source = PushSource | PullSource
