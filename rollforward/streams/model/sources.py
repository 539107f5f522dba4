"""Sources: the entry of a stream's records, and their allowed disorder in event time."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar

from rollforward.runtime.clients import Clients
from rollforward.streams.model.codecs import ValueCodec
from rollforward.streams.model.records import check_watermark

MAX_PROCESSES = 100
IDLE = timedelta(seconds=60)
MAX_POLL = timedelta(days=29)  # A task is due within 30 days.


@dataclass(frozen=True)
class PushSource:
    """A stream whose records are pushed, each with an id.

    Attributes:
        stream: Its name.
        disorder: How far a record may be behind the latest one and still be on time. The watermark
            follows the latest record at this distance, unless a push states a watermark.
        processes: The names of the pushing processes. The slowest one determines the watermark.
        idle: A process without a push for so long, while others did push, is ignored until it
            pushes again. A pause of all processes does not count.
        advance_when_idle: If all processes are idle, the watermark follows the clock at this
            distance, so that windows close. Records behind it are late. None: it stays until the
            next push.
        dedup: The minimum time for which the id of a record is remembered. A record that is pushed
            again later counts as a new one.
    """

    stream: str
    disorder: timedelta = timedelta(seconds=2)
    processes: Sequence[str] = ("",)
    idle: timedelta = IDLE
    dedup: timedelta = timedelta(hours=1)
    advance_when_idle: timedelta | None = None
    codecs: ClassVar[Sequence[ValueCodec]] = ()

    def __post_init__(self) -> None:
        if isinstance(self.processes, str):  # Each of its letters would be a process.
            raise TypeError(f"{self.stream}: `processes` must be names, got {self.processes!r}")
        _check_names(self.stream, "processes", list(self.processes))
        advance = self.advance_when_idle or timedelta(0)
        _check_spans(self.stream, self.disorder, self.dedup, advance)
        if self.idle <= timedelta(0):
            raise TypeError(f"{self.stream}: `idle` must be positive, got {self.idle}")


def _check_spans(stream: str, *spans: timedelta) -> None:
    for span in spans:
        if not isinstance(span, timedelta) or span < timedelta(0):
            raise TypeError(f"{stream}: a span must be a timedelta, 0 or longer, got {span!r:.100}")


def _check_names(stream: str, option: str, names: Sequence[str]) -> None:
    """Check the names of processes.

    Raises:
        TypeError: they are too many, none, or invalid.
    """
    if not 0 < len(set(names)) == len(names) <= MAX_PROCESSES:
        raise TypeError(
            f"{stream}: `{option}` must be 1 to {MAX_PROCESSES} different names, got {len(names)}"
        )
    if not all(re.fullmatch(r"[a-z0-9-]{0,60}", name) for name in names):
        raise TypeError(f"{stream}: a name in `{option}` must consist of a-z, 0-9 and -")


@dataclass(frozen=True)
class UnreadableItem:
    """An item of a source that is no record: a dead letter of each reader of the stream.

    Attributes:
        item: What to look for at the source, as text.
        error: Why it is none.
    """

    item: str
    error: str


@dataclass(frozen=True)
class Pulled:
    """Result of one read of a pull source.

    Attributes:
        records: Values, each with its event time; or an `UnreadableItem`.
        position: The start of the next read: any JSON value. If it is unchanged and there is no
            record, the reader has caught up for now.
        watermark: Records before this time are no longer expected. None: the watermark follows the
            latest record, at the source's `disorder`.
        is_over: The stream has ended.

    Raises:
        BadRecordError: the watermark is no time in whole milliseconds.
    """

    records: Sequence[tuple[Any, int] | UnreadableItem]
    position: Any
    watermark: int | None = None
    is_over: bool = False

    def __post_init__(self) -> None:
        if self.watermark is not None:
            check_watermark(max(self.watermark, 0))


# Reads records from a position on.
Reader = Callable[[Clients, Any, int], Pulled]


@dataclass(frozen=True)
class PullSource:
    """A stream whose records are read from a position on, as from a log.

    The position commits together with the records, so records need no ids and none is read twice.
    Under a backlog, several reads share one commit.

    A stream may have partitions, for example one for each of several logs:

        PullSource("requests", {"web-1": lines(...), "web-2": lines(...)})

    Each has a position and a watermark of its own, and several workers read them at the same time.
    The slowest partition that has not ended determines the watermark. One that is removed from the
    code is ignored when nobody has read it for a minute, and one that is added starts late: its
    records behind the stream's watermark are late.

    Attributes:
        stream: Its name.
        read: A function of the clients, the position (None: the beginning) and the maximum number
            of records; or, by name, one for each of 1 to 100 partitions. Reads from one position
            must be repeatable: the same records, or more after them. It must not wait for more,
            because earlier reads may wait for it to commit.
        disorder: See `PushSource`.
        poll: The pause of a reader that has caught up, at most 29 days. None: it stops until `pull`
            is called.
        advance_when_idle: If a read returns neither records nor a watermark, the watermark follows
            the clock at this distance. It requires `poll`. None: it stays until the next record.
    """

    stream: str
    read: Reader | Mapping[str, Reader]
    disorder: timedelta = timedelta(seconds=2)
    poll: timedelta | None = None
    advance_when_idle: timedelta | None = None
    processes: Sequence[str] = field(default=("",), init=False)
    # Those that its values have before this pipeline reads them.
    codecs: ClassVar[Sequence[ValueCodec]] = ()

    def __post_init__(self) -> None:
        if self.advance_when_idle is not None and self.poll is None:
            raise TypeError(f"{self.stream}: advance_when_idle requires a poll")
        if self.poll is not None and self.poll <= timedelta(0):
            raise TypeError(
                f"{self.stream}: `poll` must be positive, or None to stop at the end, got "
                f"{self.poll}"
            )
        if self.poll is not None and self.poll > MAX_POLL:
            raise TypeError(f"{self.stream}: `poll` must be at most {MAX_POLL}, got {self.poll}")
        _check_spans(self.stream, self.disorder, self.advance_when_idle or timedelta(0))
        if isinstance(self.read, Mapping):
            _check_names(self.stream, "read", [name or "?" for name in self.read])
            object.__setattr__(self, "processes", tuple(self.read))

    @property
    def is_partitioned(self) -> bool:
        """Whether it has readers by name."""
        return isinstance(self.read, Mapping)

    def reader(self, partition: str) -> Reader:
        """Return the function that reads a partition; "": the only one."""
        return self.read[partition] if isinstance(self.read, Mapping) else self.read

    @property
    def idle(self) -> timedelta:
        """The time without a read after which it no longer limits others (`max_drift`).

        Of partitions only those count that this code does not have.
        """
        return max(IDLE, 2 * (self.poll or timedelta(0)))


Source = PushSource | PullSource
