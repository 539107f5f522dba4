"""One delivery's right to change a flow: the row as it knows it, its lease, and its writes.

A write is a compare-and-set by the version that the row had, without a transaction. A write
between (an event, a cancellation, the end of a batch) makes it fail: the row is read again, and the
change is decided once more. So an event or a cancellation is never overwritten, and of two
deliveries that overlap one gets on.
"""

from __future__ import annotations

import contextlib
import datetime
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward.datastore.commit import Commit
from rollforward.datastore.conversion.protobufs import Converter, protobuf_of
from rollforward.datastore.transactions import OUTCOME_UNKNOWN, pause_before_retry
from rollforward.datastore.versions import CHANGED, read_versions
from rollforward.flows.errors import Interrupted, LeasedError, NotDueError, Suspended, Unwinding
from rollforward.flows.rows import pending
from rollforward.flows.rows.entities import RUNNING, UNDOING, FlowRun, run_key
from rollforward.flows.wakes import FlowArgs, due_at, wake
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import CLOCK_SKEW_S, naive_utc
from rollforward.runtime.sharing.conditional_writes import apply_together
from rollforward.runtime.sharing.lazy_transaction import transact_around
from rollforward.runtime.sharing.shared_lookup import read_together
from rollforward.runtime.texts import storable
from rollforward.tasks.declaration import Task

T = TypeVar("T")

LEASE = datetime.timedelta(seconds=15)
BEATS_PER_LEASE = 3
# So much earlier than after a write the sweep may look at a flow.
SLACK = datetime.timedelta(seconds=5)
MAX_WRITES = 10
MAX_REASON_CHARS = 1_000
# A delivery that comes earlier than that, by the clocks, came for nothing: another will come.
EARLY = datetime.timedelta(minutes=1)
_RETRIED = (
    rpc_errors.Aborted,
    rpc_errors.AlreadyExists,
    rpc_errors.ResourceExhausted,
    *CHANGED,
    *OUTCOME_UNKNOWN,
)


@dataclass(frozen=True)
class Wait:
    """The decision that a flow waits, until an aware time; None: something else wakes it."""

    until: datetime.datetime | None = None


@dataclass(frozen=True)
class VersionNote:
    """The decision that a flow waits for another version of the code, or no more: "".

    It is due as before.
    """

    other_version: str

    def sign(self, row: FlowRun, clients: Clients) -> None:
        """Set the fields of a row that say so."""
        since = row.other_version_since or naive_utc(clients.clock.now())
        row.other_version = self.other_version or None
        row.other_version_since = since if self.other_version else None


class FlowAttempt:
    """One delivery of a flow.

    Attributes:
        row: The flow as this delivery last saw it.
        began_s: When it began, in seconds since 1970.
        is_leased: Whether this delivery holds the lease.
        is_calling: Whether the function of a call outside is at work.
        stopped: How this delivery ended; None: it has not.
    """

    def __init__(self, clients: Clients, task: Task[FlowArgs], run_id: str) -> None:
        self.clients = clients
        self.task = task
        self.key = run_key(run_id)
        self.run_id = run_id
        self.row: FlowRun
        self.began_s = self.now_s()
        self.is_leased = False
        self.is_calling = False
        self.stopped: BaseException | None = None
        self._holds = False  # Whether the row had this delivery's lease when it last wrote it.
        self._owner = clients.new_owner()
        self._writes = 0
        self._version: int | None = None
        self._converter = Converter()
        self._lock = threading.RLock()  # A heartbeat writes the row from another thread.

    def open(self) -> bool:
        """Read the flow; return whether there is something to do.

        Raises:
            LeasedError: another delivery works on it.
        """
        if not self._read() or self.row.state not in (RUNNING, UNDOING):
            return False
        self._generation = self.row.generation
        if self.row.owner is not None:
            check_silent(self.clients, self.row)
        return True

    @property
    def is_undoing(self) -> bool:
        return bool(self.row.state == UNDOING)

    def now_s(self) -> float:
        """Return the time, in seconds since 1970."""
        return self.clients.clock.now().timestamp()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """End the delivery with a block of a step, whatever the flow's code makes of its end.

        An error inside that is no outcome of a step is no business of the flow's code: neither an
        error of Datastore nor a mistake of the code is a reason to go another way.

        Raises:
            Suspended, Unwinding, Interrupted: the delivery is over, and all further steps say so.
        """
        if self.stopped is not None:
            raise self.stopped
        try:
            yield
        except Exception as error:
            self.stopped = Interrupted()
            raise self.stopped from error
        except (Suspended, Unwinding) as end:
            self.stopped = end
            raise

    # Write

    def change(
        self,
        transition: Callable[[FlowRun], T],
        values: Sequence[ndb.Model] = (),
        *,
        is_alone: bool = False,
    ) -> T:
        """Write what `transition` makes of the flow's row, and rows of values with it.

        Args:
            transition: Changes the row; it is called again for the row as another has written it.
            values: New rows, under keys that no other write uses.
            is_alone: Whether to wait for no other writer, nor write for any.

        Raises:
            Suspended: the flow ended, failed or was retried meanwhile.
            LeasedError: another delivery has taken the flow over.
            google.api_core.exceptions.GoogleAPICallError: it is unknown whether it was written.
        """
        with self._lock:
            decisions: dict[str, T] = {}  # By the proof of their write: a lost one may come late.
            for failures in range(1, MAX_WRITES + 1):
                if self._version is None:
                    written = self._find_write(decisions, is_alone=is_alone)
                    if written is not None:
                        return decisions[written]
                try:
                    decided = transition(self.row)
                    self._sign(self.row, decided)
                    self.row.written_by = proof = self._proof()
                    decisions[proof] = decided
                    self._write(values, is_alone=is_alone)
                except BaseException as error:
                    self._version = None  # The row here is not the one that is stored.
                    if failures == MAX_WRITES or not isinstance(error, _RETRIED):
                        raise
                    pause_before_retry(min(failures, 3))
                else:
                    self._holds = self.is_leased
                    return decided
            raise AssertionError("unreachable")

    def transact(self, body: Callable[[FlowRun], T]) -> T:
        """Run the body in a transaction with the flow's row, which it changes, and write that.

        The transaction begins when the body reads. The row is written by its version.

        Raises: as `change` and the body do.
        """
        proof = self._proof()

        def current_row() -> tuple[FlowRun, int]:
            if self._version is None:
                self._take(self.row if self._read() else None)
            version, self._version = self._version, None  # An attempt after this one reads again.
            assert version is not None
            return self.row, version

        def run() -> T:
            pending.hold(self.row)
            result = body(self.row)
            self._sign(self.row)
            self.row.written_by = proof
            return result

        with self._lock:
            result, self._version = transact_around(self.clients, self.key, current_row, run)
            self._holds = self.is_leased
            return result

    def lease(self, transition: Callable[[FlowRun], T]) -> T:
        """Take the lease, or keep it, with a change."""
        was_leased, self.is_leased = self.is_leased, True
        try:
            return self.change(transition)
        except BaseException:
            self.is_leased = was_leased
            raise

    def continue_or_wait(
        self, transition: Callable[[FlowRun], T | Wait], values: Sequence[ndb.Model] = ()
    ) -> T:
        """Write a change after which the flow continues or waits; a wait ends this delivery.

        A flow that waits has no owner. It is woken at the time that the change says.

        Raises:
            Suspended: it waits.
        """
        was_leased = self.is_leased

        def transition_and_lease(row: FlowRun) -> T | Wait:
            decided = transition(row)
            self.is_leased = was_leased and not isinstance(decided, Wait)
            return decided

        decided = self.change(transition_and_lease, values)
        if not isinstance(decided, Wait):
            return decided
        if decided.until is not None:
            wake(self.clients, self.task, self.row, decided.until)
        raise Suspended

    def wait(self, until: datetime.datetime | None, note: Callable[[FlowRun], None]) -> NoReturn:
        """Write a change after which the flow waits until a time, or for an event, and end this."""
        self.check_parked(until)

        def transition(row: FlowRun) -> Wait:
            note(row)
            return Wait(until)

        self.continue_or_wait(transition)
        raise AssertionError("unreachable")

    def check_parked(self, until: datetime.datetime | None) -> None:
        """End this delivery, without a write, if the row waits until a time already.

        So a task too many does not go on as a second chain of tasks. If that time comes soon, this
        may be its task and the clock behind: another task would come at once, again and again.

        Raises:
            Suspended: it does.
            NotDueError: it does, for a minute at most.
        """
        row = self.row
        if row.owner is not None or row.sweeps or row.turn is not None:
            return
        due = None if until is None else due_at(self.clients, until)
        if until is not None and (early := until - self.clients.clock.now()) <= EARLY:
            if row.due == due and early > datetime.timedelta(0):
                raise NotDueError(f"{self.run_id} waits", after_s=early.total_seconds())
        elif row.due == due:
            raise Suspended

    def release(self) -> None:
        """Give the lease back, if this delivery holds it: the queue delivers the flow again."""
        if self.is_leased:
            self.is_leased = False
            self.change(lambda row: None)

    def note_version(self, reason: str) -> None:
        """Note why this version of the code cannot continue the flow; "": it can.

        The lease is given back. The flow stays due as before: its task waits for a version.
        """
        noted = VersionNote(storable(reason, MAX_REASON_CHARS))
        if self.is_leased or (self.row.other_version or "") != noted.other_version:
            self.is_leased = False
            self.change(lambda row: noted)

    def beat(self) -> None:
        """Keep the lease of a step that lasts; on the heart's thread."""
        if not self._lock.acquire(blocking=False):
            return  # The delivery writes the row itself, with its lease.
        try:
            if self.is_leased:
                with self.clients.context(), contextlib.suppress(Suspended, LeasedError):
                    self.change(lambda row: None, is_alone=True)  # If lost, its own write finds it.
        finally:
            self._lock.release()

    def _proof(self) -> str:
        self._writes += 1
        return f"{self._owner}:{self._writes}"

    def _sign(self, row: FlowRun, decided: object = None) -> None:
        """Set the owner of a row that is to be written, and when the sweep looks at it."""
        expires_at = naive_utc(self.clients.clock.now()) + LEASE
        row.owner = self._owner if self.is_leased else None
        row.lease_expires_at = expires_at if self.is_leased else None
        if isinstance(decided, VersionNote):
            decided.sign(row, self.clients)
            return
        row.other_version = row.other_version_since = None
        row.sweeps, row.turn = 0, None
        if isinstance(decided, Wait):
            row.due = due_at(self.clients, decided.until) if decided.until is not None else None
        elif row.state in (RUNNING, UNDOING):
            latest = due_at(self.clients)
            # Quick steps leave the index of due flows as it is.
            if row.due is None or not latest - SLACK <= row.due <= latest:
                row.due = latest

    def _write(self, values: Sequence[ndb.Model], *, is_alone: bool) -> None:
        assert self._version is not None
        commit = Commit(self.clients.datastore)
        commit.update(self._converter.protobuf_of(self.row), self._version)
        for row in values:
            commit.insert(protobuf_of(row))
        if is_alone:
            self._version = int(commit.apply()[0].version)
        else:
            self._version = apply_together(self.clients, commit)[0]

    # Read

    def _read(self, *, is_alone: bool = False) -> bool:
        if is_alone:
            [stored] = read_versions(self.clients.datastore, [self.key])
        else:
            stored = read_together(self.clients, self.key)
        if stored is not None:
            self.row, self._version = stored
        return stored is not None

    def _find_write(self, decisions: Mapping[str, object], *, is_alone: bool) -> str | None:
        """Read the row again; return which of these writes it has, whose reply was lost."""
        is_there = self._read(is_alone=is_alone)
        if is_there and self.row.written_by in decisions:
            if self.row.generation != self._generation:
                raise Suspended  # It was retried since: this delivery is of the past.
            self._holds = self.is_leased = self.row.owner == self._owner
            return str(self.row.written_by)
        self._take(self.row if is_there else None)
        return None

    def _take(self, row: FlowRun | None) -> FlowRun:
        """Check that this delivery may still change a row; return it."""
        if row is None or row.state not in (RUNNING, UNDOING):
            raise Suspended
        if row.generation != self._generation:
            raise Suspended
        if row.owner is not None and row.owner != self._owner:
            check_silent(self.clients, row)
        if row.owner != self._owner and self._holds:
            raise LeasedError(f"another delivery has taken {self.run_id} over", after_s=1.0)
        return row


def check_silent(clients: Clients, row: FlowRun) -> None:
    """Check that the owner of a row is dead, or has been silent for its lease.

    Raises:
        LeasedError: it works on the flow.
    """
    if row.owner is None or clients.processes.is_dead(row.owner):
        return
    remaining = row.lease_expires_at - naive_utc(clients.clock.now())
    # A lease beyond that is from a clock that was far ahead, and means nothing.
    if datetime.timedelta(0) < remaining <= LEASE + datetime.timedelta(seconds=CLOCK_SKEW_S):
        after_s = remaining.total_seconds() + 0.5
        raise LeasedError(f"another delivery works on {row.key.id()}", after_s=after_s)
