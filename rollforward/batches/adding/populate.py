"""Adding members, sealing, and running failed members again.

The members of one call are an addition, known by the call's idempotency key, so a repeated call
adds nothing. Its members are checked, and cut into pages of up to 1,000. All pages but the first
are stored before they are counted, by keys that hold the digest of the addition, and inserted: a
call that is repeated overwrites no page that members have ended in. The first page commits with the
batch's number of members, and with the task that creates theirs. A crash before that commit leaves
pages that are never read. The same call made again finds them. A call that adds other members
under the same key writes pages of its own.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward import outbox
from rollforward.batches import policy
from rollforward.batches.adding.creation import Create, check_lanes, create
from rollforward.batches.adding.transaction_rows import TransactionRows
from rollforward.batches.completion import complete_if_done, end_parent, state_of, touch
from rollforward.batches.declaration import BatchDeclaration, MemberRef
from rollforward.batches.entities import (
    COMPLETED,
    REMOVED,
    RUNNING,
    WAITING,
    BatchPage,
    BatchState,
    BatchWork,
    page_id,
    page_key,
    state_key,
    work_key,
)
from rollforward.batches.errors import (
    BadWorkError,
    ClosedError,
    DifferentWorkError,
    NestedError,
    UnknownBatchError,
)
from rollforward.datastore.transactions import current_transaction, transact
from rollforward.datastore.versions import insert_all
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import naive_utc
from rollforward.runtime.idempotency import check_idempotency_key
from rollforward.runtime.messages import MessageLane
from rollforward.tasks.declaration import Task
from rollforward.tasks.parameters import lane_key

# A task, its arguments, and the key of a lane, if it waits in one.
MemberWork = tuple[Task[Any], Any] | tuple[Task[Any], Any, MessageLane]
Members = Iterable[MemberWork]
Where = tuple[str, ...]  # The path of a member, its queue, and its key of a lane, if it has one.

MAX_PAGE_MEMBERS = 1_000
MAX_PAGE_BYTES = 800_000
# A member travels as text within text in a task of 100,000 bytes: at most twice as long.
MAX_MEMBER_BYTES = 40_000


@dataclass
class _Page:
    """Members that share a row."""

    first: int
    tasks: list[Where] = field(default_factory=list)
    members: list[tuple[int, str]] = field(default_factory=list)
    bytes: int = 0

    def takes(self, where: Where, body: str) -> bool:
        size = self.bytes + _size(body) + sum(_size(lane_id) for lane_id in where[2:])
        return len(self.members) < MAX_PAGE_MEMBERS and size <= MAX_PAGE_BYTES

    def add(self, where: Where, body: str) -> None:
        if where not in self.tasks:
            self.tasks.append(where)
            self.bytes += sum(_size(lane_id) for lane_id in where[2:])
        self.members.append((self.tasks.index(where), body))
        self.bytes += _size(body)

    def rows(self, name: str, digest: str) -> tuple[BatchWork, BatchPage]:
        work = BatchWork(
            key=work_key(name),
            tasks=self.tasks,
            members=self.members,
            first=self.first,
            digest=digest,
        )
        return work, BatchPage(key=page_key(name), letters=WAITING * len(self.members))


@dataclass(frozen=True)
class _Addition:
    """The members of one call, in pages."""

    batch: str
    name: str
    pages: Sequence[_Page]
    digest: str  # Of all that its pages hold.
    said: str  # Of what its caller has said, which another version of the code writes otherwise.

    def is_as(self, work: BatchWork) -> bool:
        """Return whether this is the addition of a first page."""
        return bool(self.digest == work.digest or self.said == work.said)

    @property
    def size(self) -> int:
        return sum(len(page.members) for page in self.pages)

    @property
    def lane_ids(self) -> set[str]:
        return {lane_id for page in self.pages for where in page.tasks for lane_id in where[2:]}

    @property
    def first_page(self) -> str:
        return self.page_id(0)

    @property
    def prefix(self) -> str:
        return f"{self.batch}:{self.name}"

    def page_id(self, number: int) -> str:
        return page_id(self.batch, self.name, number, self.digest)


@dataclass(frozen=True)
class PopulateOptions:
    """Options of adding members."""

    idempotency_key: str = ""
    seal: bool = False
    parent: MemberRef | None = None  # Which ends when the batch does, if this makes it.
    adder: MemberRef | None = None  # Which holds the batch open, sealed or not, while it runs.
    is_compared: bool = True  # Whether other members under the same key are an error.


def populate(
    clients: Clients,
    declared: BatchDeclaration,
    batch: str,
    members: Members,
    options: PopulateOptions,
) -> int:
    """Add members, in one transaction that counts them; return how many are new.

    Raises:
        BatchError: none was added, and why.
    """
    addition = _addition(declared, batch, members, options.idempotency_key)
    check_lanes(clients, addition.lane_ids)
    _store(clients, addition, options)
    return transact(lambda: _add(clients, declared, addition, options))


def populate_in_transaction(
    clients: Clients,
    declared: BatchDeclaration,
    batch: str,
    members: Members,
    options: PopulateOptions,
) -> int:
    """Add members in the transaction that this code runs in: up to 1,000.

    Raises:
        NoTransactionError: this is not the body of `transact`.
        BatchError: none was added, and why.
    """
    members = current_transaction().hook("batches", TransactionRows).listed(members)
    addition = _addition(declared, batch, members, options.idempotency_key)
    check_lanes(clients, addition.lane_ids)
    if len(addition.pages) > 1:
        raise BadWorkError(
            f"members must fit one page: {MAX_PAGE_MEMBERS} of them, {MAX_PAGE_BYTES} bytes"
        )
    return _add(clients, declared, addition, options)


def seal_in_transaction(clients: Clients, batch: str) -> None:
    """Seal a batch: no more members will come. Complete it if all have ended."""
    state = state_of(batch)
    if state.sealed:
        return
    state.sealed = True
    complete_if_done(clients, state)
    touch(clients, state)
    state.put()


def run_again(clients: Clients, batch: str) -> int:
    """Re-open a batch for its members that failed or were cancelled; return how many these are.

    Raises:
        UnknownBatchError: the batch does not exist.
        NestedError: it is a member of another batch.
    """

    count = 0

    def body() -> int:
        nonlocal count
        state = state_of(batch)
        if state.parent:
            raise NestedError(f"{batch} is a member of {state.parent}: run that again")
        if state.changed_by != current_transaction().id:  # Else its reply was lost.
            count = reopen(clients, state)
        return count

    return transact(body)


def reopen(clients: Clients, state: BatchState) -> int:
    """Begin the next generation of a batch, in a transaction, if there is anything to run again.

    No page is touched: a failure of an earlier generation counts as open from now on.
    """
    if not policy.can_run_again(state):
        return 0
    count = int(state.failed + state.cancelled)
    also_waiting = state.cancelled > 0
    state.generation += 1
    state.failed = state.cancelled = 0
    state.state, state.outcome, state.completed = RUNNING, None, None
    state.changed_by = current_transaction().id
    batch = state.key.id()
    creation = Create(batch, within=batch, generation=state.generation, also_waiting=also_waiting)
    outbox.enqueue(clients, create, creation)
    touch(clients, state)
    state.put()
    return count


def renew(clients: Clients, batch: str, parent: MemberRef) -> None:
    """Let a nested batch end its member once more: in a later generation of its parent, re-opened.

    In the same generation its end was inserted before, and may have been parked.

    Raises:
        ClosedError: the member has ended, or was cancelled.
    """

    def body() -> None:
        state = state_of(batch)
        if state.parent_generation >= parent.generation:
            if state.parent_generation == parent.generation and state.state == COMPLETED:
                end_parent(clients, state)
            return
        _check_waits_for(parent)
        state.parent_generation = parent.generation
        if not reopen(clients, state):
            if state.state == COMPLETED:
                end_parent(clients, state)
            state.put()

    transact(body)


def _add(
    clients: Clients, declared: BatchDeclaration, addition: _Addition, options: PopulateOptions
) -> int:
    """Count an addition, in a transaction; the row of its first page proves that it was."""
    written = current_transaction().hook("batches", TransactionRows)
    state: BatchState | None = written.get(state_key(addition.batch))
    _check_can_start(state, options)
    if state is None:
        state = _new_state(clients, declared, addition.batch, options.parent)
    first_row: BatchWork | None = (
        written.get(work_key(addition.first_page)) if addition.size else None
    )
    if first_row is not None and options.is_compared and not addition.is_as(first_row):
        raise DifferentWorkError(
            f"this idempotency key was already used for other members of {addition.batch}"
        )
    if first_row is not None and written.was_committed(first_row):
        return addition.size
    is_new = addition.size > 0 and first_row is None
    if first_row is not None and state.sealed >= options.seal:
        return 0
    if is_new:
        _check_open(state, options.adder)
        written.put(*_first_rows(addition, naive_utc(clients.clock.now())))
        state.members += addition.size
        creation = Create(addition.batch, within=addition.prefix, generation=state.generation)
        outbox.enqueue(clients, create, creation)
    state.sealed = state.sealed or options.seal
    complete_if_done(clients, state)
    touch(clients, state)
    written.put(state)
    return addition.size if is_new else 0


def _first_rows(addition: _Addition, now_utc: datetime.datetime) -> tuple[BatchWork, BatchPage]:
    work, page = addition.pages[0].rows(addition.first_page, addition.digest)
    work.added = now_utc
    work.size, work.said = addition.size, addition.said
    work.added_by = current_transaction().id
    return work, page


def _new_state(
    clients: Clients, declared: BatchDeclaration, batch: str, parent: MemberRef | None
) -> BatchState:
    now_utc = naive_utc(clients.clock.now())
    callback = declared.callback
    if callback is not None:
        callback.check_registered(clients)
    return BatchState(
        key=state_key(batch),
        policy=declared.policy.kind,
        done_at=declared.policy.n,
        callback_path=callback.path if callback else None,
        callback_queue=callback.queue if callback else None,
        keep_s=declared.keep.total_seconds(),
        parent=parent.batch if parent else None,
        parent_page=parent.page if parent else None,
        parent_position=parent.position if parent else None,
        member=f"{parent.page}:{parent.position}" if parent else None,
        parent_generation=parent.generation if parent else None,
        created=now_utc,
        due=now_utc + datetime.timedelta(days=1),
    )


def _check_can_start(state: BatchState | None, options: PopulateOptions) -> None:
    """Check that a batch may begin, or was not removed."""
    if state is None and options.parent is not None:
        _check_waits_for(options.parent)
    if state is not None and state.state == REMOVED:
        raise UnknownBatchError(f"{state.key.id()} is over, and its rows were deleted")


def _check_open(state: BatchState, adder: MemberRef | None) -> None:
    """Check that a batch takes members: it is not sealed, or one that it waits for adds them."""
    if state.state == RUNNING and (not state.sealed or (adder and _waits_for(state, adder))):
        return
    raise ClosedError(f"{state.key.id()} is {'sealed' if state.state == RUNNING else state.state}")


def _check_waits_for(parent: MemberRef) -> None:
    """Check that a batch waits for a member: nothing begins below one that is over."""
    if not _waits_for(state_key(parent.batch).get(), parent):
        raise ClosedError(f"{parent.batch} does not wait for {parent.page}:{parent.position}")


def is_needed(state: BatchState) -> bool:
    """Return whether a batch is needed: it is a root, or its member has not ended."""
    if not state.parent:
        return True
    member = MemberRef(
        state.parent, state.parent_page, state.parent_position, state.parent_generation
    )
    return _waits_for(state_key(state.parent).get(), member)


def _waits_for(state: BatchState | None, member: MemberRef) -> bool:
    if not policy.is_waiting_for(state, member.generation):
        return False
    page: BatchPage | None = page_key(member.page).get()
    return page is not None and page.is_open(member.position, member.generation)


# The pages of an addition


def _addition(
    declared: BatchDeclaration, batch: str, members: Members, idempotency_key: str
) -> _Addition:
    """Check all members of a call and cut them into pages; nothing is stored yet."""
    check_idempotency_key(idempotency_key or None, BadWorkError)
    call_digest = hashlib.sha256()
    pages = list(_split(declared, members, call_digest))
    digest = hashlib.sha256()
    for page in pages:
        digest.update(json.dumps([page.tasks, page.members]).encode())
    name = addition_name(idempotency_key)
    return _Addition(batch, name, pages, digest.hexdigest()[:32], call_digest.hexdigest()[:32])


def _store(clients: Clients, addition: _Addition, options: PopulateOptions) -> None:
    """Store all pages of an addition but the first, which its commit writes.

    A page that exists was stored by an equal call: its key has the digest of its content. A call
    that would be refused stores nothing, since nothing would delete it.
    """
    if len(addition.pages) < 2:
        return
    state, first_row = ndb.get_multi([state_key(addition.batch), work_key(addition.first_page)])
    if first_row is not None:
        return  # What is there was counted with its first page; `_add` says whether it is this.
    _check_can_start(state, options)
    if state is not None:
        _check_open(state, options.adder)
    for number, page in list(enumerate(addition.pages))[1:]:
        rows = page.rows(addition.page_id(number), addition.digest)
        with contextlib.suppress(rpc_errors.AlreadyExists):
            insert_all(clients.datastore, rows)


def addition_name(idempotency_key: str) -> str:
    return hashlib.sha256(json.dumps(idempotency_key).encode()).hexdigest()[:16]


def _split(declared: BatchDeclaration, members: Members, call_digest: Any) -> Iterator[_Page]:
    page = _Page(0)
    for member in members:
        if not isinstance(member, tuple | list) or len(member) not in (2, 3):
            raise BadWorkError(f"a member must be (task, its arguments), got {member!r:.100}")
        task, args, *lanes = member
        where, body = _member(declared, task, args)
        where += tuple(lane_key(lane).id for lane in lanes)
        call_digest.update(json.dumps([where[0], task.args_json(args), *where[2:]]).encode())
        if page.members and not page.takes(where, body):
            yield page
            page = _Page(page.first + len(page.members))
        page.add(where, body)
    if page.members:
        yield page


def _member(declared: BatchDeclaration, task: Task[Any], args: Any) -> tuple[Where, str]:
    """Return where a member is delivered, by which queue, and its arguments as JSON.

    Raises:
        BadWorkError: it cannot be a member of these batches.
        BadArgumentsError: the arguments do not fit the task.
    """
    path = declared.paths.get(task)
    if path is None:
        raise BadWorkError(f"{task.path} must be listed in `members` of {declared.name}")
    body = task.message(args).body.decode()
    if len(body.encode()) > MAX_MEMBER_BYTES:
        raise BadWorkError(
            f"{task.path}: a member's arguments have at most {MAX_MEMBER_BYTES} bytes: "
            "put what is longer in a row, and pass its key"
        )
    return (path, task.queue), body


def _size(body: str) -> int:
    """Return how many bytes a member takes in its row, as text in JSON."""
    return len(json.dumps(body)) + 10
