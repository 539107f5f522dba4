"""Windows: aggregates of each key over spans of event time, or over numbers of records.

    HITS = Windowed(
        "hits-per-minute",
        Tumbling(timedelta(minutes=1)),
        inputs={"requests": lambda request: request["path"]},
        output="hits",
    )

A result contains the bounds of its window:

    {"key": "/", "start": 0, "end": 60000, "pane": "on-time", "records": 2, "value": 2}

It is written when the watermark reaches the window's end (the default trigger), with the time of
that end or, with `stamp="earliest"`, of the window's earliest on-time record. `early` and
`lateness` (allowed lateness) add results before and after it. These panes accumulate: each covers
all records of the window so far, and `pane` is "early", "on-time" or "late". A record without an
open window counts as late and goes to the `late_stream`.

Sources: T. Akidau and others, "The Dataflow Model", 2015 (windows, panes, lateness); sessions merge
as in Apache Flink; `stamp` is Apache Beam's timestamp combiner.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, NamedTuple, Protocol

from rollforward.streams.model.computation import Computation, KeyOf
from rollforward.streams.model.context import Context
from rollforward.streams.model.errors import BadRecordError
from rollforward.streams.model.records import FOREVER, Record, Timer
from rollforward.streams.model.state import MapState
from rollforward.streams.operators.aggregates import Combine, aggregate_of

# The maximum number of windows of one record.
MAX_OVERLAP = 100
# In ms: half of all time, so that a time of today plus a span is a time.
MAX_SPAN = FOREVER // 2
_WINDOWS = "windows"
_END, _EARLY = "end:", "early:"
_EARLIEST = "earliest"
Stamp = Literal["end", "earliest"]


class Bounds(NamedTuple):
    """A window, from `start` up to but without `end`; its result is due at the watermark `due`."""

    start: int
    end: int
    due: int


class Windows(Protocol):
    """Window assigner: the windows of a record."""

    @property
    def merges(self) -> bool:
        """Whether overlapping windows of a key are merged."""
        ...

    def assign(self, record: Record) -> Sequence[Bounds]:
        """Return the windows of a record."""
        ...


@dataclass(frozen=True)
class Tumbling:
    """Consecutive windows of one size, aligned to 1970 in UTC."""

    size: timedelta
    merges = False

    def __post_init__(self) -> None:
        _check_span("size", self.size)

    def assign(self, record: Record) -> Sequence[Bounds]:
        """Return the one window of a record."""
        size = self._size_ms
        start = record.timestamp_ms // size * size
        return [Bounds(start, start + size, start + size)]

    @functools.cached_property
    def _size_ms(self) -> int:
        return milliseconds(self.size)


@dataclass(frozen=True)
class Sliding:
    """Overlapping windows of one size, one beginning at each multiple of `every`."""

    size: timedelta
    every: timedelta
    merges = False

    def __post_init__(self) -> None:
        _check_span("every", self.every)
        if not self.every <= self.size <= self.every * MAX_OVERLAP:
            raise TypeError(f"`size` must be 1 to {MAX_OVERLAP} times `every`, got {self.size}")

    def assign(self, record: Record) -> Sequence[Bounds]:
        """Return all windows of a record, the latest one first."""
        size, every = milliseconds(self.size), milliseconds(self.every)
        latest_start = record.timestamp_ms // every * every
        return [
            Bounds(start, start + size, start + size)
            for start in range(latest_start, record.timestamp_ms - size, -every)
        ]


@dataclass(frozen=True)
class Session:
    """A window from a key's first record until a `gap` without records.

    A record between two sessions may merge them. The result of a session replaces earlier results
    within its bounds.
    """

    gap: timedelta
    merges = True

    def __post_init__(self) -> None:
        _check_span("gap", self.gap)

    def assign(self, record: Record) -> Sequence[Bounds]:
        """Return the window of a record alone, which merges with overlapping ones."""
        end = record.timestamp_ms + milliseconds(self.gap)
        return [Bounds(record.timestamp_ms, end, end)]


@dataclass(frozen=True)
class Enclosing:
    """Windows over the results of other windows: the tumbling windows that contain those.

    A result has the time of its window's end, which already belongs to the next window. So it is
    assigned by its bounds instead. Only "on-time" results are allowed, because other panes repeat
    the records of those they replace.

    Attributes:
        size: A multiple of the inner windows' size; None: the same windows.
    """

    size: timedelta | None = None
    merges = False

    def __post_init__(self) -> None:
        if self.size is not None:
            _check_span("size", self.size)

    def assign(self, record: Record) -> Sequence[Bounds]:
        """Return the window around a result.

        Raises:
            BadRecordError: the result is not an "on-time" pane.
        """
        start, end, pane = (record.value[field] for field in ("start", "end", "pane"))
        if pane != "on-time":
            raise BadRecordError(
                f'the pane of the result of {start} to {end} must be "on-time", got {pane!r}'
            )
        # From a window's end to the arrival of its results, which may have an earlier time.
        delay = max(0, record.timestamp_ms - end + 1)
        if self.size is not None:
            size = milliseconds(self.size)
            start = start // size * size
            if end > start + size:
                raise BadRecordError(f"no window of {size} ms encloses {record.value['start']:d}")
            end = start + size
        return [Bounds(start, end, end + delay)]


class Windowed(Computation):
    """Aggregate of each window of each key."""

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
        stamp: Stamp = "end",
    ) -> None:
        """Declare a computation.

        Args:
            windows: `Tumbling`, `Sliding`, `Session` or `Enclosing`.
            inputs: The streams to read, each with its key function.
            output: The stream of the results.
            combine: The aggregate; default: `count()`.
            lateness: The allowed lateness. For so long after its end (in event time) a window still
                accepts late records, and immediately writes a "late" pane for each.
            early: The period of early panes: a changed window writes one whenever the watermark
                passes a multiple of it before the window's end.
            late_stream: The stream for records that were too late for every window.
            stamp: The time of early and on-time results. "end": of the window's end. "earliest": of
                its earliest on-time record; until the result is written, computations downstream
                wait with their windows of that time. Late panes always have the time of the end.

        Raises:
            TypeError: `windows`, a span of time, `combine` or `stamp` is invalid.
        """
        if isinstance(windows, type) or not hasattr(windows, "assign"):
            raise TypeError(f"{name}: `windows` must be as Tumbling(size), got {windows!r:.200}")
        self.name = name
        self.windows = windows
        self.inputs = dict(inputs)
        self.outputs = (output,)
        self.output = output
        self.combine = aggregate_of(name, combine)
        self.lateness = milliseconds(lateness)
        self.early = None if early is None else milliseconds(early)
        self.late_stream = late_stream
        self.is_held = stamp == "earliest"
        if stamp not in ("end", "earliest"):
            raise TypeError(f'{name}: `stamp` must be "end" or "earliest", got {stamp!r}')
        if self.lateness < 0 or (self.early is not None and self.early < 1):
            raise TypeError(
                f"{name}: `lateness` must not be negative, and `early` must be positive"
            )

    def record(self, ctx: Context, record: Record) -> None:
        stored, is_counted = ctx.state.map(_WINDOWS), False
        for bounds in self.windows.assign(record):
            is_counted |= self._add(ctx, stored, record, bounds)
        if not is_counted:
            ctx.drop_late()
        else:
            self._hold(ctx, stored)

    def timer(self, ctx: Context, timer: Timer) -> None:
        stored, tag = ctx.state.map(_WINDOWS), timer.tag.partition(":")[2]
        window = stored.get(tag)
        if window is None:
            return
        if timer.tag.startswith(_EARLY):
            if window.get("early") == timer.at_ms:  # Else a dead letter is replayed.
                del window["early"]
            if ctx.watermark < window["due"]:
                self.write(ctx, window, "early", _stamp_of(ctx, window, timer.at_ms))
            return
        if timer.at_ms == window["due"]:
            self.write(ctx, window, "on-time", _stamp_of(ctx, window, timer.at_ms))
            window.pop(_EARLIEST, None)
        if timer.at_ms == window["due"] and self.lateness:
            ctx.set_timer(timer.tag, timer.at_ms + self.lateness)
        else:
            stored.pop(tag)
        self._hold(ctx, stored)

    def write(self, ctx: Context, window: Mapping[str, Any], pane: str, at: int) -> None:
        """Write the result of a window."""
        value = self.combine.result(window["total"])
        bounds = {"key": ctx.key, "start": window["start"], "end": window["end"]}
        result = {**bounds, "pane": pane, "records": window["records"], "value": value}
        ctx.produce(self.output, result, at)

    def _add(self, ctx: Context, stored: MapState, record: Record, bounds: Bounds) -> bool:
        """Add a record to a window; return False if the window is closed."""
        touched, watermark = self._touched(stored, bounds), ctx.watermark
        due = bounds.due
        for _, window in touched:
            if window["due"] > due:
                due = window["due"]
        if due + self.lateness <= watermark:
            return False
        tag, window = self._joined(ctx, stored, touched, bounds)
        window["records"] += 1
        window["total"] = self.combine.add(window["total"], record)
        if due <= watermark:
            self.write(ctx, window, "late", due)
            ctx.set_timer(_END + tag, due + self.lateness)
        else:
            ctx.set_timer(_END + tag, due)
            if self.is_held and not ctx.late:
                window[_EARLIEST] = min(ctx.timestamp_ms, window.get(_EARLIEST, ctx.timestamp_ms))
            if self.early is not None:
                self._set_early(ctx, tag, window, self.early)
        return True

    def _touched(self, stored: MapState, bounds: Bounds) -> list[tuple[str, dict[str, Any]]]:
        """Return the stored windows that a new one joins, the earliest first."""
        if not self.windows.merges:
            for tag in _tags_of(bounds):
                window = stored.get(tag)
                if window is not None and window["end"] == bounds.end:
                    return [(tag, window)]
            return []
        overlapping = [
            (tag, window)
            for tag, window in stored.items()
            if window["start"] < bounds.end and bounds.start < window["end"]
        ]
        return sorted(overlapping, key=lambda item: int(item[1]["start"]))

    def _joined(
        self,
        ctx: Context,
        stored: MapState,
        touched: Sequence[tuple[str, dict[str, Any]]],
        bounds: Bounds,
    ) -> tuple[str, dict[str, Any]]:
        """Merge a new window with those that it touches; return the stored result with its tag.

        It keeps the tag, and therefore the timer, of the last window. If that has on-time records,
        its timer stays on time, even if a late record merges it with others.
        """
        start, end, due = bounds
        if not touched:
            empty = {"records": 0, "total": self.combine.empty()}
            tag = next(tag for tag in _tags_of(bounds) if tag not in stored)
            window = {"start": start, "end": end, "due": due, **empty}
            stored.set(tag, window)
            return tag, window
        if not self.windows.merges:
            tag, window = touched[0]
            window["due"] = max(due, window["due"])
            return tag, window
        (_, earliest), (tag, latest) = touched[0], touched[-1]
        merged, total = dict(latest), earliest["total"]
        for _, window in touched[1:]:
            total = self.combine.merge(total, window["total"])
        for other, _ in touched[:-1]:
            stored.pop(other)
            ctx.cancel_timer(_END + other)
            ctx.cancel_timer(_EARLY + other)
        merged["total"], merged["start"] = total, min(start, earliest["start"])
        merged["records"] = sum(window["records"] for _, window in touched)
        merged["end"], merged["due"] = max(end, latest["end"]), max(due, latest["due"])
        if held := [window[_EARLIEST] for _, window in touched if _EARLIEST in window]:
            merged[_EARLIEST] = min(held)
        stored.set(tag, merged)
        return tag, merged

    def _hold(self, ctx: Context, stored: MapState) -> None:
        """Hold the watermark at the earliest record whose result is to come.

        Without `stamp` there are only windows of a version that had it. A window whose timer became
        a dead letter is over, and its end has released the hold of all windows of the key.
        """
        held_ms = ctx.held_ms
        if not self.is_held and held_ms is None:
            return
        bound = ctx.timestamp_ms if held_ms is None else min(held_ms, ctx.timestamp_ms)
        held = [
            window[_EARLIEST]
            for tag, window in stored.items()
            if window.get(_EARLIEST, -1) >= bound and ctx.has_timer(_END + tag)
        ]
        if held:
            ctx.hold(min(held))
        else:
            ctx.release()

    def _set_early(self, ctx: Context, tag: str, window: dict[str, Any], early: int) -> None:
        at = (max(ctx.timestamp_ms, ctx.watermark) // early + 1) * early
        # A timer that became a dead letter is gone.
        pending = window.get("early", at + 1) if ctx.has_timer(_EARLY + tag) else at + 1
        if at < min(window["due"], pending):
            window["early"] = at
            ctx.set_timer(_EARLY + tag, at)


def _stamp_of(ctx: Context, window: Mapping[str, Any], end: int) -> int:
    """Return the time of a result: of the earliest record, unless the hold for it is gone."""
    earliest, held_ms = window.get(_EARLIEST, end), ctx.held_ms
    return earliest if held_ms is not None and held_ms <= earliest else end


def _tags_of(bounds: Bounds) -> Iterator[str]:
    """Yield the tags that a window may have: the start, or both bounds if that tag is taken."""
    yield str(bounds.start)
    yield f"{bounds.start}-{bounds.end}"


class CountWindows(Computation):
    """Aggregate of each `size` consecutive records of a key, in order of arrival.

    The bounds of a window are the times of its earliest record and, plus 1 ms, its latest one. An
    incomplete window is not written when the stream ends.
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
            size: The number of records of a window, at least 1.
            inputs: The streams to read, each with its key function.
            output: The stream of the results.
            combine: The aggregate; default: `count()`.
            ttl: The time without records after which an incomplete window is deleted.

        Raises:
            TypeError: the size or `combine` is invalid.
        """
        self.name = name
        self.size = size
        self.inputs = dict(inputs)
        self.outputs = (output,)
        self.combine = aggregate_of(name, combine)
        self.ttl = ttl
        if not isinstance(size, int) or size < 1:
            raise TypeError(f"{name}: `size` must be a whole number, at least 1, got {size!r}")

    def record(self, ctx: Context, record: Record) -> None:
        stored = ctx.state.value("window")
        window = stored.get() or {
            "start": record.timestamp_ms,
            "records": 0,
            "total": self.combine.empty(),
        }
        window["start"] = min(window["start"], record.timestamp_ms)
        window["end"] = max(window.get("end", 0), record.timestamp_ms + 1)
        window["records"] += 1
        window["total"] = self.combine.add(window["total"], record)
        stored.set(window)
        if window["records"] == self.size:
            value = self.combine.result(window.pop("total"))
            ctx.produce(self.outputs[0], {"key": ctx.key, **window, "value": value})
            stored.clear()


@functools.lru_cache(maxsize=1_000)
def milliseconds(span: timedelta) -> int:
    """Return a span of time in whole milliseconds, at most `MAX_SPAN`, as of `timedelta.max`."""
    return max(-MAX_SPAN, min(span // timedelta(milliseconds=1), MAX_SPAN))


def _check_span(name: str, span: timedelta) -> None:
    if milliseconds(span) < 1:
        raise TypeError(f"`{name}` must be at least a millisecond, got {span}")
