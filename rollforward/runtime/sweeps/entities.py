"""Marks of completed sweeps.

SweepMark
    Key: the sweep's name ("outbox", "fork-join:sums"). Written only by a sweep that met old rows,
    which it does not wake each time, so an idle app writes none.
    Queries: none. Growth: one row for each sweep.
"""

from __future__ import annotations

from typing import Any

from google.cloud import ndb


class SweepMark(ndb.Model):
    """The time at which the last completed sweep began."""

    at = ndb.DateTimeProperty(indexed=False, required=True)


def mark_key(sweep: str) -> Any:
    """Return the key of a sweep's mark."""
    return ndb.Key(SweepMark, sweep)
