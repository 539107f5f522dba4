"""Windows of hot keys, in two computations: combined by parts of a key first, then by key.

    PARTS, HITS = two_phase("hits", Tumbling(MINUTE), inputs=..., output="hits-per-minute")
    WEBLOG = Pipeline("weblog", PARTS, HITS)

One worker at a time works on a key. Here a key's records are spread over parts, which different
workers combine; the second computation gets one total of each part and window, and merges those.

Source: the combiner lifting of Apache Beam (`withHotKeyFanout`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from rollforward.streams.model.computation import KeyOf
from rollforward.streams.model.context import Context
from rollforward.streams.model.records import Record, value_text
from rollforward.streams.operators.aggregates import Combine, count
from rollforward.streams.operators.windows import Enclosing, Windowed, Windows

MAX_PARTS = 1_000


def two_phase(
    name: str,
    windows: Windows,
    *,
    inputs: Mapping[str, KeyOf],
    output: str,
    combine: Combine | None = None,
    parts: int = 16,
    late_stream: str | None = None,
) -> tuple[Windowed, Windowed]:
    """Return two computations with the results of one `Windowed`; both belong into the pipeline.

    A result comes one millisecond later than that of one computation. There are no early results,
    and none again for late records.

    Args:
        windows: `Tumbling` or `Sliding`.
        combine: What a window makes of its records; it does not matter in which order.
        parts: Over how many parts the records of a key are spread, by a hash of their values.

    Raises:
        TypeError: the parts of these windows cannot be put together.
    """
    if windows.merges or isinstance(windows, Enclosing):
        raise TypeError(f"{name}: a window that depends on its records has no parts")
    if not 2 <= parts <= MAX_PARTS:
        raise TypeError(f"{name}: 2 to {MAX_PARTS} parts, not {parts}")
    whole, stream = combine or count(), f"{name}-parts"
    first = Windowed(
        stream,
        windows,
        inputs={each: _key_of_part(key_of, parts) for each, key_of in inputs.items()},
        output=stream,
        combine=Combine(whole.empty, whole.add, whole.merge),
        late_stream=late_stream,
    )
    return first, _Whole(name, stream, output, whole)


class _Whole(Windowed):
    """Puts the parts of each window together."""

    def __init__(self, name: str, stream: str, output: str, whole: Combine) -> None:
        def add(total: Any, record: Record) -> Any:
            so_far = {"records": 0, "total": whole.empty()} if total is None else total
            value = record.value
            return {
                "records": so_far["records"] + value["records"],
                "total": whole.merge(so_far["total"], value["value"]),
            }

        super().__init__(
            name,
            Enclosing(),
            inputs={stream: lambda part: part["key"].partition(":")[2]},
            output=output,
            combine=Combine(lambda: None, add, _never, lambda total: whole.result(total["total"])),
        )

    def write(self, ctx: Context, window: Mapping[str, Any], pane: str, at: int) -> None:
        super().write(ctx, {**window, "records": window["total"]["records"]}, pane, at)


def _never(first: Any, second: Any) -> Any:
    raise TypeError("these windows do not merge")


def _key_of_part(key_of: KeyOf, parts: int) -> KeyOf:
    def key(value: Any) -> str:
        digest = hashlib.blake2b(value_text(value).encode(), digest_size=4).digest()
        return f"{int.from_bytes(digest, 'big') % parts}:{key_of(value)}"

    return key
