"""The one door to Datastore transactions.

A transaction body may run twice although its first run was committed, because the service's reply
was lost. So every body must carry its own idempotency guard (a receipt, a marker with a sequence
number, the deletion of the row that caused it), choose its keys before it starts, and do nothing
but read and write entities.

ndb's own retry is switched off: it sleeps for seconds, sleeps once more before it gives up, and
hides the real error in a RetryError. `transact` makes a few quick attempts, with pauses of about
half a second in all, and raises the service's error. A transaction that the service has expired,
because its process froze for a minute, counts as a lost race.

Inside the body, `current_transaction()` returns the call of `transact` that it belongs to. Its id
is the same in every attempt, so rows that a body names after it are written once. A hook is called
after each failed attempt, and after the commit or the last attempt. A hook can delay the caller,
but never fail it, nor make the body run again.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import logging
import random
import re
import secrets
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

from google.api_core import exceptions as rpc_errors
from google.cloud import ndb
from google.cloud.ndb.context import get_context
from google.cloud.ndb.exceptions import ContextError

from rollforward.app_code import SIGNALS, runs_when_called, tasklet_result
from rollforward.datastore.contexts import ADVICE, NESTED
from rollforward.tracing import start_span

log = logging.getLogger(__name__)

T = TypeVar("T")
H = TypeVar("H", bound="TransactionHook")

MAX_ATTEMPTS = 4
INITIAL_BACKOFF_S = 0.03
BACKOFF_FACTOR = 3.0

# No attempt begins later than this after the first one: a caller waits, and so may a lease.
LAST_ATTEMPT_AFTER_S = 10.0

# Pauses are not drawn from the process's own numbers: a test that seeds those owns them.
_DICE = random.Random()

# After one of these a commit may have taken effect. Of gRPC's sixteen codes the others say that
# it did not: the request was refused (INVALID_ARGUMENT, NOT_FOUND, ALREADY_EXISTS,
# PERMISSION_DENIED, UNAUTHENTICATED, FAILED_PRECONDITION, OUT_OF_RANGE, UNIMPLEMENTED), the race
# was lost (ABORTED) or a quota was (RESOURCE_EXHAUSTED).
OUTCOME_UNKNOWN = (
    rpc_errors.Cancelled,
    rpc_errors.DataLoss,
    rpc_errors.DeadlineExceeded,
    rpc_errors.InternalServerError,
    rpc_errors.ServiceUnavailable,
    rpc_errors.Unknown,
)
# The errors after which `transact` runs the body again.
RETRIED = (rpc_errors.Aborted, *OUTCOME_UNKNOWN)
# The service's trouble, and never that of the data: the same request may succeed later.
TRANSIENT = (*RETRIED, rpc_errors.ResourceExhausted, rpc_errors.RetryError)
_ENDED = re.compile(r"transaction\b.*\b(expired|invalid|closed|no longer valid)", re.IGNORECASE)


class NoTransactionError(Exception):
    """The code does not run in the body of a transaction."""


class NoContextError(Exception):
    """The thread has no context of Datastore."""


class TransactionHook(Protocol):
    """Callbacks at the ends of a transaction, outside of it."""

    def on_retry(self, cause: Exception) -> None:
        """An attempt failed; the body runs again. Unless cause is Aborted it may be committed."""
        ...

    def on_commit(self) -> None:
        """The last attempt is committed."""
        ...

    def on_outcome_unknown(self) -> None:
        """There is no further attempt. The last one, or one before, may be committed anyway."""
        ...


@dataclass
class Transaction(TransactionHook):
    """One call of `transact`, through all attempts of its body.

    Attributes:
        entities: What a shared transaction has read for the body, by key; None: it is not shared.
        mutations: What the body writes there, as protobuf.
        committed_s: When it was known to be committed, by `time.monotonic`.
    """

    id: str = field(default_factory=lambda: secrets.token_hex(12))
    hooks: dict[str, TransactionHook] = field(default_factory=dict)
    doubt: Exception | None = None  # The last one that left an attempt's outcome unknown.
    is_contended: bool = False  # Whether an attempt has lost its race.
    counts: Counter[str] = field(default_factory=Counter)  # Of this attempt.
    entities: Mapping[Any, Any] | None = None
    mutations: list[Any] | None = None
    committed_s: float | None = None

    def count(self, name: str) -> int:
        """Return the number of calls with this name in this attempt, from 1.

        A body that adds the same item twice adds two, and the same two when it runs again.
        """
        self.counts[name] += 1
        return self.counts[name]

    def id_of(self, *content: str | None) -> str:
        """Return an id of this transaction for some content that the body writes.

        A body that runs again gets the same id for the same content, also where it skips a part
        that it finds done. Equal contents get different ids, in their order.
        """
        digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]
        return f"{self.id}-{digest}-{self.count(digest)}"

    def hook(self, name: str, make: Callable[[], H]) -> H:
        """Return this transaction's hook of a name; make it if there is none yet."""
        if name not in self.hooks:
            self.hooks[name] = make()
        return self.hooks[name]  # type: ignore[return-value]

    def before_commit(self) -> None:
        """Let hooks write what has to be decided last: the body has run to its end.

        A hook does so by a method `before_commit`. Its error is the body's.
        """
        for hook in tuple(self.hooks.values()):
            if (write := getattr(hook, "before_commit", None)) is not None:
                write()

    def on_retry(self, cause: Exception) -> None:
        self.counts.clear()
        self.is_contended = self.is_contended or isinstance(cause, rpc_errors.Aborted)
        self._call(lambda hook: hook.on_retry(cause))

    def on_commit(self) -> None:
        if self.committed_s is None:
            self.committed_s = time.monotonic()
        self._call(lambda hook: hook.on_commit())

    def on_outcome_unknown(self) -> None:
        self._call(lambda hook: hook.on_outcome_unknown())

    def _call(self, end: Callable[[TransactionHook], None]) -> None:
        """Call every hook; log the errors, so that neither the commit nor other hooks fail."""
        for name, hook in self.hooks.items():
            try:
                end(hook)
            except Exception:
                log.exception("%s failed to follow a transaction, which goes on", name)


_local = threading.local()


def current_transaction() -> Transaction:
    """Return the transaction that this code runs in.

    Raises:
        NoTransactionError: it does not run in the body of `transact`.
    """
    transaction = running_transaction()
    if transaction is None:
        raise NoTransactionError(
            "there is no transaction here: call this in a function `body`, "
            "and run that by rollforward.datastore.transactions.transact(body)"
        )
    return transaction


def running_transaction() -> Transaction | None:
    """Return the transaction that this code runs in; None: it runs in none of `transact`."""
    return getattr(_local, "transaction", None)


def is_in_transaction() -> bool:
    """Return whether this code runs in a transaction, begun by `transact` or by ndb."""
    context = get_context(raise_context_error=False)
    return context is not None and context.in_transaction()


def check_outside(call: str, twin: str = "") -> None:
    """Check that no transaction runs here: it would not undo a call that commits at once.

    Args:
        twin: The call that joins a transaction; "": there is none.

    Raises:
        RuntimeError: one runs.
    """
    if is_in_transaction():
        instead = f"write {twin}, or " if twin else ""
        raise RuntimeError(
            f"{call} commits at once, and stays if this transaction ends without a commit: "
            f"{instead}do it after the commit"
        )


def pending_writes() -> int:
    """Return how many writes wait for the commit of the transaction that this code runs in.

    ndb has no public way to ask: this looks where it keeps them.
    """
    context = get_context()
    batch = context.commit_batches.get(context.transaction)
    return len(batch.mutations) if batch is not None else 0


@contextlib.contextmanager
def inside(transaction: Transaction) -> Iterator[None]:
    """Make a transaction the current one of this thread."""
    outer = getattr(_local, "transaction", None)  # Refused in a moment, by ndb; then it goes on.
    _local.transaction = transaction
    try:
        yield
    finally:
        _local.transaction = outer


def transact(
    body: Callable[[], T],
    *,
    attempts: int = MAX_ATTEMPTS,
    sleep: Callable[[float], None] = time.sleep,
    jitter: Callable[[float, float], float] = _DICE.uniform,
    elapsed_s: Callable[[], float] = time.monotonic,
) -> T:
    """Run body in a transaction and return its result.

    Args:
        body: Reads and writes entities, guarded against a run after one that was committed.
        attempts: The most runs of the body, at least 1.
        sleep: Waits between two attempts; its argument is in seconds.
        jitter: Picks a pause between two bounds, so that rivals do not collide again.
        elapsed_s: A clock that never goes back, in seconds: after 10 s there is no further attempt.

    Raises:
        NoContextError: this thread has no context of Datastore.
        NotImplementedError: this code runs in a transaction, which would not hold the body.
        TypeError: the body is a generator or a coroutine, which a call would not run.
        google.api_core.exceptions.Aborted: every attempt lost its race, or was given up by the
            service; nothing was written.
        google.api_core.exceptions.GoogleAPICallError: the service's error. When its class is in
            OUTCOME_UNKNOWN, the body may have taken effect.
    """
    if not runs_when_called(body):
        name = getattr(body, "__qualname__", repr(body))
        raise TypeError(f"body must be a plain function, got {name}: called, it would not run")
    return run_attempts(
        partial(_attempt, body),
        attempts=attempts,
        pause=partial(pause_before_retry, sleep=sleep, jitter=jitter),
        elapsed_s=elapsed_s,
    )


def _attempt(body: Callable[[], T], transaction: Transaction) -> T:
    """Run a body in a transaction of ndb, which rolls back after an Exception alone."""
    exits: list[BaseException] = []

    def run() -> T:
        try:
            return run_body(body, transaction)
        except (Exception, *SIGNALS):
            raise
        except BaseException as exit_:
            exits.append(exit_)
            raise RuntimeError("the body has exited") from exit_

    future = _begin(run)
    future.wait()
    if exits:
        raise exits[0]
    return _result(future)  # type: ignore[no-any-return]


def run_attempts(
    attempt: Callable[[Transaction], T],
    *,
    attempts: int = MAX_ATTEMPTS,
    pause: Callable[[int], None] | None = None,
    elapsed_s: Callable[[], float] = time.monotonic,
) -> T:
    """Make attempts of a transaction until one is committed; return its result.

    Each kind of transaction is an attempt of this loop: one that begins at once (`transact`), with
    its first read, or never.

    Args:
        attempt: Runs the body once, by `run_body`, and commits.
        attempts: The most of them, at least 1.
        pause: Waits after a number of failures; None: `pause_before_retry`.
        elapsed_s: A clock that never goes back, in seconds.

    Raises: as of `transact`.
    """
    if attempts < 1:
        raise ValueError(f"attempts must be at least 1, got {attempts}")
    transaction, began_s, handled = Transaction(), elapsed_s(), sys.exc_info()[1]
    pause = pause or pause_before_retry
    with start_span("transaction", attributes={"rollforward.attempts": 1}) as span:
        for failures in itertools.count(1):
            if failures > 1:
                span.set_attribute("rollforward.attempts", failures)
            try:
                with inside(transaction):
                    result = attempt(transaction)
            except BaseException as error:
                cause = first_cause(error, handled)
                if cause is None:
                    transaction.on_outcome_unknown()
                    raise
            else:
                transaction.on_commit()
                return result
            if isinstance(cause, OUTCOME_UNKNOWN):
                transaction.doubt = cause
            is_last = is_last_attempt(failures, began_s, attempts, elapsed_s)
            if not is_last:
                transaction.on_retry(cause)
                pause(failures)
            if is_last or is_too_late(began_s, elapsed_s):  # The process may have stood still.
                transaction.on_outcome_unknown()
                # Not from the attempt's error: the cause stands in its chain, which would close on
                # itself. And not Aborted, when the outcome of an attempt before is unknown.
                raise transaction.doubt or cause from None
    raise AssertionError("unreachable")


def is_last_attempt(
    failures: int,
    began_s: float,
    attempts: int = MAX_ATTEMPTS,
    elapsed_s: Callable[[], float] = time.monotonic,
) -> bool:
    """Return whether there is no further attempt after some failures."""
    return failures >= attempts or is_too_late(began_s, elapsed_s)


def is_too_late(began_s: float, elapsed_s: Callable[[], float] = time.monotonic) -> bool:
    """Return whether no further attempt begins, however few there were."""
    return elapsed_s() - began_s > LAST_ATTEMPT_AFTER_S


def pause_before_retry(
    failures: int,
    sleep: Callable[[float], None] = time.sleep,
    jitter: Callable[[float, float], float] = _DICE.uniform,
) -> None:
    """Pause before the next attempt, longer after each failure."""
    longest_s = INITIAL_BACKOFF_S * BACKOFF_FACTOR ** max(0, failures - 1)
    sleep(jitter(longest_s / 3, longest_s))


def run_body(body: Callable[[], T], transaction: Transaction) -> T:
    """Run the body of a transaction to its end, and then what its hooks write last."""
    result: T = tasklet_result(body())
    transaction.before_commit()
    return result


def _begin(body: Callable[[], T]) -> Any:
    try:
        return ndb.transaction_async(body, retries=0)
    except ContextError:
        raise NoContextError(ADVICE) from None
    except NotImplementedError:
        raise NotImplementedError(NESTED) from None


def _result(future: Any) -> Any:
    """Return the result of a future, or raise its error with its context.

    Raised in the caller's `except` block, an error would get the error at hand as its context.
    """
    if (error := future.exception()) is None:
        return future.result()
    context = error.__context__
    try:
        raise error
    finally:
        error.__context__ = context


def first_cause(error: BaseException, handled: BaseException | None = None) -> Exception | None:
    """Return the earliest retried error of a chain, or None when the chain has none.

    ndb rolls back after a failed commit. If the commit had worked, the rollback fails in its turn,
    and that second error surfaces. The body's own errors are never retried, whichever their cause.

    Args:
        handled: The error that the caller was handling; Python puts it at the chain's end.
    """
    if not isinstance(error, rpc_errors.GoogleAPIError):
        return None
    links = [link for link in _chain(error, handled) if isinstance(link, rpc_errors.GoogleAPIError)]
    retried = [link for link in links if isinstance(link, RETRIED)]
    if retried:
        return retried[-1]
    # Of a commit that was refused, the rollback finds that the transaction has ended.
    return rpc_errors.Aborted(str(links[-1])) if _has_ended(links[-1]) else None  # type: ignore[no-untyped-call]


def _has_ended(error: BaseException) -> bool:
    """Return whether the service refused a call because it has given the transaction up.

    It says so by INVALID_ARGUMENT and by its text alone.

    >>> _has_ended(rpc_errors.InvalidArgument("Transaction is invalid or closed."))
    True
    >>> _has_ended(rpc_errors.InvalidArgument("The transaction is too large."))
    False
    """
    return isinstance(error, rpc_errors.InvalidArgument) and bool(_ENDED.search(str(error)))


def _chain(
    error: BaseException | None, handled: BaseException | None = None
) -> Iterator[BaseException]:
    seen = {id(handled)}  # Chains may be circular.
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        inner = error.cause if isinstance(error, rpc_errors.RetryError) else None
        error = inner or error.__cause__ or error.__context__
