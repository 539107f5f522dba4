"""Interceptors of every remote call over gRPC: a deadline, and a meter.

The meter counts as a bill does: `rollforward/local/prices.toml` has the rules with their sources.
It also counts the calls that fail, for operators.

Both sit in the channel, so they see ndb, google-cloud-datastore and google-cloud-tasks alike, and
tests put their faults in the same place.

`BlockingTransactions` waits in place for the calls that ndb makes in a transaction.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

import grpc
from google.cloud.datastore_v1.services.datastore.transports import DatastoreGrpcTransport
from google.cloud.datastore_v1.types import EntityResult, QueryResultBatch

from rollforward.runtime.channel.call_failures import CallFailures
from rollforward.runtime.channel.failed_call import error_of


@dataclass
class Cost:
    """The cost of a piece of work, in billable operations.

    Attributes:
        reads: Entities looked up or returned by a query; keys alone are a small operation.
        writes: Entities put or deleted.
        tasks: Tasks created.
        round_trips: Remote calls of any kind.
        deletes: Entities deleted, which `writes` counts, too: they have a price of their own.
        query_reads: Reads that are charged for a query itself, because it returned no entity.
        task_operations: Billed by Cloud Tasks: its calls, by tasks, and deliveries.
    """

    reads: int = 0
    writes: int = 0
    tasks: int = 0
    round_trips: int = 0
    deletes: int = 0
    query_reads: int = 0
    task_operations: int = 0

    @classmethod
    def of(cls, stored: Mapping[str, int]) -> Cost:
        """Return a stored cost; another version of the app may have stored more fields."""
        return cls(**{name: stored[name] for name in _FIELDS if name in stored})

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(getattr(self, name) + getattr(other, name) for name in _FIELDS))

    def __sub__(self, other: Cost) -> Cost:
        return Cost(*(getattr(self, name) - getattr(other, name) for name in _FIELDS))

    def as_dict(self) -> dict[str, int]:
        """Return each count by its name."""
        return asdict(self)


_FIELDS = tuple(field.name for field in fields(Cost))
_NOTHING = Cost()


class Meter(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    """Counts the remote calls of each thread, and those that fail.

    Attributes:
        failures: The failed calls of this process.
    """

    def __init__(self) -> None:
        self.failures = CallFailures()
        self._local = threading.local()
        self._lock = threading.Lock()
        self._total = Cost()

    def cost(self) -> Cost:
        """Return the cost of this thread so far; subtract two to price the work between."""
        with self._lock:
            return self._usage() + Cost()

    def total(self) -> Cost:
        """Return the cost of all threads so far."""
        with self._lock:
            return self._total + Cost()

    def delivered(self, body_bytes: int) -> None:
        """Count a delivery of a task to this process, which Cloud Tasks charges as a call."""
        self._add(self._usage(), Cost(task_operations=_chunks(body_bytes)))

    def intercept_unary_unary(
        self, continuation: Callable[[Any, Any], Any], details: Any, request: Any
    ) -> Any:
        spent = self._usage()
        service, _, rpc = details.method.removeprefix("/").partition("/")
        asked = _request_cost(service, rpc, request)
        self._add(spent, Cost(round_trips=1) + asked)
        call = continuation(details, request)
        call.add_done_callback(lambda done: self._end(spent, service, rpc, asked, done))
        return call

    def _end(self, spent: Cost, service: str, rpc: str, asked: Cost, call: Any) -> None:
        """Add the cost of an answer, or count a failure."""
        error = error_of(call)
        if isinstance(error, grpc.RpcError):
            self.failures.note(service, rpc, error.code().name)
        if rpc in _ANSWERS:
            self._add(spent, _reply_cost(rpc, asked, call, error))

    def _usage(self) -> Cost:
        if not hasattr(self._local, "spent"):
            self._local.spent = Cost()
        return self._local.spent  # type: ignore[no-any-return]

    def _add(self, spent: Cost, added: Cost) -> None:
        if added == _NOTHING:
            return
        with self._lock:
            for bill in (spent, self._total):
                for name in _FIELDS:
                    setattr(bill, name, getattr(bill, name) + getattr(added, name))


# Cloud Tasks charges a larger call as several operations.
_CHUNK_BYTES = 32 * 1024
# After these Datastore has done nothing, so it charges nothing. After others it is unknown.
_REFUSALS = (
    *(grpc.StatusCode.ABORTED, grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.NOT_FOUND),
    *(grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT),
    *(grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.PERMISSION_DENIED),
)


def _chunks(size: int) -> int:
    return max(1, -(-size // _CHUNK_BYTES))


def _request_cost(service: str, rpc: str, request: Any) -> Cost:
    """Price a call by its request."""
    if service != "google.datastore.v1.Datastore":
        return _cloud_tasks_cost(rpc, request)
    match rpc:
        case "Lookup":
            return Cost(reads=len(request.keys))
        case "Commit":
            mutations = message_of(request).mutations
            deletes = sum(mutation.HasField("delete") for mutation in mutations)
            return Cost(writes=len(mutations), deletes=deletes)
        case "RunAggregationQuery":
            return Cost(query_reads=1)
        case _:
            return Cost()


def _cloud_tasks_cost(rpc: str, request: Any) -> Cost:
    match rpc:
        case "CreateTask":
            requests = [message_of(request)]
        case "BatchCreateTasks":
            requests = message_of(request).requests
        case _:
            return Cost(task_operations=1)
    operations = sum(_chunks(task.ByteSize()) for task in requests)
    return Cost(tasks=len(requests), task_operations=operations)


def message_of(request: Any) -> Any:
    """Return the message itself; the client libraries wrap it."""
    kind = type(request)
    return kind.pb(request) if hasattr(kind, "pb") else request


def _reply_cost(rpc: str, asked: Cost, call: Any, error: Exception | None) -> Cost:
    """Price a call by its answer: the cost that is not in its request."""
    if error is not None:
        is_refused = isinstance(error, grpc.RpcError) and error.code() in _REFUSALS
        return _NOTHING - asked if is_refused else _NOTHING
    return _ANSWERS[rpc](call.result())


def _returned(answer: Any) -> Cost:
    """Price a query by its results and its offset; one without an entity is a read."""
    batch = answer.batch
    is_keys = batch.entity_result_type == EntityResult.ResultType.KEY_ONLY
    reads = batch.skipped_results + (0 if is_keys else len(batch.entity_results))
    goes_on = batch.more_results == QueryResultBatch.MoreResultsType.NOT_FINISHED
    return Cost(reads=reads, query_reads=0 if reads or goes_on else 1)


_ANSWERS: dict[str, Callable[[Any], Cost]] = {
    "Lookup": lambda answer: Cost(reads=-len(answer.deferred)),  # They are asked for again.
    "Commit": lambda answer: _NOTHING,
    "RunQuery": _returned,
}


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

    ndb sets none by default, so a server that accepts and never answers would hold a thread for
    ever.
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
    """Datastore's calls as ndb makes them; the calls of a transaction block.

    ndb asks for a future each time, and gRPC then runs a thread for it, which costs about as much
    processor time as the call (docs/performance/saves-and-views.md). A transaction's calls come one
    after another, so blocking costs nothing. Outside of a transaction ndb makes several at once.
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
    """A remote method whose future is complete at once, if it belongs to a transaction."""

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
