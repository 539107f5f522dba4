"""Windows: results over stretches of time, or over numbers of records, of each key.

    HITS = Windowed(
        "hits-per-minute",
        Tumbling(timedelta(minutes=1)),
        inputs={"requests": lambda request: request["path"]},
        output="hits",
    )

A result says which window it is of:

    {"key": "/", "start": 0, "end": 60000, "pane": "on-time", "records": 2, "value": 2}

It is written when the watermark has reached the window's end, with that time. `early` and
`lateness` add results before and after that one, each with everything the window has had until
then: "early", "on-time" and "late" in `pane`. A record that is in no open window any more counts as
late, and goes to the `late_stream`.

Sources: T. Akidau and others, "The Dataflow Model", 2015 (windows, panes, lateness); sessions merge
as in Apache Flink.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple, Protocol

from rollforward.streams.model.computation import Computation, KeyOf
from rollforward.streams.model.context import Context
from rollforward.streams.model.errors import BadRecordError
from rollforward.streams.model.records import Record, Timer
from rollforward.streams.model.state import MapCell
from rollforward.streams.operators.aggregates import Combine, count

# In how many windows one record may be.
MAX_OVERLAP = 100
_WINDOWS = "windows"
_END, _EARLY = "end:", "early:"


class Bounds(NamedTuple):
    """A window: from `start`, before `end`; its result is due when the watermark is at `due`."""

    start: int
    end: int
    due: int


class Windows(Protocol):
    """Which windows a record is in."""

    @property
    def merges(self) -> bool:
        """Whether windows of one key that overlap become one."""
        ...

    def assign(self, record: Record) -> Sequence[Bounds]: ...


@dataclass(frozen=True)
class Tumbling:
    """Windows of one size, one after the other, from 1970 on in UTC."""

    size: timedelta
    merges = False

    def __post_init__(self) -> None:
        _check_span("size", self.size)

    def assign(self, record: Record) -> Sequence[Bounds]:
        size = self._size_ms
        start = record.timestamp_ms // size * size
        return [Bounds(start, start + size, start + size)]

    @functools.cached_property
    def _size_ms(self) -> int:
        return milliseconds(self.size)


@dataclass(frozen=True)
class Sliding:
    """Windows of one size, of which one begins `every` so often: a record is in several."""

    size: timedelta
    every: timedelta
    merges = False

    def __post_init__(self) -> None:
        _check_span("every", self.every)
        if not self.every <= self.size <= self.every * MAX_OVERLAP:
            raise TypeError(f"`size` is 1 to {MAX_OVERLAP} times `every`")

    def assign(self, record: Record) -> Sequence[Bounds]:
        size, every = milliseconds(self.size), milliseconds(self.every)
        last = record.timestamp_ms // every * every
        return [
            Bounds(start, start + size, start + size)
            for start in range(last, record.timestamp_ms - size, -every)
        ]


@dataclass(frozen=True)
class Session:
    """A window from a key's first record until it has had none for a `gap`.

    A record between two sessions may make them one. The result of a session replaces those that
    were written before within its bounds.
    """

    gap: timedelta
    merges = True

    def __post_init__(self) -> None:
        _check_span("gap", self.gap)

    def assign(self, record: Record) -> Sequence[Bounds]:
        end = record.timestamp_ms + milliseconds(self.gap)
        return [Bounds(record.timestamp_ms, end, end)]


@dataclass(frozen=True)
class Enclosing:
    """For results of other windows: the tumbling windows of a larger size that these lie in.

    The result of a window has the time of its end, which is in the next window already; so it is
    counted by its bounds. Only results "on-time" can be counted: others repeat what they replace.

    Attributes:
        size: A multiple of theirs; None: the same windows.
    """

    size: timedelta | None = None
    merges = False

    def __post_init__(self) -> None:
        if self.size is not None:
            _check_span("size", self.size)

    def assign(self, record: Record) -> Sequence[Bounds]:
        """Return the window around a result.

        Raises:
            BadRecordError: this is no result that can be counted.
        """
        start, end, pane = (record.value[each] for each in ("start", "end", "pane"))
        if pane != "on-time":
            raise BadRecordError(f"the result of {start} to {end} is {pane}: it cannot be added up")
        delay = (
            record.timestamp_ms - end + 1
        )  # So much later than a window's end its last result is here.
        if self.size is not None:
            size = milliseconds(self.size)
            start = start // size * size
            if end > start + size:
                raise BadRecordError(f"no window of {size} ms encloses {record.value['start']:d}")
            end = start + size
        return [Bounds(start, end, end + delay)]


class Windowed(Computation):
    """A result for each window of each key."""

    def __init__(
        self,
        name: str,
        windows: Windows,
        *,
        inputs: Mapping[str, KeyOf],
        output: str,
        combine: Combine | None = None,
        lateness: timedelta = timedelta(0),
        early: timedelta | None = None,
        late_stream: str | None = None,
    ) -> None:
        """Declare a computation.

        Args:
            windows: `Tumbling`, `Sliding`, `Session` or `Enclosing`.
            inputs: The streams that it reads, each with its key.
            output: The stream of the results.
            combine: What a window makes of its records; by default it counts them.
            lateness: For how long after its end (by the watermark) a window still takes late
                records. For each of them it writes a result again, at once.
            early: A window that has changed also writes what it has so far whenever the watermark
                passes a multiple of this, before its end.
            late_stream: Gets the records that came too late for every window.

        Raises:
            TypeError: a span of time is not what it can be.
        """
        self.name = name
        self.windows = windows
        self.inputs = dict(inputs)
        self.outputs = (output,)
        self.output = output
        self.combine = combine or count()
        self.lateness = milliseconds(lateness)
        self.early = None if early is None else milliseconds(early)
        self.late_stream = late_stream
        if self.lateness < 0 or (self.early is not None and self.early < 1):
            raise TypeError(f"{name}: `lateness` is not below zero, and `early` is above it")

    def record(self, ctx: Context, record: Record) -> None:
        kept, is_counted = ctx.state.map(_WINDOWS), False
        for bounds in self.windows.assign(record):
            is_counted |= self._add(ctx, kept, record, bounds)
        if not is_counted:
            ctx.drop_late()

    def timer(self, ctx: Context, timer: Timer) -> None:
        kept, tag = ctx.state.map(_WINDOWS), timer.tag.partition(":")[2]
        window = kept.get(tag)
        if window is None:
            return
        if timer.tag.startswith(_EARLY):
            del window["early"]
            if ctx.watermark < window["due"]:
                self.write(ctx, window, "early", timer.at_ms)
            return
        if timer.at_ms == window["due"]:
            self.write(ctx, window, "on-time", timer.at_ms)
            if self.lateness:
                ctx.set_timer(timer.tag, timer.at_ms + self.lateness)
                return
        kept.pop(tag)

    def write(self, ctx: Context, window: Mapping[str, Any], pane: str, at: int) -> None:
        """Write the result of a window."""
        value = self.combine.result(window["total"])
        bounds = {"key": ctx.key, "start": window["start"], "end": window["end"]}
        result = {**bounds, "pane": pane, "records": window["records"], "value": value}
        ctx.produce(self.output, result, at)

    def _add(self, ctx: Context, kept: MapCell, record: Record, bounds: Bounds) -> bool:
        """Add a record to a window; return False if that is closed."""
        touched, watermark = self._touched(kept, bounds), ctx.watermark
        due = bounds.due
        for _, window in touched:
            if window["due"] > due:
                due = window["due"]
        if due + self.lateness <= watermark:
            return False
        tag, window = self._joined(ctx, kept, touched, bounds)
        window["records"] += 1
        window["total"] = self.combine.add(window["total"], record)
        if due <= watermark:
            self.write(ctx, window, "late", due)
            ctx.set_timer(_END + tag, due + self.lateness)
        else:
            ctx.set_timer(_END + tag, due)
            if self.early is not None:
                self._set_early(ctx, tag, window, self.early)
        return True

    def _touched(self, kept: MapCell, bounds: Bounds) -> list[tuple[str, dict[str, Any]]]:
        """Return the windows that are there and to which a new one belongs, the earliest first."""
        if not self.windows.merges:
            tag = str(bounds.start)
            window = kept.get(tag)
            return [] if window is None else [(tag, window)]
        found = [
            (tag, window)
            for tag, window in kept.items()
            if window["start"] < bounds.end and bounds.start < window["end"]
        ]
        return sorted(found, key=lambda item: int(item[1]["start"]))

    def _joined(
        self,
        ctx: Context,
        kept: MapCell,
        touched: Sequence[tuple[str, dict[str, Any]]],
        bounds: Bounds,
    ) -> tuple[str, dict[str, Any]]:
        """Make one window of a new one and those that it touches; return it, as kept, with its tag.

        It keeps the tag, and so the timer, of the last one: that of a window with records in time
        stays in time, also if a late record joins it to others.
        """
        start, end, due = bounds
        if not touched:
            empty = {"records": 0, "total": self.combine.empty()}
            tag, window = str(start), {"start": start, "end": end, "due": due, **empty}
            kept.set(tag, window)
            return tag, window
        if not self.windows.merges:
            tag, window = touched[0]
            window["due"] = max(due, window["due"])
            return tag, window
        (_, first), (tag, last) = touched[0], touched[-1]
        window, total = dict(last), first["total"]
        for _, each in touched[1:]:
            total = self.combine.merge(total, each["total"])
        for other, _ in touched[:-1]:
            kept.pop(other)
            ctx.cancel_timer(_END + other)
            ctx.cancel_timer(_EARLY + other)
        window["total"], window["start"] = total, min(start, first["start"])
        window["records"] = sum(each["records"] for _, each in touched)
        window["end"], window["due"] = max(end, last["end"]), max(due, last["due"])
        kept.set(tag, window)
        return tag, window

    def _set_early(self, ctx: Context, tag: str, window: dict[str, Any], early: int) -> None:
        at = (max(ctx.timestamp_ms, ctx.watermark) // early + 1) * early
        if at < min(window["due"], window.get("early", at + 1)):
            window["early"] = at
            ctx.set_timer(_EARLY + tag, at)


class CountWindows(Computation):
    """A result for each so many records of a key, in the order in which they come.

    The bounds of a window are the times of its earliest and, with 1 ms on top, its latest record.
    One that is not full waits, and is not written when the stream ends.
    """

    def __init__(
        self,
        name: str,
        size: int,
        *,
        inputs: Mapping[str, KeyOf],
        output: str,
        combine: Combine | None = None,
        ttl: timedelta | None = None,
    ) -> None:
        """Declare a computation.

        Args:
            size: How many records a window has, at least 1.
            inputs: The streams that it reads, each with its key.
            output: The stream of the results.
            combine: What a window makes of its records; by default it counts them.
            ttl: After which silence a window that is not full is forgotten.

        Raises:
            TypeError: there is no window of this size.
        """
        self.name = name
        self.size = size
        self.inputs = dict(inputs)
        self.outputs = (output,)
        self.combine = combine or count()
        self.ttl = ttl
        if size < 1:
            raise TypeError(f"{name}: a window has at least 1 record, not {size}")

    def record(self, ctx: Context, record: Record) -> None:
        cell = ctx.state.value("window")
        window = cell.get() or {
            "start": record.timestamp_ms,
            "records": 0,
            "total": self.combine.empty(),
        }
        window["start"] = min(window["start"], record.timestamp_ms)
        window["end"] = max(window.get("end", 0), record.timestamp_ms + 1)
        window["records"] += 1
        window["total"] = self.combine.add(window["total"], record)
        cell.set(window)
        if window["records"] == self.size:
            value = self.combine.result(window.pop("total"))
            ctx.produce(self.outputs[0], {"key": ctx.key, **window, "value": value})
            cell.clear()


@functools.lru_cache(maxsize=1_000)
def milliseconds(span: timedelta) -> int:
    """Return a span of time as streams count it."""
    return span // timedelta(milliseconds=1)


def _check_span(name: str, span: timedelta) -> None:
    if milliseconds(span) < 1:
        raise TypeError(f"`{name}` is at least a millisecond, not {span}")
