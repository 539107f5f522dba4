"""Hot-key fan-out: windows of frequent keys are aggregated by parts of a key first, then by key.

    PARTS, HITS = fan_out("hits", Tumbling(MINUTE), inputs=..., output="hits-per-minute")
    WEBLOG = Pipeline("weblog", PARTS, HITS)

A key is processed by one worker at a time. The fan-out spreads a key's records over parts, which
different workers aggregate. A second computation gets one total of each part and window, and merges
them.

Source: the combiner lifting of Apache Beam (`withHotKeyFanout`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from rollforward.streams.model.computation import KeyOf
from rollforward.streams.model.context import Context
from rollforward.streams.model.errors import BadRecordError
from rollforward.streams.model.records import Record, check_key, value_text
from rollforward.streams.operators.aggregates import Combine, aggregate_of
from rollforward.streams.operators.windows import Bounds, Enclosing, Windowed, Windows

MAX_PARTS = 1_000


def fan_out(
    name: str,
    windows: Windows,
    *,
    inputs: Mapping[str, KeyOf],
    output: str,
    combine: Combine | None = None,
    parts: int = 16,
    late_stream: str | None = None,
) -> tuple[Windowed, Windowed]:
    """Return two computations with the results of one `Windowed`; add both to the pipeline.

    A result is written one millisecond later than by a single computation. There are no early or
    late panes.

    Args:
        windows: `Tumbling` or `Sliding`.
        inputs: The streams to read, each with its key function. A key has at most 496 bytes.
        combine: The aggregate; it must not depend on the order of records.
        parts: The number of parts over which a key's records are spread, by a hash of their values.

    Raises:
        TypeError: windows of this kind cannot be aggregated by parts.
    """
    if windows.merges or isinstance(windows, Enclosing):
        raise TypeError(f"{name}: `windows` must not depend on their records")
    if not 2 <= parts <= MAX_PARTS:
        raise TypeError(f"{name}: `parts` must be 2 to {MAX_PARTS}, got {parts}")
    aggregate, stream = aggregate_of(name, combine), f"{name}-parts"
    by_part = _Parts(
        stream,
        windows,
        inputs={source: _key_of_part(key_of, parts) for source, key_of in inputs.items()},
        output=stream,
        combine=Combine(aggregate.empty, aggregate.add, aggregate.merge),
        late_stream=late_stream,
    )
    return by_part, _MergedParts(name, stream, output, aggregate)


class _Parts(Windowed):
    """Aggregates each window of each part of a key."""

    def record(self, ctx: Context, record: Record) -> None:
        """Pass a late record on at once, as a total of its own.

        The timer of a window that has late records alone holds no watermark. So its result could
        come when the window of the key is closed. The late record itself holds the watermark.
        """
        if not ctx.late:
            super().record(ctx, record)
            return
        bounds = [window for window in self.windows.assign(record) if window.due > ctx.watermark]
        for start, end, _ in bounds:
            total = self.combine.add(self.combine.empty(), record)
            window = {"start": start, "end": end, "records": 1, "total": total}
            self.write(ctx, window, "on-time", record.timestamp_ms)
        if not bounds:
            ctx.drop_late()


class _WholeWindows(Enclosing):
    """The windows of parts, each due when the parts' timers have written."""

    def assign(self, record: Record) -> Sequence[Bounds]:
        return [bounds._replace(due=bounds.end + 1) for bounds in super().assign(record)]


class _MergedParts(Windowed):
    """Merges the parts of each window."""

    def __init__(self, name: str, stream: str, output: str, aggregate: Combine) -> None:
        def add(total: Any, record: Record) -> Any:
            so_far = {"records": 0, "total": aggregate.empty()} if total is None else total
            value = record.value
            return {
                "records": so_far["records"] + value["records"],
                "total": aggregate.merge(so_far["total"], value["value"]),
            }

        super().__init__(
            name,
            _WholeWindows(),
            inputs={stream: lambda part: part["key"].partition(":")[2]},
            output=output,
            combine=Combine(
                lambda: None, add, _never, lambda total: aggregate.result(total["total"])
            ),
        )

    def write(self, ctx: Context, window: Mapping[str, Any], pane: str, at: int) -> None:
        super().write(ctx, {**window, "records": window["total"]["records"]}, pane, at)


def _never(total: Any, other: Any) -> Any:
    raise TypeError("enclosing windows must not be merged")


def _key_of_part(key_of: KeyOf, parts: int) -> KeyOf:
    def key(value: Any) -> str:
        digest = hashlib.blake2b(_bytes_of(value), digest_size=4).digest()
        return f"{int.from_bytes(digest, 'big') % parts}:{check_key(key_of(value))}"

    return key


def _bytes_of(value: Any) -> bytes:
    """Return what the hash of a value is computed from; a codec may have decoded it."""
    try:
        return value_text(value).encode()
    except BadRecordError:
        return repr(value).encode(errors="backslashreplace")
