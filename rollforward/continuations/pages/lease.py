"""The lease of one attempt at a page: taken with the pin, kept by heartbeats, given back.

The attempt that holds it may commit to the page. It expires a few seconds after the last commit or
heartbeat, so a killed attempt costs no longer than that. An attempt that takes over a lease that
has expired doubles the next ones, since heartbeats may not come through.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward.continuations.entities import (
    ContinuationHeartbeat,
    ContinuationPage,
    ContinuationRun,
    heartbeat_key,
)
from rollforward.continuations.jobs import Job
from rollforward.continuations.pages.slots import RunSlots, SlotsBusyError, slots_of
from rollforward.datastore.transactions import RETRIED, transact
from rollforward.datastore.versions import CHANGED, commit_if_current
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import CLOCK_SKEW_S, naive_utc
from rollforward.tasks.errors import Retry

# How much work may be done before its receipts are committed: what a crash can repeat.
MAX_UNRECEIPTED = 10
# Of a lease there are this many heartbeats, so that one may fail.
BEATS_PER_LEASE = 3
BEAT_TIMEOUT_S = 2.0
MAX_DOUBLINGS = 10
# Another process has written the page, or the slot.
_CONFLICTS = (rpc_errors.AlreadyExists, *CHANGED)


class LeasedError(Retry):
    """Another attempt works on the page, and has shown that it is alive."""

    def __init__(self, page: str, expires_at: datetime.datetime) -> None:
        super().__init__(f"page {page} is being worked on")
        self.expires_at = expires_at


class PageLease:
    """The right of one attempt to work on its page."""

    def __init__(
        self, clients: Clients, job: Job[Any, Any], run: ContinuationRun, key: Any
    ) -> None:
        now_utc = naive_utc(clients.clock.now())
        self.owner = clients.new_owner()
        self.deadline = now_utc + datetime.timedelta(seconds=job.deadline_s)
        self._clients = clients
        self._job = job
        self._key = key
        # None: an older version has started the run, and its pages are read instead.
        self._slots = slots_of(clients, run.key.id(), self.owner) if run.has_slots else None
        self._lasts_s = job.lease_s
        self._expires_at: datetime.datetime | None = None  # By the last commit.
        self._kept_to = now_utc  # By the last heartbeat.
        # The page and its version, as long as every commit since it was read is known.
        self._latest: tuple[ContinuationPage, int] | None = None

    def take(self, draft: ContinuationPage | None) -> tuple[ContinuationPage, bool]:
        """Return the page, leased, and whether it is `draft`, which is used when there is no row.

        A page whose items have all ended comes back without a lease.

        Raises:
            LeasedError: another attempt works on it.
        """
        if draft is not None and self._insert(draft):
            page, is_draft = draft, True
        else:
            page, is_draft = transact(lambda: self._take(draft))
        self._expires_at = page.lease_expires_at
        return page, is_draft

    def _insert(self, draft: ContinuationPage) -> bool:
        """Write a page that has no row, in one round trip; return whether that is known."""
        self.renew(draft)
        self.finish(draft, is_over=False)
        draft.counted = None
        try:
            self._write(draft, None)
        except (*_CONFLICTS, *RETRIED, SlotsBusyError):
            return False
        return True

    def _take(self, draft: ContinuationPage | None) -> tuple[ContinuationPage, bool]:
        page = self._key.get()
        is_draft = page is None
        if page is None:
            if draft is None:
                raise Retry(f"page {self._key.id()} has gone")
            page = draft
        if page.done and not is_draft:
            return page, False
        self._check_free(page)
        self.renew(page)
        if is_draft:
            page.counted = None
            self.finish(page, is_over=False)
        self._put(page)
        return page, is_draft

    def _check_free(self, page: ContinuationPage) -> None:
        """Check that no other attempt works on a page; take it over from one that is silent."""
        if page.owner in (None, self.owner):
            return
        if not self._clients.processes.is_dead(page.owner):
            self._check_silent(page)
            page.takeovers += 1  # It may live, and its heartbeats may not come through.
        if self._job.side_effect is not None:
            # Its owner died without a word: what it did last may have no receipt.
            page.in_doubt += min(MAX_UNRECEIPTED, len(page.open_positions()))

    def _check_silent(self, page: ContinuationPage) -> None:
        if self._is_alive(page, page.lease_expires_at):
            raise LeasedError(self._key.id(), page.lease_expires_at)
        sign = heartbeat_key(self._key.id(), page.owner).get()
        if sign is not None and self._is_alive(page, sign.expires_at):
            raise LeasedError(self._key.id(), sign.expires_at)

    def _is_alive(self, page: ContinuationPage, expires_at: datetime.datetime | None) -> bool:
        now_utc = naive_utc(self._clients.clock.now())
        # A lease beyond that is from a clock that was far ahead, and means nothing.
        longest = now_utc + datetime.timedelta(seconds=self._length_s(page) + CLOCK_SKEW_S)
        return expires_at is not None and now_utc < expires_at <= longest

    def _length_s(self, page: ContinuationPage) -> float:
        """Return how long the lease of a page is.

        If heartbeats cannot come through, work that lasts would be taken over again and again:
        each time the next one gets twice as long.
        """
        doubled_s: float = self._job.lease_s * 2 ** min(page.takeovers, MAX_DOUBLINGS)
        return max(self._job.lease_s, min(doubled_s, self._job.deadline_s))

    def renew(self, page: ContinuationPage) -> None:
        """Lease a page from now on, in a transaction."""
        now_utc = naive_utc(self._clients.clock.now())
        self._lasts_s = self._length_s(page)
        page.owner = self.owner
        page.updated_at = now_utc
        page.lease_expires_at = now_utc + datetime.timedelta(seconds=self._lasts_s)

    def finish(self, page: ContinuationPage, *, is_over: bool) -> None:
        """Give a page's lease back if the attempt is over, or the page's work, in a transaction."""
        if is_over or page.done:
            page.owner = None
            page.lease_expires_at = None

    def commit(
        self, change: Callable[[ContinuationPage | None], ContinuationPage], *, is_alone: bool
    ) -> ContinuationPage:
        """Write the page that `change` makes of the one that is stored, and return it.

        That takes one round trip where no other process has written the page since this lease
        did, and a transaction where one has, or where a reply was lost.

        Args:
            change: Changes nothing but the page; it may be called twice.
            is_alone: The commit writes nothing but the page.
        """
        page = self._commit_if_current(change) if is_alone else None
        if page is None:
            page = transact(lambda: self._change(change))
        self._expires_at = page.lease_expires_at
        return page

    def _commit_if_current(
        self, change: Callable[[ContinuationPage | None], ContinuationPage]
    ) -> ContinuationPage | None:
        latest, self._latest = self._latest, None
        if latest is None:
            return None
        page = change(latest[0])
        try:
            self._write(page, latest[1])
        except (*_CONFLICTS, *RETRIED, SlotsBusyError) as error:
            if self._slots is not None and isinstance(error, (*_CONFLICTS, rpc_errors.Aborted)):
                self._slots.prefer_next()
            return None
        return page

    def _write(self, page: ContinuationPage, version: int | None) -> None:
        """Write the page, whose version is known, and count it if it is given back."""
        if self._slots is None or page.owner is not None:
            [written] = commit_if_current(self._clients.datastore, puts=[(page, version)])
        else:
            written = self._count(self._slots, page, version)
        self._latest = (page, written)

    def _count(self, slots: RunSlots, page: ContinuationPage, version: int | None) -> int:
        with slots.one() as slot:
            rows = slot.count(self._clients, page)
            written, *counted = commit_if_current(
                self._clients.datastore, puts=[(page, version), *rows]
            )
            if counted:
                slot.note_version(counted[0])
        return written

    def _change(
        self, change: Callable[[ContinuationPage | None], ContinuationPage]
    ) -> ContinuationPage:
        page = change(self._key.get())
        self._put(page)
        return page

    def _put(self, page: ContinuationPage) -> None:
        """Write the page, and count it if it is given back, in a transaction."""
        self._latest = None
        rows: list[ndb.Model] = []
        if self._slots is not None and page.owner is None:
            rows = self._slots.count_in_transaction(page)
        ndb.put_multi([page, *rows])

    def is_owned(self, now_utc: datetime.datetime) -> bool:
        """Return whether the lease has not expired, by the last commit or heartbeat."""
        return self._expires_at is not None and now_utc < max(self._expires_at, self._kept_to)

    def beat(self) -> None:
        """Keep the lease of work that lasts; on the heart's thread.

        A lease that has expired is not kept: a commit, which reads whose it is, may renew it.
        """
        now_utc = naive_utc(self._clients.clock.now())
        if not self.is_owned(now_utc) or now_utc >= self.deadline:
            return
        expires_at = now_utc + datetime.timedelta(seconds=self._lasts_s)
        with self._clients.context():
            key = heartbeat_key(self._key.id(), self.owner)
            ContinuationHeartbeat(key=key, expires_at=expires_at).put(timeout=BEAT_TIMEOUT_S)
        self._kept_to = expires_at
