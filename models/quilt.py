"""Quilts: squares painted by tasks, and the batches that complete them.

Quilt
    Key: the id of the form that asked for it. Its pattern, and the result of its completion.
    Queries: newest first, by `created`. Single-property index.
    Growth: one row for each quilt, of which the newest 40 are kept; a new one deletes the others.

QuiltSquare
    Key: "<quilt>|<number>", fixed width. Inserted when the square is painted, and never written
    again.
    Queries: none; read by key. Growth: one row for each square of each quilt.

QuiltPiece
    Key: "<quilt>|<number>". The nested batch that paints a piece of a quilt that has several.
    Queries: none; read by key. Growth: four rows for each quilt of several pieces.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from google.cloud import ndb


class Quilt(ndb.Model):
    """A quilt, and when its batch was complete."""

    created = ndb.DateTimeProperty(required=True)
    edge = ndb.IntegerProperty(indexed=False, required=True)  # Squares along a side of a piece.
    pieces = ndb.IntegerProperty(indexed=False, required=True)  # 1, or 4 that are nested batches.
    palette = ndb.TextProperty(required=True)
    pattern = ndb.TextProperty(required=True)
    pace_ms = ndb.IntegerProperty(indexed=False, required=True)  # What a square takes at least.
    finished = ndb.DateTimeProperty(indexed=False)
    outcome = ndb.TextProperty()
    completion = ndb.TextProperty()  # Of which completion these are: the idempotency guard.


class QuiltSquare(ndb.Model):
    """A square that is painted."""

    painted = ndb.DateTimeProperty(indexed=False, required=True)
    worker = ndb.IntegerProperty(indexed=False, required=True)  # The process that painted it.
    took_ms = ndb.IntegerProperty(indexed=False, required=True)
    # How often its task had begun by then, as counted in memcached.
    deliveries = ndb.IntegerProperty(indexed=False, required=True)
    task = ndb.TextProperty()  # The id of its task.


class QuiltPiece(ndb.Model):
    """A piece of a quilt that is a batch of its own."""

    batch = ndb.TextProperty(required=True)


def quilt_key(quilt: str) -> Any:
    """Return the key of a quilt."""
    return ndb.Key(Quilt, quilt)


def square_key(quilt: str, number: int) -> Any:
    """Return the key of a square."""
    return ndb.Key(QuiltSquare, f"{quilt}|{number:05d}")


def piece_key(quilt: str, number: int) -> Any:
    """Return the key of a piece."""
    return ndb.Key(QuiltPiece, f"{quilt}|{number}")


def newest_quilts() -> Any:
    """Return the query for quilts, newest first."""
    return Quilt.query().order(-Quilt.created)


def rows_of(quilt: str, squares: int, pieces: int) -> Iterable[Any]:
    """Return the keys of all that there is of a quilt, the quilt itself last."""
    yield from (square_key(quilt, number) for number in range(squares))
    yield from (piece_key(quilt, number) for number in range(pieces))
    yield quilt_key(quilt)
