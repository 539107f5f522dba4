"""Serialization of the bodies of rows, as JSON and back.

During a rolling deployment, different versions of the app write the same rows. Fields of later code
are preserved in `later_fields` and written back unchanged. Positional items (a slab, a timer, a
column of a chunk) cannot be preserved this way. If a row has more of them than this code knows, it
raises `MissingCodeError`, writes nothing, and leaves the row to other instances.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rollforward.datastore.batched import MAX_COMMIT_BYTES
from rollforward.runtime.channel.limits import COMMIT
from rollforward.streams.model.codecs import (
    MARK,
    Encoded,
    encoded_of,
    join_text,
    split_text,
    text_of,
)
from rollforward.streams.model.json_text import encoder, quoted
from rollforward.streams.model.key_state import KeyState, SetTimer, SlabBody, build_tuples
from rollforward.streams.model.records import NEVER
from rollforward.streams.storage.remote_calls import FullError, Key, TooLargeError
from rollforward.streams.storage.schema import (
    CHUNK,
    DEAD,
    HEAD,
    IDS,
    INTERVAL,
    LARGE,
    LOG,
    OUTBOX,
    SLAB,
    SOURCE,
    SUBSCRIPTION,
    DeadRow,
    Head,
    IdsPart,
    InboxRecord,
    Interval,
    Load,
    LogRow,
    Sent,
    Slab,
    SourceRow,
    SubscriptionRow,
    later_code,
    part_of_row,
)

_WITH_FIELDS = frozenset({HEAD, INTERVAL, SOURCE, DEAD, LOG, SUBSCRIPTION})
_COLUMNS = frozenset(InboxRecord._fields)
_encode = encoder(allow_nan=True)
# The service takes 1,048,487 bytes of a property.
MAX_ROW_BYTES = 1_000_000
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
    elif kind in _WITH_FIELDS:
        fields = body._asdict()
        if kind == LOG:
            fields["records"] = list(map(_log_entry, body.records))
        elif kind == DEAD and body.record is not None:
            fields["record"] = _dead_record(body.record)
        body = {**fields.pop("later_fields"), **fields}
        # Without them, code that does not know the fields can split the row.
        if body.get("sent", ()) is None:
            del body["sent"]
        if body.get("crashed_ms") == 0:
            del body["crashed_ms"]
    return _encode(body).encode()


def check_sizes(rows: Iterable[tuple[Key, bytes]], deletes: int = 0) -> None:
    """Check that the service accepts rows, and all of them in one commit with some deletes.

    Raises:
        FullError: the row of an interval is too large.
        TooLargeError: another row is too large, or the commit is.
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
    """Return the JSON of a key with a small state in its slab."""
    stored = state.stored
    if stored is None or stored[0] != key:
        stored = state.stored = key, _encoded(key, state, is_large=False)
    return stored[1]


def _encoded(key: str, state: KeyState, *, is_large: bool) -> str:
    """Return the JSON of a key in its slab; trailing defaults are omitted."""
    if is_large or state.expires != NEVER or state.version != 1:
        timers = [[tag, *timer] for tag, timer in state.timers.items()]
        expires = None if state.expires == NEVER else state.expires
        flags = [is_large, state.version] if state.version != 1 else [True] * is_large
        return _encode([key, state.text, timers, expires, *flags])
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


def _columns(records: Sequence[InboxRecord]) -> dict[str, Any]:
    """Return records by column, for speed and size; a column of equal values is stored once."""
    columns: dict[str, Any] = dict(
        zip(InboxRecord._fields, zip(*records, strict=True), strict=False)
    )
    if MARK in "".join(columns.get("text", ())):
        columns["codec"], columns["text"] = zip(*map(split_text, columns["text"]), strict=True)
    for name in ("stream", "id", "codec"):
        if len(set(columns.get(name, ()))) == 1:
            columns[name] = columns[name][0]
    return columns


def _records(body: Any) -> tuple[InboxRecord, ...]:
    if isinstance(body, list):  # The form before columns.
        return tuple(InboxRecord(*fields) for fields in body)
    codecs = body.pop("codec", None)
    if not _COLUMNS.issuperset(body):
        raise later_code("a chunk")
    columns = [body.get(name, ()) for name in InboxRecord._fields]
    count = len(columns[0])
    full = [[column] * count if isinstance(column, str) else column for column in columns]
    if codecs is not None:
        names = [codecs] * count if isinstance(codecs, str) else codecs
        full[-1] = list(map(join_text, names, full[-1]))
    return tuple(build_tuples(InboxRecord, zip(*full, strict=True)))


def _dead_record(record: InboxRecord) -> Sequence[Any]:
    """Return the fields of a record, with the name of its value's codec as the sixth."""
    codec, text = split_text(record.text)
    return (*record[:-1], text, codec) if codec else record


def _log_entry(entry: tuple[int, Any]) -> Sequence[Any]:
    """Return a record of a log, with the name of its value's codec as the third item."""
    at, value = entry
    if not isinstance(value, Encoded):
        return entry
    codec, text = split_text(text_of(value))
    return at, text, codec


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _slab(items: list[Any]) -> SlabBody:
    keys, large = {}, set()
    for key, *fields in items:
        padded: list[Any] = [*fields, *("", [], None, False, 1)[len(fields) :]]
        try:
            text, timers, expires, is_large, version = padded
            set_timers = {
                tag: SetTimer(at, bool(is_processing_time), hold, bool(late))
                for tag, at, is_processing_time, hold, late in timers
            }
        except ValueError as error:
            raise later_code("a slab") from error
        expires = NEVER if expires is None else expires
        keys[key] = KeyState(text, set_timers, expires, version)
        if is_large:
            large.add(key)
    return SlabBody(keys, frozenset(large))


def _interval(body: dict[str, Any]) -> Interval:
    slabs = tuple(part_of_row(Slab, fields) for fields in body.pop("slabs"))
    ids = tuple(part_of_row(IdsPart, fields) for fields in body.pop("ids"))
    load = part_of_row(Load, body.pop("load", ()))
    sent = _sent(body)
    return Interval(**_fields(Interval, body), slabs=slabs, ids=ids, load=load, sent=sent)


def _sent(body: dict[str, Any]) -> Sent | None:
    fields = body.pop("sent", None)
    return None if fields is None else part_of_row(Sent, fields)


def _source(body: dict[str, Any]) -> SourceRow:
    lists = {name: tuple(body.get(name, ())) for name in ("last", "delays")}
    sent = _sent(body)
    return SourceRow(**_fields(SourceRow, {**body, **lists}), sent=sent)


def _dead(body: dict[str, Any]) -> DeadRow:
    record = body.pop("record")
    if record and len(record) == len(InboxRecord._fields) + 1:
        *record, codec = record
        record[-1] = join_text(codec, record[-1])
    return DeadRow(
        **_fields(DeadRow, body), record=part_of_row(InboxRecord, record) if record else None
    )


def _log(body: dict[str, Any]) -> LogRow:
    records = [
        (at, encoded_of(join_text(codec[0], value)) if codec else value)
        for at, value, *codec in body.pop("records")
    ]
    return LogRow(**_fields(LogRow, body), records=records)


def _fields(kind: Any, body: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a row; unknown ones become its `later_fields`."""
    fields = {name: value for name, value in body.items() if name in kind._fields}
    if len(fields) < len(body):
        fields["later_fields"] = {name: body[name] for name in body if name not in fields}
    return fields


_LOADERS: dict[str, Callable[[Any], Any]] = {
    HEAD: lambda body: Head(**_fields(Head, body)),
    INTERVAL: _interval,
    SLAB: _slab,
    LARGE: lambda body: body,
    CHUNK: _records,
    IDS: tuple,
    SOURCE: _source,
    DEAD: _dead,
    LOG: _log,
    SUBSCRIPTION: lambda body: SubscriptionRow(**_fields(SubscriptionRow, body)),
}
