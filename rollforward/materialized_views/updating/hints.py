"""Hints of one fold to the next: rows whose updates have own tasks, and the place it has reached.

Both are values in memcached. Without them folds try poison again, and begin at the first row.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from rollforward.outbox.entities import RowId
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import time_text
from rollforward.runtime.texts import has_unpaired_surrogate

OWN_TASKS_FOR_S = 3_600
PLACE_FOR_S = 3_600
# A tag, which Datastore indexes up to 1,500 bytes, and the one behind it.
MAX_PLACE_BYTES = 1_501
# Rows of a table that are remembered, the newest of them.
MAX_ROWS = 300
# Of a row's updates of one microsecond so many are remembered.
MAX_AT_ONCE = 100


class OwnTasks:
    """The rows of a table whose updates have own tasks, up to the newest of these.

    An older update that was committed later is taken for one of them, and is left to the sweep.
    """

    def __init__(self, clients: Clients, table: str) -> None:
        self._clients = clients
        self._name = f"views:own-tasks:{table}"
        rows = _stored(clients, self._name)
        items = rows.items() if isinstance(rows, dict) else ()
        self._latest: dict[str, tuple[str, list[str]]] = {
            tag: (newest[0], newest[1]) for tag, newest in items if _is_latest(newest)
        }

    def has(self, tag: str, id_: str) -> bool:
        """Return whether an update of a row has a task of its own."""
        if tag not in self._latest:
            return False
        at, ids = self._latest[tag]
        return _saved(id_) < at or id_ in ids

    def add(self, updates: Iterable[tuple[str, str]]) -> None:
        """Remember updates, given by tag and key."""
        for tag, id_ in updates:
            at, ids = self._latest.pop(tag, ("", []))
            saved = _saved(id_)
            if saved > at:
                at, ids = saved, []
            self._latest[tag] = (at, [*ids, id_][-MAX_AT_ONCE:] if saved == at else ids)
        rows = dict(list(self._latest.items())[-MAX_ROWS:])
        value = json.dumps(rows, ensure_ascii=False).encode()
        self._clients.cache.set(self._name, value, OWN_TASKS_FOR_S)


def _is_latest(value: Any) -> bool:
    """Return whether a stored value is the time of a row's newest updates, and their keys."""
    match value:
        case [str(), list(ids)]:
            return all(isinstance(id_, str) for id_ in ids)
    return False


class FoldStart:
    """The row at which the next fold of a table begins: where the last one ran out of time."""

    def __init__(self, clients: Clients, table: str) -> None:
        self._clients = clients
        self._name = f"views:place:{table}"
        tag = _stored(clients, self._name)
        # Another value would list rows of other tables.
        is_place = isinstance(tag, str) and tag.startswith(f"{table}:")
        self.start = tag if is_place and len(tag.encode()) <= MAX_PLACE_BYTES else ""
        self.next = self.start

    def pass_by(self, tag: str) -> None:
        """Let the next fold begin behind a row."""
        self.next = tag + "\0"

    def store(self) -> None:
        """Let the next fold know the place."""
        if self.next != self.start:
            value = json.dumps(self.next, ensure_ascii=False).encode()
            self._clients.cache.set(self._name, value, PLACE_FOR_S)


def _stored(clients: Clients, name: str) -> Any:
    """Return the value of a hint; None: there is none, or it could not be stored again."""
    try:
        value = json.loads(clients.cache.get(name) or b"null")
    except (ValueError, RecursionError):
        return None
    return None if has_unpaired_surrogate(json.dumps(value, ensure_ascii=False)) else value


def _saved(id_: str) -> str:
    return time_text(RowId.read(id_).created)
