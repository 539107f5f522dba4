"""Entities of views: rows derived from source entities, and their markers.

SourceMarker
    Key: the source's key + ("SourceMarker", "m"). Every save of its source updates it: the sequence
    of the last change, and the source's contributions to rows of tables. One for all views. It
    outlives its source, so that a source created again continues its sequence; a TTL policy on
    `forget_after` may delete it 60 days later (docs/howto/declare-a-view.md). A sequence begins at
    the time in microseconds, so no sequence of a deleted marker is used twice.
    Queries: none. Growth: one row per source.

ViewRow
    Key: "<table>:<row as JSON>". A table is one build of one view: "grades.1.3" is the third
    build of its first version. Visitors read these rows.
    Queries: ranges of keys. Growth: one row per group that has sources.

RowMarker
    Key: its row's key + "<source kind>:<source key>". Which change of which source the row holds.
    It is deleted when the source leaves the row.
    Queries: ranges of keys below a row; ranges of `ranks`, for the min, max and distinct values of
    a row. Single-property index. Growth: one row for each source in each row.

ViewCatalog
    Key: "<group>:<replica>". Which tables are read and which are being built. Every save reads one
    of the 64 equal copies in its transaction, so that none misses a table that begins; one row
    for all would be a bottleneck (docs/adr/0008).
    Queries: none. Growth: 64 rows per group of views.
"""

from __future__ import annotations

import functools
import hashlib
from typing import Any

from google.cloud import ndb

from rollforward.datastore.contexts import client_namespace, key_of_client
from rollforward.datastore.conversion.keys import child_key

CATALOG_REPLICAS = 64
# What sorts behind every text that begins with the same letters.
_LAST = "\U0010ffff"


class SourceMarker(ndb.Model):
    """The views' record of one source."""

    sequence = ndb.IntegerProperty(indexed=False, required=True)
    # {table: {row: [sequence, {measure: value}]}}
    contributions = ndb.JsonProperty(required=True)
    # {tag: the outbox row that was the last to bring it a change}, for tokens alone.
    sent = ndb.JsonProperty()
    forget_after = ndb.DateTimeProperty(indexed=False)


class ViewRow(ndb.Model):
    """A row of a table."""

    counts = ndb.JsonProperty(required=True)  # {source kind: how many sources}
    sums = ndb.JsonProperty(required=True)  # {measure: [how many, sum, sum of squares]}, exact
    fingerprint = ndb.TextProperty(required=True)  # Of its markers, in whatever order they came.
    applied = ndb.DateTimeProperty(indexed=False, required=True)  # The newest save it holds.


class RowMarker(ndb.Model):
    """A source in a row."""

    sequence = ndb.IntegerProperty(indexed=False, required=True)
    measures = ndb.JsonProperty(required=True)
    ranks = ndb.StringProperty(repeated=True)


class ViewCatalog(ndb.Model):
    """A copy of the list of a group's tables."""

    # {view: {"live": table, "building": table or null, "builds": number, "dropping": [tables]}}
    views = ndb.JsonProperty(required=True)
    # {table: {"kinds": [...], "ranked": [...], "is_awaited": bool}}: what each was begun with. One
    # that an older version of the app began is missing.
    begun_with = ndb.JsonProperty()


@functools.lru_cache(maxsize=1_024)  # A save asks for it some times.
def marker_key(source: Any) -> Any:
    """Return the key of a source's marker."""
    return child_key(source, SourceMarker, "m")


def row_key(table: str, row: str) -> Any:
    """Return the key of a table's row, given as JSON."""
    return key_of_client(ViewRow, f"{table}:{row}")


def table_and_row(key: Any) -> tuple[str, str]:
    """Return the table and the row, as JSON, of a row's key."""
    table, _, row = str(key.id()).partition(":")
    return table, row


def row_marker_key(row: Any, source: str) -> Any:
    """Return the key of a source's marker in a row."""
    return child_key(row, RowMarker, source)


def rows_from(prefix: str) -> Any:
    """Return the query for the rows whose names begin with a text: "<table>:" for a table's."""
    key = ViewRow._key
    low, high = (key_of_client(ViewRow, name) for name in (prefix, prefix + _LAST))
    query = ViewRow.query(key > low, key < high, namespace=client_namespace())
    return query.order(key)


def markers_of(row: Any, *, kind: str = "", after: Any = None) -> Any:
    """Return the query for a row's markers, by key; only of one kind of source, if given."""
    key = RowMarker._key
    query = RowMarker.query(ancestor=row).order(key)
    if kind:
        query = query.filter(key < row_marker_key(row, f"{kind};"))
    if after is not None or kind:
        query = query.filter(key > (after or row_marker_key(row, f"{kind}:")))
    return query


def markers_between(table: str) -> tuple[Any, Any]:
    """Return two keys that enclose the markers of all rows of a table."""
    return ndb.Key(ViewRow, f"{table}:"), ndb.Key(ViewRow, f"{table};")


def rank_prefix(row: Any, measure: str) -> str:
    """Return how a row's ranks by one measure begin: spread over the key space, and unique."""
    return hashlib.sha256(f"{row.id()}|{measure}".encode()).hexdigest()[:24] + "|"


def ranked(prefix: str, *, descending: bool = False) -> Any:
    """Return the query for markers by one of their ranks."""
    rank = RowMarker.ranks
    query = RowMarker.query(rank >= prefix, rank < prefix + _LAST, namespace=client_namespace())
    return query.order(-rank if descending else rank)


def catalog_key(group: str, replica: int) -> Any:
    """Return the key of a copy of a group's catalog."""
    return key_of_client(ViewCatalog, f"{group}:{replica:02d}")


def catalog_keys(group: str) -> list[Any]:
    """Return the keys of all copies."""
    return [catalog_key(group, replica) for replica in range(CATALOG_REPLICAS)]
