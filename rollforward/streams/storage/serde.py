"""The bodies of rows, as JSON and back.

Versions of the app that serve side by side write the same rows. A field that only later code knows
is in `rest` for code that does not, and is written back as it was. What stands in a row by its
place (a slab, a timer, a column of a chunk) cannot be kept so: code that meets more than it knows
leaves the row to other instances (`MissingCodeError`), and writes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rollforward.runtime.channel.limits import COMMIT
from rollforward.streams.model.json_text import encoder, quoted
from rollforward.streams.model.key_state import KeyState, SetTimer, build_tuples
from rollforward.streams.model.records import NEVER
from rollforward.streams.storage.remote_calls import FullError, Key, TooLargeError
from rollforward.streams.storage.schema import (
    CHUNK,
    DEAD,
    HEAD,
    IDS,
    INTERVAL,
    LARGE,
    OUTBOX,
    SLAB,
    SOURCE,
    DeadRow,
    Head,
    IdsPart,
    InboxRecord,
    Interval,
    Load,
    Slab,
    SlabBody,
    SourceRow,
    later_code,
    part_of_row,
)

_COLUMNS = frozenset(InboxRecord._fields)
_encode = encoder(allow_nan=True)
# The service takes 1,048,487 bytes of a property.
MAX_ROW_BYTES = 1_000_000
# The service takes 10 MiB, the emulators take 4.
MAX_COMMIT_BYTES = 3_500_000
MAX_COMMIT_ROWS = COMMIT.most


def dump(kind: str, body: Any) -> bytes:
    """Return the body of a row as JSON."""
    if kind == SLAB:
        large = body.large
        lines = [
            _encoded(key, state, is_large=True) if key in large else _line(key, state)
            for key, state in body.keys.items()
        ]
        return f"[{','.join(lines)}]".encode()
    if kind == CHUNK:
        body = _columns(body)
    elif kind in (HEAD, INTERVAL, SOURCE, DEAD):
        fields = body._asdict()
        body = {**fields.pop("rest"), **fields}
    return _encode(body).encode()


def check_sizes(rows: Iterable[tuple[Key, bytes]], deletes: int = 0) -> None:
    """Check that the service takes rows, and all of them in one commit with so many deletes.

    Raises:
        FullError: the row of an interval is too large.
        TooLargeError: another one is, or all of them are.
    """
    total, count = 0, deletes
    for key, body in rows:
        size = len(body)
        total += size
        count += 1
        if size > MAX_ROW_BYTES:
            text = f"the row {key.kind} {key.name:.100} must have at most {MAX_ROW_BYTES} bytes"
            raise (FullError if key.kind == INTERVAL else TooLargeError)(f"{text}, got {size}")
    if total > MAX_COMMIT_BYTES:
        raise TooLargeError(f"a commit must have at most {MAX_COMMIT_BYTES} bytes, got {total}")
    if count > MAX_COMMIT_ROWS:
        raise TooLargeError(f"a commit must have at most {MAX_COMMIT_ROWS} rows, got {count}")


def load(kind: str, text: bytes) -> Any:
    """Return the body of a row."""
    if kind == OUTBOX:
        return None
    return _LOADERS[kind](json.loads(text))


def _line(key: str, state: KeyState) -> str:
    """Return a key with a small state as it stands in a slab, as JSON."""
    stored = state.stored
    if stored is None or stored[0] != key:
        stored = state.stored = key, _encoded(key, state, is_large=False)
    return stored[1]


def _encoded(key: str, state: KeyState, *, is_large: bool) -> str:
    """Return a key as it stands in a slab, as JSON; what it does not have takes no place."""
    if is_large or state.expires != NEVER or state.version != 1:
        timers = [[tag, *timer] for tag, timer in state.timers.items()]
        expires = None if state.expires == NEVER else state.expires
        more = [is_large, state.version] if state.version != 1 else [True] * is_large
        return _encode([key, state.text, timers, expires, *more])
    line = f"[{quoted(key)}"
    if state.text or state.timers:
        line += f",{quoted(state.text)}"
    if state.timers:
        timers_ = ",".join(
            f"[{quoted(tag)},{at},{_bool(is_processing_time)},{hold},{_bool(late)}]"
            for tag, (at, is_processing_time, hold, late) in state.timers.items()
        )
        line += f",[{timers_}]"
    return f"{line}]"


def _columns(letters: Sequence[InboxRecord]) -> dict[str, Any]:
    """Return letters by column, which takes less time and place; of equal fields there is one."""
    columns: dict[str, Any] = dict(
        zip(InboxRecord._fields, zip(*letters, strict=True), strict=False)
    )
    for name in ("stream", "id"):
        if len(set(columns.get(name, ()))) == 1:
            columns[name] = columns[name][0]
    return columns


def _letters(body: Any) -> tuple[InboxRecord, ...]:
    if isinstance(body, list):  # As they were written before they stood in columns.
        return tuple(InboxRecord(*each) for each in body)
    if not _COLUMNS.issuperset(body):
        raise later_code("a chunk")
    columns = [body.get(name, ()) for name in InboxRecord._fields]
    same = [[each] * len(columns[0]) if isinstance(each, str) else each for each in columns]
    return tuple(build_tuples(InboxRecord, zip(*same, strict=True)))


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _slab(items: list[Any]) -> SlabBody:
    keys, large = {}, set()
    for key, *more in items:
        stored: list[Any] = [*more, *("", [], None, False, 1)[len(more) :]]
        try:
            text, timers, expires, is_large, version = stored
            set_timers = {
                tag: SetTimer(at, bool(processing_due), hold, bool(late))
                for tag, at, processing_due, hold, late in timers
            }
        except ValueError as error:
            raise later_code("a slab") from error
        expires = NEVER if expires is None else expires
        keys[key] = KeyState(text, set_timers, expires, version)
        if is_large:
            large.add(key)
    return SlabBody(keys, frozenset(large))


def _interval(body: dict[str, Any]) -> Interval:
    slabs = tuple(part_of_row(Slab, each) for each in body.pop("slabs"))
    ids = tuple(part_of_row(IdsPart, each) for each in body.pop("ids"))
    load = part_of_row(Load, body.pop("load", ()))
    return Interval(**_fields(Interval, body), slabs=slabs, ids=ids, load=load)


def _source(body: dict[str, Any]) -> SourceRow:
    lists = {name: tuple(body.get(name, ())) for name in ("last", "delays")}
    return SourceRow(**_fields(SourceRow, {**body, **lists}))


def _dead(body: dict[str, Any]) -> DeadRow:
    record = body.pop("record")
    return DeadRow(
        **_fields(DeadRow, body), record=part_of_row(InboxRecord, record) if record else None
    )


def _fields(kind: Any, body: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a row; those that only later code knows are its `rest`."""
    known = {name: value for name, value in body.items() if name in kind._fields}
    if len(known) < len(body):
        known["rest"] = {name: value for name, value in body.items() if name not in known}
    return known


_LOADERS: dict[str, Callable[[Any], Any]] = {
    HEAD: lambda body: Head(**_fields(Head, body)),
    INTERVAL: _interval,
    SLAB: _slab,
    LARGE: lambda body: body,
    CHUNK: _letters,
    IDS: tuple,
    SOURCE: _source,
    DEAD: _dead,
}
