"""How updates of views travel from a save to their row, and what still is on its way.

Either each is an unacked row of the outbox, with a task of its own, paced row by row; or, with
`fan_in = True`, it is a work item in the fork-join queue of its row: however many sources change,
the row is written once a batch. Both are written by the save's own transaction and deleted by
the one that changes the row. So what waits can be seen, and its age is known. What is parked waits
for a person, and is seen as well: the unacked row stays, and so does the item, under its tag.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from google.cloud import ndb

from models import fork_join
from models.fork_join import EpochId, PackId, WorkPack, packs_tagged, packs_tagged_under
from models.outbox import OutboxTask, RowId, outbox_key, rows_of_tag, rows_of_tags
from pipelines.materialized_views.catalog import View
from pipelines.materialized_views.updates import Update
from pipelines.runtime.clients import Clients

# 3,600 updates of a row wait by then at one a second; what comes above that rate is not paced.
MAX_TURN_MS = 3_600_000


@dataclass(frozen=True)
class QueuedUpdate:
    """An update in the fork-join queue of its row, and when it was saved (UTC, naive)."""

    update: Update
    saved: datetime.datetime


def waiting_for_row(view: type[View], row: str, most: int) -> list[Any]:
    """Return the keys of what waits for one row of a table."""
    found: list[Any] = rows_of_tag(row).fetch(most, keys_only=True)
    if view.fan_in:
        found += packs_tagged(row).fetch(most, keys_only=True)
    return found[:most]


def waiting_for_rows(view: type[View], beginning: str, most: int) -> list[Any]:
    """Return the keys of what waits for the rows of a table that begin alike."""
    found: list[Any] = rows_of_tags(beginning).fetch(most, keys_only=True)
    if view.fan_in:
        found += packs_tagged_under(beginning).fetch(most, keys_only=True)
    return found[:most]


def has_pending(row: str) -> bool:
    """Return whether anything waits for a row, whichever way it travels."""
    queries = (rows_of_tag(row), packs_tagged(row))
    return any(query.fetch(1, keys_only=True) for query in queries)


def saved_at(key: Any) -> datetime.datetime:
    """Return when what waits under a key was saved; of a work item, when its batch was opened."""
    if _is_pack(key.id()):
        return EpochId.parse(PackId.parse(key.id()).epoch).opened
    return RowId.parse(key.id()).created


def left_of(names: Collection[str]) -> list[OutboxTask | WorkPack]:
    """Return what is left of the updates that a token names: what waits, or is parked."""
    packs = [name for name in names if _is_pack(name)]
    rows = [name for name in names if not _is_pack(name)]
    held = [row for row in ndb.get_multi(map(outbox_key, rows)) if row is not None]
    return [*held, *(fork_join.left_of(packs) if packs else [])]


def check_travelling(name: str) -> None:
    """Check that a text can name an update on its way.

    Raises:
        ValueError: it cannot.
    """
    if _is_pack(name):
        EpochId.parse(PackId.parse(name).epoch)
    elif not RowId.parse(name).is_unacked:
        raise ValueError("a token names unacked rows")


def _is_pack(name: str) -> bool:
    """Tell a pack's key from an outbox row's, which begins with one digit."""
    return name.find("|") > 1


def turn(clients: Clients, view: type[View], tag: str) -> datetime.datetime | None:
    """Return when the next update of a row has its turn; None: now.

    A row's turns are counted in memcached, in milliseconds. Without it they come as they come. They
    lie between now and an hour ahead: beyond that a clock was wrong, and they begin anew.
    """
    if view.row_rate is None:
        return None
    now = clients.clock.now()
    now_ms = int(now.timestamp() * 1000)
    each_ms = max(1, round(1000 / view.row_rate))
    key = f"views:turn:{tag}"
    turn_ms = clients.cache.incr(key, each_ms, ttl_s=3600)
    if turn_ms is None:
        return None
    ahead_ms = turn_ms - now_ms - each_ms * view.row_burst
    if turn_ms < now_ms or ahead_ms > MAX_TURN_MS:
        clients.cache.set(key, str(now_ms).encode(), ttl_s=3600)
        return None
    return now + datetime.timedelta(milliseconds=ahead_ms) if ahead_ms > 0 else None
