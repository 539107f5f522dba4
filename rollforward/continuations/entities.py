"""Runs of a fan-out, and their pages.

ContinuationRun
    Key: the run's id, chosen by its caller (the same start, the same id).
    Queries: state = "running" and untold = true, by key: what the sweep walks; pages_until before
    now: whose pages it deletes; by started: the newest are listed. Single-property indexes.
    Growth: one row a run, for ever: it proves that this was done.

ContinuationPage
    Key: "<run id>:<chain>:<number>", fixed width, so a run's pages are one key range in
    order. Root entities: pages never contend with each other.
    Queries: that key range, for progress and for the sweep. No index but the key's.
    Growth: one row for each page of items; the receipts of its items are packed into it,
    one letter each, so an item costs a fraction of an entity write. The sweep deletes them
    30 days after their run has finished, when no retry of it needs them. A cancelled run keeps
    its own: it may be resumed.

ContinuationTotals
    Key: "<run id>:<slot>", eight slots a run. A run's totals are the sum of its slots, and of what
    attempts in progress have committed since. An attempt adds its share as it gives its page back,
    in that very commit: to a slot that its process prefers, or to a free one.
    Queries: none; read by key.
    Growth: at most eight rows a run, deleted with its pages.

ContinuationHeartbeat
    Key: "<page's key>:<attempt>". Apart from its page, so that a beat takes part in no
    transaction of the page's work, and an attempt that has lost its page can hide no other.
    Queries: none; read by key, when a lease seems to have run out.
    Growth: one row for each attempt that took longer than a third of its lease; deleted with
    its page.

ContinuationSweep
    Key: the name of the query.
    Queries: none; read by key.
    Growth: two rows.
"""

from __future__ import annotations

import datetime
from typing import Any

from google.cloud import ndb

from rollforward.datastore.contexts import refusing_key

RUNNING = "running"
FINISHED = "finished"
CANCELLED = "cancelled"

# The receipt of an item, one letter in ContinuationPage.receipts.
WAITING = "."
DONE = "d"
SKIPPED = "s"
RETRYING = "r"
FAILED = "f"
ENDED = DONE + SKIPPED + FAILED

# In so many rows the totals of a run are kept, each written about once in eight pages.
TOTALS_SLOTS = 8

# How long the pages of a run that has finished can be looked at, and its failed items retried.
PAGES_KEPT_FOR = datetime.timedelta(days=30)

_SUBJECT = "a run"


class ContinuationRun(ndb.Model):
    """One walk over a source."""

    job = ndb.TextProperty(required=True)
    args = ndb.TextProperty(required=True)
    state = ndb.StringProperty(required=True, default=RUNNING)
    spans = ndb.JsonProperty(required=True)  # A chain each: where it starts, where it stops.
    chains_ended = ndb.IntegerProperty(indexed=False, repeated=True)
    page_size = ndb.IntegerProperty(indexed=False, required=True)
    expected = ndb.IntegerProperty(indexed=False)
    max_rate = ndb.FloatProperty(indexed=False)  # Items a second; None: as fast as possible.
    retry_of = ndb.TextProperty()
    retried_by = ndb.TextProperty()
    started = ndb.DateTimeProperty(required=True)
    ended = ndb.DateTimeProperty(indexed=False)
    totals = ndb.JsonProperty()  # Once ended: what its pages add up to.
    # Its attempts keep ContinuationTotals; a run that an older version started has none.
    has_slots = ndb.BooleanProperty(indexed=False, default=False)
    untold = ndb.BooleanProperty()  # It has finished, and has yet to tell its job.
    closed = ndb.JsonProperty()  # A number a chain: up to that page all are closed. A hint.
    swept_to = ndb.JsonProperty()  # Chain and number of the page where the sweep goes on.
    pages_until = ndb.DateTimeProperty()  # Its pages are deleted after that.
    pages_gone = ndb.BooleanProperty(indexed=False, default=False)


class ContinuationPage(ndb.Model):
    """One page of a chain: the items it holds and what became of each."""

    after = ndb.TextProperty(required=True)  # Where the page starts: beyond this position.
    next = ndb.TextProperty()  # Where the next page starts; None: the chain ends here.
    load_from = ndb.TextProperty(required=True)  # What the source needs to load the items again.
    items = ndb.JsonProperty(required=True)
    receipts = ndb.TextProperty(required=True)
    reasons = ndb.JsonProperty(default={})  # Position in `items`, as text: why.
    attempts = ndb.IntegerProperty(indexed=False, default=0)
    owner = ndb.TextProperty()  # The attempt that works on it, until lease_expires_at.
    committed_by = ndb.TextProperty()  # The last commit of receipts: proof that it was made.
    lease_expires_at = ndb.DateTimeProperty(indexed=False)
    takeovers = ndb.IntegerProperty(indexed=False, default=0)  # Each doubles the lease.
    in_doubt = ndb.IntegerProperty(indexed=False, default=0)
    done = ndb.BooleanProperty(indexed=False, default=False)  # No item is open.
    closed = ndb.BooleanProperty(indexed=False, default=False)
    updated_at = ndb.DateTimeProperty(indexed=False, required=True)
    progressed_at = ndb.DateTimeProperty(indexed=False, required=True)  # Pinned, or an item ended.
    retry_at = ndb.DateTimeProperty(indexed=False)  # Deferred items wait until then.
    cost = ndb.JsonProperty(default={})
    # What a ContinuationTotals has of it: all, unless it has an owner or an older version wrote it.
    counted = ndb.JsonProperty()

    @property
    def chain(self) -> int:
        return int(self.key.id().split(":")[-2])

    @property
    def number(self) -> int:
        return int(self.key.id().split(":")[-1])

    def open_positions(self) -> list[int]:
        """Return the positions of the items that have not ended."""
        return [i for i, letter in enumerate(self.receipts) if letter not in ENDED]


class ContinuationTotals(ndb.Model):
    """A part of a run's totals."""

    sums = ndb.JsonProperty(required=True)
    lately = ndb.JsonProperty(default=[])  # Second and items that ended in it, of the last few.
    updated_at = ndb.DateTimeProperty(indexed=False, required=True)


class ContinuationHeartbeat(ndb.Model):
    """An attempt that lasts is alive, and keeps its lease until then."""

    expires_at = ndb.DateTimeProperty(indexed=False, required=True)


class ContinuationSweep(ndb.Model):
    """Position of the sweep in its round, where the next sweep continues."""

    after = ndb.TextProperty(required=True)


def run_key(run_id: str) -> Any:
    """Return the key of a run."""
    return refusing_key(_SUBJECT, ContinuationRun, run_id)


def page_key(run_id: str, chain: int, number: int) -> Any:
    """Return the key of a page; fixed width, so that keys sort as pages do."""
    return refusing_key(_SUBJECT, ContinuationPage, f"{run_id}:{chain:04d}:{number:08d}")


def totals_keys(run_id: str) -> list[Any]:
    """Return the keys of the rows that add up to a run's totals."""
    return [
        refusing_key(_SUBJECT, ContinuationTotals, f"{run_id}:{slot}")
        for slot in range(TOTALS_SLOTS)
    ]


def heartbeat_key(page: str, owner: str) -> Any:
    """Return the key of an attempt's heartbeat, by its page's key and its own id."""
    return refusing_key(_SUBJECT, ContinuationHeartbeat, f"{page}:{owner}")


def pages_of(run_id: str, *, start_after: str = "") -> Any:
    """Return the query for a run's pages, in order, those behind the page `after`."""
    lower = refusing_key(_SUBJECT, ContinuationPage, start_after or f"{run_id}:")
    beyond = refusing_key(_SUBJECT, ContinuationPage, f"{run_id};")
    kind = ContinuationPage
    return kind.query(kind._key > lower, kind._key < beyond).order(kind._key)


def pages_of_chain(run_id: str, chain: int, from_number: int) -> Any:
    """Return the query for the pages of a chain, in order, from a number on."""
    beyond = refusing_key(_SUBJECT, ContinuationPage, f"{run_id}:{chain:04d};")
    kind = ContinuationPage
    query = kind.query(kind._key >= page_key(run_id, chain, from_number), kind._key < beyond)
    return query.order(kind._key)


def heartbeats_of(run_id: str) -> Any:
    """Return the query for the heartbeats of a run's attempts."""
    kind = ContinuationHeartbeat
    lower, upper = (
        refusing_key(_SUBJECT, kind, f"{run_id}:"),
        refusing_key(_SUBJECT, kind, f"{run_id};"),
    )
    return kind.query(kind._key > lower, kind._key < upper)


def running_runs(*, start_after: str = "") -> Any:
    """Return the query for the runs that have not ended, by id, those behind the id `after`."""
    query = ContinuationRun.query(ContinuationRun.state == RUNNING).order(ContinuationRun._key)
    return query.filter(ContinuationRun._key > run_key(start_after)) if start_after else query


def untold_runs(*, start_after: str = "") -> Any:
    """Return the query for the runs that have yet to tell their job, as `running_runs` does."""
    query = ContinuationRun.query(ContinuationRun.untold == True)  # noqa: E712
    query = query.order(ContinuationRun._key)
    return query.filter(ContinuationRun._key > run_key(start_after)) if start_after else query


def latest_runs(*, started_before: datetime.datetime | None = None) -> Any:
    """Return the query for all runs, the newest first, those started before a time."""
    started = ContinuationRun.started
    query = ContinuationRun.query().order(-started)
    return query.filter(started < started_before) if started_before else query


def runs_started_at(at: datetime.datetime) -> Any:
    """Return the query for the runs that were started at the very same time."""
    return ContinuationRun.query(ContinuationRun.started == at).order(ContinuationRun._key)


def expired_runs(now_utc: datetime.datetime) -> Any:
    """Return the query for the runs whose pages may be deleted, the oldest first."""
    until = ContinuationRun.pages_until
    # The lower bound keeps out what has no such time: it sorts first.
    begin = datetime.datetime(2000, 1, 1)  # noqa: DTZ001
    return ContinuationRun.query(until > begin, until < now_utc).order(until)


def sweep_key(name: str) -> Any:
    """Return the key of the position of a sweep."""
    return ndb.Key(ContinuationSweep, name)
