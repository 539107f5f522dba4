"""Updates of views, which a save sends to the rows that change."""

from __future__ import annotations

import datetime
import functools
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

import pydantic
from google.cloud import ndb

from rollforward.datastore.conversion.keys import key_kind
from rollforward.materialized_views.rows import Value

TABLE = r"^[a-z0-9_]+\.\d+\.\d+$"
# So many updates of one row travel together at most, and not more than a task can carry.
MAX_UPDATES = 100
MAX_UPDATES_BYTES = 90_000


@dataclass(frozen=True)
class Update:
    """A change of what one source contributes to one row; no measures: it leaves the row."""

    source: str
    sequence: int
    measures: dict[str, Value] | None
    is_first: bool  # The row does not know the source yet, as far as its marker tells.


@dataclass(frozen=True)
class Apply:
    """Updates of one row, and the outbox row that is acked once they are applied."""

    table: Annotated[str, pydantic.Field(pattern=TABLE)]
    row: str
    updates: Annotated[list[Update], pydantic.Field(max_length=MAX_UPDATES)]
    unacked: str


@dataclass(frozen=True)
class FoldTable:
    """A table whose waiting updates are to be applied; the time of the ring, 0: at once."""

    table: Annotated[str, pydantic.Field(pattern=TABLE)]
    tick_ms: Annotated[int, pydantic.Field(ge=0)] = 0


@dataclass(frozen=True)
class RowUpdates:
    """All updates of one row that are applied together, and when the newest was saved."""

    row: str
    updates: Sequence[Update]
    saved: datetime.datetime


@dataclass(frozen=True)
class Propagate:
    """A row that the views downstream of it have to take once more.

    Attributes:
        unacked: The outbox row that is acked once they have, or once there is a dead task; "": an
            older version has enqueued it.
    """

    table: Annotated[str, pydantic.Field(pattern=TABLE)]
    row: str
    unacked: str = ""


def parts_of(updates: Sequence[Update]) -> Iterator[list[Update]]:
    """Cut updates of one row into parts that travel together."""
    if len(updates) == 1:
        yield list(updates)
        return
    part: list[Update] = []
    room = MAX_UPDATES_BYTES
    for update in updates:
        size = len(json.dumps(asdict(update), ensure_ascii=False).encode())
        if part and (len(part) == MAX_UPDATES or size > room):
            yield part
            part, room = [], MAX_UPDATES_BYTES
        part.append(update)
        room -= size
    if part:
        yield part


def last_updates(updates: Sequence[Update]) -> dict[str, Update]:
    """Return the last update of each source."""
    newest: dict[str, Update] = {}
    for update in updates:
        earlier = newest.get(update.source)
        if earlier is None:
            newest[update.source] = update
        elif update.sequence > earlier.sequence:
            newest[update.source] = replace(update, is_first=earlier.is_first or update.is_first)
    return newest


@functools.lru_cache(maxsize=1_024)  # A save asks for it some four times.
def source_name(key: Any) -> str:
    """Return a source's key as text, its kind first."""
    return f"{key_kind(key)}:{key.urlsafe().decode()}"


def source_key(name: str) -> Any:
    """Return the key in a source's name."""
    return ndb.Key(urlsafe=name.rpartition(":")[2].encode())  # A kind may have a colon in it.
