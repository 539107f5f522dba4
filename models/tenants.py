"""Tenants: rushes on a queue that they share, and when each of their tasks was at work.

TenantRush
    Key: the id of the form that began it. Its numbers and rules, and how much of the flood is sent.
    Queries: newest first, by `created`. Single-property index.
    Growth: one row for each rush, of which the newest 12 are kept; a new one deletes the others.

TenantTally
    Key: "<rush>|<tenant>|<shard>", fixed width. The begin and the end of each task that is done,
    written by the tasks, which know nothing of lanes and queues.
    Queries: none; read by key. Growth: 16 rows for the tenant that floods, one for each other one.
"""

from __future__ import annotations

import struct
from typing import Any

from google.cloud import ndb

# Begin and end of a task in milliseconds since its rush began, one more: 0 means not yet.
_TIMES = struct.Struct("<II")


class TenantRush(ndb.Model):
    """Tasks of tenants that one form asked for."""

    created = ndb.DateTimeProperty(required=True)
    way = ndb.TextProperty(required=True)  # In lanes, or in one line.
    flood = ndb.IntegerProperty(indexed=False, required=True)  # Tasks of the first tenant.
    behind = ndb.IntegerProperty(indexed=False, required=True)  # Further tenants.
    tasks = ndb.IntegerProperty(indexed=False, required=True)  # Of each further tenant.
    chosen = ndb.TextProperty(required=True)  # The tenant with a rule of its own.
    rule = ndb.TextProperty(required=True)
    pace = ndb.TextProperty(required=True)
    dead = ndb.IntegerProperty(indexed=False, required=True)  # Tasks that can never work.
    sent = ndb.IntegerProperty(indexed=False, required=True)  # Of the flood.
    behind_at = ndb.DateTimeProperty(indexed=False)  # When the further ones came; None: not yet.


class TenantTally(ndb.Model):
    """The tasks of a tenant that are done, or a part of them."""

    times = ndb.BlobProperty(required=True)
    repeats = ndb.IntegerProperty(indexed=False, required=True)  # Runs of what was done already.

    def note(self, slot: int, began_ms: int, ended_ms: int) -> None:
        """Note that a task is done, once; a further run of it is counted."""
        if slot in self.done():
            self.repeats += 1
            return
        size = _TIMES.size
        times = bytearray(self.times.ljust((slot + 1) * size, b"\0"))
        _TIMES.pack_into(times, slot * size, began_ms + 1, ended_ms + 1)
        self.times = bytes(times)

    def done(self) -> dict[int, tuple[int, int]]:
        """Return the begin and the end of each task that is done, by its slot."""
        pairs = enumerate(_TIMES.iter_unpack(self.times))
        return {slot: (began - 1, ended - 1) for slot, (began, ended) in pairs if ended}


def rush_key(rush: str) -> Any:
    """Return the key of a rush."""
    return ndb.Key(TenantRush, rush)


def tally_key(rush: str, tenant: str, shard: int) -> Any:
    """Return the key of a tally."""
    return ndb.Key(TenantTally, f"{rush}|{tenant}|{shard:02d}")


def newest_rushes() -> Any:
    """Return the query for rushes, newest first."""
    return TenantRush.query().order(-TenantRush.created)
