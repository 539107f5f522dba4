"""Shared transactions: the bodies of several callers, with one begin, one lookup and one commit.

A body that is run here declares what it reads and the rows that it touches, is guarded against a
second run as every body of `transact` is, and waits for nothing but Datastore. Callers whose bodies
touch a common row do not share. A body of a user, which may do anything, is never shared.

1. Group: what comes while a transaction is in progress, or while the next one begins, shares the
   next one (`group_commit.py`).
2. Read: the transaction looks up what all bodies read.
3. Run: each body runs once and adds its writes. One that raises is out: its caller gets the error,
   and its writes are dropped. One whose writes have no room in this commit, or are of a row that
   it writes already, waits for the next.
4. Commit: all writes of all bodies, or nothing.

    the commit             the callers of the group
    succeeded              get their results
    lost a race (ABORTED)  go together once more, then in halves; one that is left over alone tries
                           again by its own thread, so that no caller waits for its rival
    refused for its data,  go in halves until the one at fault is alone, who gets the error
    or a row is unreadable
    left open by a lost    go together once more: each body finds its own proof that it was
    reply or a time-out    committed, if it was
    refused otherwise      all get the error
    left by its leader,    have their results, or try again by their own threads
    whose thread is ended

So a caller's attempts are counted as by `transact`: at most four without success, not counting
those that it lost together with others. Each caller has a `Transaction` of its own through all of
them: its id, hooks and doubt are its own, and hooks are called by its own thread.

`transact_declared` makes the same calls for a body alone: one that no other caller should wait for.
What a body leaves to ndb's `call_on_commit` is not called in either.

Lost on failure: nothing that `transact` would keep. A process that is killed in step 4 leaves the
outcome open for all callers of the group.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from google.api_core import exceptions as rpc_errors
from google.cloud.ndb.context import get_context

from rollforward.datastore.commit import key_of
from rollforward.datastore.contexts import ADVICE, NESTED, context_namespace
from rollforward.datastore.transactions import (
    MAX_ATTEMPTS,
    OUTCOME_UNKNOWN,
    NoContextError,
    Transaction,
    first_cause,
    inside,
    is_in_transaction,
    is_last_attempt,
    pause_before_retry,
)
from rollforward.runtime.clients import Clients
from rollforward.runtime.sharing.group_commit import GroupCommit
from rollforward.runtime.sharing.open_transaction import OpenTransaction
from rollforward.tracing import caused_by, current_traceparent, start_span

T = TypeVar("T")

MAX_CALLERS = 100
# The limits of a commit, with room for what surrounds the writes: the emulators take 4 MiB.
MAX_MUTATIONS = 500
MAX_BYTES = 3_900_000
# A group takes some round trips. Whoever waits longer than they should take goes alone.
MAX_WAIT_S = 1.0
# Both emulators are fastest with one (docs/performance/saves-and-views.md).
GROUPS_IN_PROGRESS = 1
# After two lost races a group is parted into halves.
LOST_TOGETHER = 2
# The service refuses the data of one of the callers; of the others it says nothing.
_DATA_REFUSED = (
    rpc_errors.InvalidArgument,
    rpc_errors.FailedPrecondition,
    rpc_errors.NotFound,
    rpc_errors.AlreadyExists,
    rpc_errors.OutOfRange,
)


@dataclass(frozen=True)
class SharedBody(Generic[T]):
    """The body of a transaction that may be shared.

    Attributes:
        run: Reads by `rollforward.datastore.current` or ndb, and writes. Its argument is what
            `reads` has returned for this attempt.
        reads: Returns the keys that it reads, given a random number, the same for all bodies of a
            group: those that read any copy read the same.
        rows: The rows that no two bodies of a group may touch: all that it and others may
            write. A body that is never shared needs none.
        writes: About how many entities it writes.
    """

    run: Callable[[Sequence[Any]], T]
    reads: Callable[[int], Sequence[Any]]
    rows: frozenset[Hashable] = frozenset()
    writes: int = 1


def transact_shared(clients: Clients, body: SharedBody[T]) -> T:
    """Run a body in a transaction, together with bodies of other callers; return its result.

    Raises:
        NoContextError: this thread has no context of Datastore.
        NotImplementedError: this code runs in a transaction, which would not hold the body.
        google.api_core.exceptions.GoogleAPICallError: as of `transact`.
    """
    return _transact(clients, body, _share)


def transact_declared(clients: Clients, body: SharedBody[T]) -> T:
    """Run a body by the same calls in a transaction of its own, for which no other caller waits.

    Raises: as `transact_shared`.
    """
    return _transact(clients, body, _try_single)


def _transact(
    clients: Clients, body: SharedBody[T], begin: Callable[[Clients, _Caller[T]], None]
) -> T:
    if get_context(raise_context_error=False) is None:
        raise NoContextError(ADVICE)
    if is_in_transaction():
        raise NotImplementedError(NESTED)
    if context_namespace() is not None:  # The body of a follower would run in its leader's.
        begin = _try_single
    caller = _Caller(body, current_traceparent())
    with start_span("transaction") as span:
        begin(clients, caller)
        if caller.is_open:
            _try_single(clients, caller)
        span.set_attribute("rollforward.attempts", caller.attempts)
        return caller.end()


@dataclass(eq=False)
class _Caller(Generic[T]):
    """A caller through all attempts of its body.

    Attributes:
        began_s: When its first attempt began, by a clock that never goes back.
        lost: Attempts that lost a race, alone or together with others.
        attempts: Runs of its body.
        failures: Attempts of which the last one is known: those that count.
        mutations: Writes of its body in the attempt at hand; None: it has no part in it.
        is_deferred: It was left out of the commit at hand, and of its failure.
        is_alone: It tries again by its own thread.
        begun: The transaction that it has begun for its group, or the error of that.
        is_late: It came when the transaction at hand had begun, and may read from before its call.
    """

    body: SharedBody[T]
    traceparent: str
    transaction: Transaction = field(default_factory=Transaction)
    began_s: float = 0.0
    lost: int = 0
    attempts: int = 0
    failures: int = 0
    mutations: list[Any] | None = None
    result: T | None = None
    error: Exception | None = None
    is_committed: bool = False
    is_deferred: bool = False
    is_alone: bool = False
    begun: OpenTransaction | Exception | None = None
    is_late: bool = False

    @property
    def is_open(self) -> bool:
        """Whether it has neither a result nor an error."""
        return not self.is_committed and self.error is None

    def begin(self, clients: Clients) -> None:
        """Begin a transaction, for itself and the callers that come meanwhile."""
        self.began_s = time.monotonic()
        try:
            self.begun = OpenTransaction(clients.datastore)
        except Exception as error:
            self.begun = error

    def take_started(self, clients: Clients) -> OpenTransaction:
        """Return the transaction that it has begun, once; then a new one.

        Raises:
            google.api_core.exceptions.GoogleAPICallError: the service's answer.
        """
        begun, self.begun = self.begun, None
        if isinstance(begun, Exception):
            raise begun
        return begun or OpenTransaction(clients.datastore)

    def run(
        self, opened: OpenTransaction, keys: Sequence[Any], entities: Mapping[Any, Any]
    ) -> None:
        """Run the body; keep its writes, or its error.

        A commit of what a late one writes proves that it has read no old row. If it writes nothing
        or raises, it runs again in a transaction that begins after its call.
        """
        self.attempts += 1
        self.mutations = self.transaction.mutations = []
        self.transaction.entities = entities
        handled = sys.exc_info()[1]
        try:
            with (
                opened.collected() as mutations,
                caused_by(self.traceparent),
                inside(self.transaction),
            ):
                self.result = self.body.run(keys)
                self.transaction.before_commit()
        except Exception as error:
            opened.discard()
            self.mutations = None
            if not self.is_late:
                self.fail(error, handled)
                self.is_alone = True
        else:
            self.mutations += mutations
        if self.is_late and not self.mutations:
            self.defer()

    def fail(self, error: Exception, handled: BaseException | None) -> None:
        """Note the error of an attempt: its caller tries again only after one of the service."""
        cause = first_cause(error, handled)
        if cause is None:
            self.error = error
        else:
            self.retry(cause)

    def retry(self, cause: Exception, *, is_counted: bool = True) -> None:
        """Note that an attempt has failed by the service; give up after the last one."""
        self.mutations = None
        if isinstance(cause, OUTCOME_UNKNOWN):
            self.transaction.doubt = cause
        self.failures += is_counted
        if is_counted and is_last_attempt(self.failures, self.began_s):
            self.error = self.transaction.doubt or cause
        else:
            self.transaction.on_retry(cause)

    def size(self) -> tuple[int, int]:
        """Return how many entities it writes, and how many bytes."""
        mutations = self.mutations or []
        return len(mutations), sum(mutation.ByteSize() for mutation in mutations)

    def write_keys(self) -> set[bytes]:
        """Return the keys of the entities that it writes."""
        return {key_of(mutation).SerializeToString() for mutation in self.mutations or []}

    def defer(self) -> None:
        """Drop its writes: it runs again in the next transaction, having failed at nothing."""
        self.is_deferred = True
        self.retry(rpc_errors.Aborted("not in this commit"), is_counted=False)  # type: ignore[no-untyped-call]

    def end(self) -> T:
        """Call the hooks of its transaction; return its result, or raise its error."""
        if self.error is not None:
            self.transaction.on_outcome_unknown()
            raise self.error
        self.transaction.on_commit()
        return self.result  # type: ignore[return-value]


def _groups(clients: Clients) -> GroupCommit[_Caller[Any], None]:
    def commit(callers: Sequence[_Caller[Any]]) -> list[None]:
        _try_together(clients, callers)
        return [None] * len(callers)

    return clients.process_state.get_or_create(
        "shared-transactions",
        lambda: GroupCommit(
            commit,
            max_calls=MAX_CALLERS,
            max_bytes=MAX_MUTATIONS,
            size=lambda caller: caller.body.writes,
            max_wait_s=MAX_WAIT_S,
            rows=lambda caller: caller.body.rows,
            prepare=lambda caller: caller.begin(clients),
            max_leaders=GROUPS_IN_PROGRESS,
        ),
    )


def _share(clients: Clients, caller: _Caller[Any]) -> None:
    """Try with others; a caller whose leader fails knows its own result, or is in doubt."""
    handled = sys.exc_info()[1]
    try:
        _groups(clients)(caller)
    except Exception as error:
        caller.began_s = caller.began_s or time.monotonic()
        if caller.is_open:
            caller.fail(error, handled)


def _try_together(clients: Clients, callers: Sequence[_Caller[Any]]) -> None:
    """Try until each caller has a result, has an error, or goes on alone."""
    handled = sys.exc_info()[1]
    parts = deque([list(callers)])
    while parts:
        part = [caller for caller in parts.popleft() if caller.is_open and not caller.is_alone]
        if part:
            parts.extend(_attempt_part(clients, part, handled))


def _attempt_part(
    clients: Clients, callers: list[_Caller[Any]], handled: BaseException | None
) -> Sequence[list[_Caller[Any]]]:
    """Make one attempt of some callers; return the parts in which they try again.

    Args:
        handled: The error that this thread was handling before: it is none of the service's here.
    """
    error = _attempt(clients, callers)
    callers = [caller for caller in callers if caller.is_open and not caller.is_alone]
    deferred = [caller for caller in callers if caller.is_deferred]
    tried = [caller for caller in callers if not caller.is_deferred]
    if error is None or not tried:
        return [deferred]
    cause = first_cause(error, handled)
    parts = _after_refusal(tried, error) if cause is None else _after_failure(tried, cause)
    return [*parts, deferred]


def _after_failure(callers: list[_Caller[Any]], cause: Exception) -> Sequence[list[_Caller[Any]]]:
    """Let callers pause before they go together once more; part callers that lose races."""
    is_race = isinstance(cause, rpc_errors.Aborted)
    is_last = len(callers) == 1
    for caller in callers:
        caller.retry(cause, is_counted=is_last or not is_race)
        caller.lost += is_race
        caller.is_alone = is_last and is_race
    if is_last and is_race:
        return []
    if is_race and min(caller.lost for caller in callers) >= LOST_TOGETHER:
        return _split(callers)  # Without a pause: most of them are not the rival's.
    failures = max(caller.lost + caller.failures for caller in callers)
    pause_before_retry(min(failures, MAX_ATTEMPTS - 1))
    return [callers]


def _after_refusal(callers: list[_Caller[Any]], error: Exception) -> Sequence[list[_Caller[Any]]]:
    """Part callers until the one whose data was refused is alone with the error.

    So it is if a row cannot be read, for one if this version of the app does not know its kind.
    """
    is_of_service = isinstance(error, rpc_errors.GoogleAPIError)
    if len(callers) > 1 and (isinstance(error, _DATA_REFUSED) or not is_of_service):
        for caller in callers:
            caller.retry(error, is_counted=False)
        return _split(callers)
    for caller in callers:
        caller.error = error
    return []


def _split(callers: list[_Caller[Any]]) -> list[list[_Caller[Any]]]:
    middle = (len(callers) + 1) // 2
    return [callers[:middle], callers[middle:]]


def _try_single(clients: Clients, caller: _Caller[Any]) -> None:
    """Try until a caller has a result or an error, as `transact` does."""
    handled = sys.exc_info()[1]
    while caller.is_open:
        if caller.began_s:
            pause_before_retry(caller.failures)
        error = _attempt(clients, [caller])
        if error is not None:
            caller.fail(error, handled)


def _attempt(clients: Clients, callers: Sequence[_Caller[Any]]) -> Exception | None:
    """Make one transaction of callers; return the error by which all of them failed."""
    has_begun = callers[0].begun is not None
    for caller in callers:
        caller.began_s = caller.began_s or time.monotonic()
        caller.is_deferred, caller.is_late = False, has_begun and caller is not callers[0]
    try:
        opened = callers[0].take_started(clients)
    except Exception as error:
        return error
    try:
        draw = clients.random.getrandbits(32)
        reads = [caller.body.reads(draw) for caller in callers]
        entities = opened.lookup(list(dict.fromkeys(itertools.chain.from_iterable(reads))))
        for caller, keys in zip(callers, reads, strict=True):
            caller.run(opened, keys, entities)
        committed = _committable([caller for caller in callers if caller.mutations is not None])
        if not committed:
            opened.roll_back()
            return None
        opened.commit([mutation for caller in committed for mutation in caller.mutations or []])
    except Exception as error:
        opened.roll_back()
        return error
    except BaseException:  # The thread is to end: let no row stay locked.
        opened.roll_back()
        raise
    now_s = time.monotonic()
    for caller in committed:
        caller.is_committed, caller.transaction.committed_s = True, now_s
    return None


def _committable(callers: Sequence[_Caller[Any]]) -> list[_Caller[Any]]:
    """Return the callers that one commit takes; the others run again in the next one.

    It has no room for more than its limits, and writes no row twice: the second body has not read
    the writes of the first one. `SharedBody.rows` keeps these bodies apart, if it names all rows.
    """
    if len(callers) == 1:
        return list(callers)
    committable: list[_Caller[Any]] = []
    mutations, size, write_keys = 0, 0, set[bytes]()
    for caller in callers:
        (more_mutations, more_bytes), keys = caller.size(), caller.write_keys()
        has_room = mutations + more_mutations <= MAX_MUTATIONS and size + more_bytes <= MAX_BYTES
        if not committable or (has_room and write_keys.isdisjoint(keys)):
            mutations, size = mutations + more_mutations, size + more_bytes
            write_keys |= keys
            committable.append(caller)
        else:
            caller.defer()
    return committable
