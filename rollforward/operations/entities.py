"""Entries of the audit trail, and deliveries of pings.

AuditEntry
    Key: random.
    Queries: at < a time, by at descending: the newest first; at <= a time, by at: those to delete.
    Single-property index.
    Growth: one row for each change that an operator asked for; deleted after 180 days.
PingDelivery
    Key: the id of the ping and the queue.
    Queries: expires <= a time, by expires: those to delete. Single-property index.
    Growth: one row for each queue that a ping came through; deleted after a day.
"""

from __future__ import annotations

import datetime
from typing import Any

from google.cloud import ndb

AUDIT_KEPT_FOR = datetime.timedelta(days=180)
BEGUN, DONE = "begun", "done"


class AuditEntry(ndb.Model):
    """One change that an operator asked for."""

    at = ndb.DateTimeProperty(required=True)
    operator = ndb.TextProperty(required=True)
    role = ndb.TextProperty(required=True)
    action = ndb.TextProperty(required=True)
    target = ndb.TextProperty(required=True)
    # BEGUN: its process died, or is at it; the change may have been made.
    result = ndb.TextProperty(required=True, default=BEGUN)
    ended = ndb.DateTimeProperty(indexed=False)


class PingDelivery(ndb.Model):
    """The delivery of a ping through one queue."""

    seconds = ndb.FloatProperty(required=True, indexed=False)  # From its creation on.
    expires = ndb.DateTimeProperty(required=True)


def latest_entries(until: datetime.datetime | None = None) -> Any:
    """Return the query for entries, the newest first, those before a time."""
    at: Any = AuditEntry.at
    query = AuditEntry.query().order(-at)
    return query.filter(at < until) if until else query


def expired_entries(now_utc: datetime.datetime) -> Any:
    """Return the query for the entries that are kept no more."""
    at: Any = AuditEntry.at
    return AuditEntry.query(at <= now_utc - AUDIT_KEPT_FOR).order(at)


def expired_ping_deliveries(now_utc: datetime.datetime) -> Any:
    """Return the query for the deliveries of pings that are kept no more."""
    expires: Any = PingDelivery.expires
    return PingDelivery.query(expires <= now_utc).order(expires)
