"""What every remote call over gRPC goes through: a deadline, and a count.

Both are interceptors of the channel, so they see ndb, google-cloud-datastore and
google-cloud-tasks alike, and tests put their faults in the same place.

What ndb calls in a transaction goes through `BlockingTransactions`, which waits for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

import grpc
from google.cloud.datastore_v1.services.datastore.transports import DatastoreGrpcTransport
from google.cloud.datastore_v1.types import EntityResult


@dataclass
class Cost:
    """What a piece of work asked of the services, in billable operations.

    `reads` counts entities looked up or returned by a query (keys alone are a small operation,
    and no read), `writes` entities put or deleted, `tasks` tasks created, `round_trips` remote
    calls of any kind.
    """

    reads: int = 0
    writes: int = 0
    tasks: int = 0
    round_trips: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Cost)))

    def __sub__(self, other: Cost) -> Cost:
        return Cost(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(Cost)))

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


class Meter(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    """Counts the remote calls of each thread."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._lock = threading.Lock()
        self._total = Cost()

    def cost(self) -> Cost:
        """Return what this thread has spent so far; subtract two to price what is between."""
        with self._lock:
            return self._spent() + Cost()

    def total(self) -> Cost:
        """Return what all threads have spent so far."""
        with self._lock:
            return self._total + Cost()

    def intercept_unary_unary(
        self, continuation: Callable[[Any, Any], Any], details: Any, request: Any
    ) -> Any:
        spent = self._spent()
        rpc = details.method.rpartition("/")[2]
        self._add(spent, Cost(round_trips=1) + _asked(rpc, request))
        call = continuation(details, request)
        if rpc == "RunQuery":
            call.add_done_callback(lambda done: self._add(spent, _returned(done)))
        return call

    def _spent(self) -> Cost:
        if not hasattr(self._local, "spent"):
            self._local.spent = Cost()
        return self._local.spent  # type: ignore[no-any-return]

    def _add(self, spent: Cost, more: Cost) -> None:
        with self._lock:
            for bill in (spent, self._total):
                for field in fields(Cost):
                    sum_ = getattr(bill, field.name) + getattr(more, field.name)
                    setattr(bill, field.name, sum_)


def _asked(rpc: str, request: Any) -> Cost:
    """Price a call by what it asks for."""
    match rpc:
        case "Lookup":
            return Cost(reads=len(request.keys))
        case "Commit":
            return Cost(writes=len(request.mutations))
        case "CreateTask":
            return Cost(tasks=1)
        case "BatchCreateTasks":
            return Cost(tasks=len(request.requests))
        case _:
            return Cost()


def _returned(call: Any) -> Cost:
    """Price a query by what it returned and what it skipped."""
    if call.exception() is not None:
        return Cost()
    batch = call.result().batch
    if batch.entity_result_type == EntityResult.ResultType.KEY_ONLY:
        return Cost()
    return Cost(reads=len(batch.entity_results) + batch.skipped_results)


class _Details(NamedTuple):
    """The fields that gRPC reads of a call's details."""

    method: str
    timeout: float | None
    metadata: Any
    credentials: Any
    wait_for_ready: bool | None
    compression: Any


class DeadlineInterceptor(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    """Gives a deadline to each call that has none.

    ndb sets none by default: a server that accepts and stays silent would hold a thread
    for ever.
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s

    def intercept_unary_unary(
        self, continuation: Callable[[Any, Any], Any], details: Any, request: Any
    ) -> Any:
        if details.timeout is None:
            details = _Details(
                details.method,
                self.timeout_s,
                details.metadata,
                details.credentials,
                getattr(details, "wait_for_ready", None),
                getattr(details, "compression", None),
            )
        return continuation(details, request)


class BlockingTransactions(DatastoreGrpcTransport):  # type: ignore[misc]
    """Datastore's calls as ndb makes them; those of a transaction are waited for in place.

    ndb asks for a future each time, and gRPC then runs a thread for it, which costs about as much
    processor time as the call (docs/performance.md). A transaction's calls come one after
    another, so nothing is lost by waiting. Outside of one ndb has several under way at once.
    """

    @property
    def begin_transaction(self) -> _BlockingCall:
        return _BlockingCall(super().begin_transaction, lambda request: True)

    @property
    def lookup(self) -> _BlockingCall:
        return _BlockingCall(super().lookup, lambda request: bool(request.read_options.transaction))

    @property
    def commit(self) -> _BlockingCall:
        return _BlockingCall(super().commit, lambda request: bool(request.transaction))

    @property
    def rollback(self) -> _BlockingCall:
        return _BlockingCall(super().rollback, lambda request: True)


class _BlockingCall:
    """A remote method whose future is there at once, when it is a transaction's."""

    def __init__(self, method: Any, is_in_transaction: Callable[[Any], bool]) -> None:
        self.method = method
        self.is_in_transaction = is_in_transaction

    def __call__(self, request: Any, **options: Any) -> Any:
        return self.method(request, **options)

    def future(self, request: Any, **options: Any) -> Any:
        if not self.is_in_transaction(request):
            return self.method.future(request, **options)
        future: Future[Any] = Future()
        try:
            future.set_result(self.method(request, **options))
        except grpc.RpcError as error:
            future.set_exception(error)
        return future
