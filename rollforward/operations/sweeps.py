"""Times of the last sweeps, in memcached: a hint for operators, and gone with it."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping

from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import naive_utc, parse_time, time_text

KEPT_S = 7 * 24 * 3600


def note_sweeps(clients: Clients, names: Iterable[str]) -> None:
    """Note that some patterns were swept now."""
    at = time_text(naive_utc(clients.clock.now())).encode()
    for name in names:
        clients.cache.set(_key(name), at, ttl_s=KEPT_S)


def last_sweeps(clients: Clients, names: Iterable[str]) -> Mapping[str, datetime.datetime]:
    """Return when patterns were last swept, as far as memcached knows."""
    stored = {name: clients.cache.get(_key(name)) for name in names}
    times = {name: _time(value) for name, value in stored.items() if value is not None}
    return {name: at for name, at in times.items() if at is not None}


def _key(name: str) -> str:
    return f"operations:swept:{name}"


def _time(value: bytes) -> datetime.datetime | None:
    try:
        return parse_time(value.decode()).replace(tzinfo=datetime.UTC)
    except ValueError:
        return None
