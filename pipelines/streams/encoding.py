"""The bodies of rows, as JSON and back."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from pipelines.streams.keys import KeyState, SetTimer
from pipelines.streams.records import NEVER
from pipelines.streams.rows import (
    CHUNK,
    DEAD,
    HEAD,
    IDS,
    INTERVAL,
    LARGE,
    SLAB,
    SOURCE,
    DeadRow,
    Head,
    IdsPart,
    Interval,
    Letter,
    Load,
    Slab,
    SlabBody,
    SourceRow,
)

# `json.dumps` would make one for each call.
_ENCODER = json.JSONEncoder(separators=(",", ":"))


def dump(kind: str, body: Any) -> bytes:
    """Return the body of a row as JSON."""
    if kind == SLAB:
        lines = (_line(key, state, body) for key, state in body.keys.items())
        return f"[{','.join(lines)}]".encode()
    if kind in (HEAD, INTERVAL, SOURCE, DEAD):
        body = body._asdict()
    return _ENCODER.encode(body).encode()


def load(kind: str, text: bytes) -> Any:
    """Return the body of a row."""
    return _LOADERS[kind](json.loads(text))


def _line(key: str, state: KeyState, body: SlabBody) -> str:
    """Return a key as it stands in a slab, as JSON."""
    if state.stored is None or state.stored[0] != key or key in body.large:
        item = _key_item(key, state, body)
        state.stored = key, _ENCODER.encode(item)
    return state.stored[1]


def _key_item(key: str, state: KeyState, body: SlabBody) -> list[Any]:
    """Return a key as it stands in a slab; what it does not have takes no place."""
    timers = [[tag, *timer] for tag, timer in state.timers.items()]
    expires = None if state.expires == NEVER else state.expires
    item = [key, state.text, timers, expires, key in body.large]
    while not item[-1]:
        item.pop()
    return item


def _slab(items: list[Any]) -> SlabBody:
    keys, large = {}, set()
    for key, *more in items:
        stored: list[Any] = [*more, *("", [], None, False)[len(more) :]]
        text, timers, expires, is_large = stored
        set_timers = {
            tag: SetTimer(at, bool(wall), hold, bool(late)) for tag, at, wall, hold, late in timers
        }
        keys[key] = KeyState(text, set_timers, NEVER if expires is None else expires)
        if is_large:
            large.add(key)
    return SlabBody(keys, frozenset(large))


def _interval(body: dict[str, Any]) -> Interval:
    slabs = tuple(Slab(*each) for each in body.pop("slabs"))
    ids = tuple(IdsPart(*each) for each in body.pop("ids"))
    load = Load(*body.pop("load", ()))
    return Interval(**_known(Interval, body), slabs=slabs, ids=ids, load=load)


def _source(body: dict[str, Any]) -> SourceRow:
    lists = {name: tuple(body.get(name, ())) for name in ("last", "delays")}
    return SourceRow(**_known(SourceRow, {**body, **lists}))


def _dead(body: dict[str, Any]) -> DeadRow:
    letter = body.pop("letter")
    return DeadRow(**_known(DeadRow, body), letter=Letter(*letter) if letter else None)


def _known(kind: Any, body: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that this version of the code knows."""
    return {name: value for name, value in body.items() if name in kind._fields}


_LOADERS: dict[str, Callable[[Any], Any]] = {
    HEAD: lambda body: Head(**_known(Head, body)),
    INTERVAL: _interval,
    SLAB: _slab,
    LARGE: lambda body: body,
    CHUNK: lambda body: tuple(Letter(*each) for each in body),
    IDS: tuple,
    SOURCE: _source,
    DEAD: _dead,
}
