"""Task batches: their members, how each of them ended, and their totals.

BatchState
    Key: "<name of the declaration>:<id>". The totals of all members; one transaction on it decides
    that the batch is complete. Written by each fold of ends and by each change of the whole, never
    per member.
    Queries: due before a time, the first to be due first: what the sweep is to wake, of those that
    run, or whose callback is not acknowledged. remove_at before a time likewise, of those that do
    not run. state = "running", by key: how many there
    are. By created: the newest are listed. parent = a batch's key, by key: the batches nested in
    it.
    member = a member, by key: the batches that it has become.
    Single-property indexes.
    Growth: one row for each batch. Some time after its completion (`keep_s`) all other rows of the
    batch are deleted, and it stays for 32 days more, so that a task that comes late finds that the
    batch is gone, and does not create it again.

BatchWork
    Key: "<batch's key>:<addition>:<number>", fixed width: an addition is what one call of
    `populate` adds, and its rows are one key range in order. Number 0 is written in the commit that
    counts the addition's members, and proves that it was counted. The others are stored before, and
    their keys end with "-<digest of the addition>": a call that broke off, and one that adds other
    members under the same key, write different rows. Those with the digest of number 0 count.
    Queries: none; read by key. Growth: one row for up to 1,000 members.

BatchPage
    Key: that of the work whose members it is for: what became of each, one letter a member.
    Queries: ranges of keys: the pages of a batch, or of an addition, in order.
    Growth: one row for up to 1,000 members.

BatchResults
    Key: "<page's key>:<number>", fixed width: what the members that one fold has ended returned, or
    why they failed.
    Queries: ranges of keys: the results of a page, in order. Growth: one row for each fold that
    ended members with results or errors, in each page that it touched.
"""

from __future__ import annotations

import datetime
from typing import Any

from google.cloud import ndb

from rollforward.datastore.contexts import refuse_other_namespace, refusing_key

EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC).replace(tzinfo=None)
# Of a batch.
RUNNING, COMPLETED, REMOVED = "running", "completed", "removed"
# What came of a batch that has completed.
SUCCEEDED, FAILED, CANCELLED = "succeeded", "failed", "cancelled"
# Of a member, one letter in BatchPage.letters. One that is waiting in a batch which has completed
# was cancelled.
WAITING, DONE, HAS_FAILED = ".", "d", "f"

_SUBJECT = "a batch"


class BatchState(ndb.Model):
    """One batch: how many members it has, and how many have ended."""

    state = ndb.StringProperty(required=True, default=RUNNING)
    sealed = ndb.BooleanProperty(indexed=False, default=False)
    members = ndb.IntegerProperty(indexed=False, default=0)
    done = ndb.IntegerProperty(indexed=False, default=0)
    failed = ndb.IntegerProperty(indexed=False, default=0)
    cancelled = ndb.IntegerProperty(indexed=False, default=0)
    generation = ndb.IntegerProperty(indexed=False, default=1)  # One more whenever it is re-opened.
    # Ends of this generation, and of those before, count no more: their members were cancelled.
    cancelled_through = ndb.IntegerProperty(indexed=False, default=0)
    outcome = ndb.TextProperty()
    # As declared when it was created: what completes it need not know the declaration.
    policy = ndb.TextProperty(required=True)
    done_at = ndb.IntegerProperty(indexed=False)
    callback_path = ndb.TextProperty()
    callback_queue = ndb.TextProperty()
    keep_s = ndb.FloatProperty(indexed=False, required=True)
    # The member that ends when this batch does.
    parent = ndb.StringProperty()
    parent_page = ndb.TextProperty()
    parent_position = ndb.IntegerProperty(indexed=False)
    member = ndb.StringProperty()  # The same as one text: its page and its position there.
    parent_generation = ndb.IntegerProperty(indexed=False)
    created = ndb.DateTimeProperty(required=True)
    completed = ndb.DateTimeProperty(indexed=False)
    # When the sweep looks for a member or a callback that got lost; None: the batch waits for none.
    due = ndb.DateTimeProperty()
    # When its rows are deleted, and then its mark; None: it runs.
    remove_at = ndb.DateTimeProperty()
    wakes = ndb.IntegerProperty(indexed=False, default=0)
    # By generation, as text: what its callback gets, as long as that is not acknowledged.
    unacked = ndb.JsonProperty(default={})
    changed_by = ndb.TextProperty()  # The transaction that has cancelled or re-opened it last.

    @property
    def waiting(self) -> int:
        """Return how many members have not ended."""
        return int(self.members - self.done - self.failed - self.cancelled)


class BatchWork(ndb.Model):
    """Up to 1,000 members: the tasks that they are, and their arguments."""

    # Path and queue of each task that some member is, and the key of the lane that it waits in.
    tasks = ndb.JsonProperty(required=True)
    members = ndb.JsonProperty(required=True)  # Of each: its place in `tasks`, its body.
    first = ndb.IntegerProperty(
        indexed=False, required=True
    )  # How many of its addition come before.
    size = ndb.IntegerProperty(indexed=False)  # Of the whole addition, in number 0.
    digest = ndb.TextProperty(required=True)  # Of the whole addition.
    # The same in number 0, without queues and arguments as by default: two versions agree on it.
    said = ndb.TextProperty()
    added_by = ndb.TextProperty()  # In number 0, the transaction that counts the addition.
    added = ndb.DateTimeProperty(indexed=False)  # In number 0, when that was.


class BatchPage(ndb.Model):
    """The outcomes of up to 1,000 members."""

    letters = ndb.TextProperty(required=True)
    # By position, as text: the generation in which its failure was counted; left out: the first.
    failed_in = ndb.JsonProperty(default={})
    results = ndb.IntegerProperty(indexed=False, default=0)  # How many rows of results there are.

    def is_open(self, position: int, generation: int) -> bool:
        """Return whether a member has not ended in a generation, nor for good before."""
        if not 0 <= position < len(self.letters):
            return False
        letter = self.letters[position]
        if letter == HAS_FAILED:
            return int(self.failed_in.get(str(position), 1)) < generation
        return bool(letter == WAITING)

    def end(self, position: int, letter: str, generation: int) -> None:
        """Note how a member has ended."""
        self.letters = f"{self.letters[:position]}{letter}{self.letters[position + 1 :]}"
        failed_in = {at: number for at, number in self.failed_in.items() if at != str(position)}
        if letter == HAS_FAILED and generation > 1:
            failed_in[str(position)] = generation
        self.failed_in = failed_in


class BatchResults(ndb.Model):
    """Results and errors of some members of a page."""

    results = ndb.JsonProperty(required=True)  # Position, generation and what it is, of each.


def state_key(batch: str) -> Any:
    """Return the key of a batch, by the name of its declaration and its id."""
    return refusing_key(_SUBJECT, BatchState, batch)


def work_key(page: str) -> Any:
    """Return the key of the work of a page."""
    return refusing_key(_SUBJECT, BatchWork, page)


def page_key(page: str) -> Any:
    """Return the key of a page."""
    return refusing_key(_SUBJECT, BatchPage, page)


def page_id(batch: str, addition: str, number: int, digest: str) -> str:
    """Return the id of a page; fixed width, so that keys sort as pages do.

    >>> page_id("prints:spring", "c0ffee", 0, "5eed")
    'prints:spring:c0ffee:000000'
    >>> page_id("prints:spring", "c0ffee", 3, "5eed")
    'prints:spring:c0ffee:000003-5eed'
    """
    return f"{batch}:{addition}:{number:06d}" + (f"-{digest}" if number else "")


def first_page_of(page: str) -> str:
    """Return the first page of the addition that a page belongs to.

    >>> first_page_of("prints:spring:c0ffee:000003-5eed")
    'prints:spring:c0ffee:000000'
    """
    return f"{page.rpartition(':')[0]}:{0:06d}"


def is_counted(work: BatchWork | None, first_page: BatchWork | None) -> bool:
    """Return whether a page was counted, by its work and the work of its addition's first page."""
    return work is not None and first_page is not None and work.digest == first_page.digest


def results_key(page: str, number: int) -> Any:
    """Return the key of some results of a page."""
    return refusing_key(_SUBJECT, BatchResults, f"{page}:{number:06d}")


def pages_within(prefix: str, *, start_after: str = "") -> Any:
    """Return the query for the pages of a batch or an addition, in order, those behind a page."""
    return _within(BatchPage, prefix, start_after)


def work_within(prefix: str) -> Any:
    """Return the query for the work of a batch or an addition, in order."""
    return _within(BatchWork, prefix, "")


def results_within(prefix: str) -> Any:
    """Return the query for the results of a batch, an addition or a page, in order."""
    return _within(BatchResults, prefix, "")


def due_batches(now_utc: datetime.datetime) -> Any:
    """Return the query for the batches that are to be woken, the first to be due first."""
    return _before(BatchState.due, now_utc)


def removable_batches(now_utc: datetime.datetime) -> Any:
    """Return the query for the batches that are to be removed, the first to be due first."""
    return _before(BatchState.remove_at, now_utc)


def running_batches() -> Any:
    """Return the query for the batches that are not complete, by key."""
    return BatchState.query(BatchState.state == RUNNING).order(BatchState._key)


def latest_batches(created_before: datetime.datetime | None = None) -> Any:
    """Return the query for all batches, the newest first, those created before a time."""
    created: Any = BatchState.created
    query = BatchState.query().order(-created)
    return query.filter(created < created_before) if created_before else query


def batches_created_at(at: datetime.datetime) -> Any:
    """Return the query for the batches that were created at the very same time."""
    return BatchState.query(BatchState.created == at).order(BatchState._key)


def batches_in(parent: str) -> Any:
    """Return the query for the batches that are nested in a batch, by key."""
    refuse_other_namespace(_SUBJECT)
    return BatchState.query(BatchState.parent == parent).order(BatchState._key)


def batches_of(member: str) -> Any:
    """Return the query for the batches that a member has become, by key."""
    refuse_other_namespace(_SUBJECT)
    return BatchState.query(BatchState.member == member).order(BatchState._key)


def _before(time: Any, now_utc: datetime.datetime) -> Any:
    # Datastore sorts None before each time: a range with one end might find what has none.
    return BatchState.query(time >= EPOCH, time <= now_utc).order(time)


def _within(kind: type[ndb.Model], prefix: str, start_after: str) -> Any:
    names = (start_after or f"{prefix}:", f"{prefix};")
    lower, upper = (refusing_key(_SUBJECT, kind, name) for name in names)
    return kind.query(kind._key > lower, kind._key < upper).order(kind._key)
