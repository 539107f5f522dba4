"""Faults at remote calls: the seam through which a test breaks an app's services.

Every remote call of the code under test asks a `FaultPlan` first: Datastore and Cloud Tasks over
gRPC, memcached, and the app's own services. The plan counts the calls and may, at one of them:

    error         fail before the effect
    reply-lost    take effect, then fail
    crash-before  the process dies before the effect
    crash-after   the process dies after the effect
    flush         empty memcached, then continue
    overlap       deliver the same task again, to its end, while this call waits
    meanwhile     let another visitor act, to the end, while this call waits

An error and a lost reply may name their gRPC code ("reply-lost:DEADLINE_EXCEEDED"); without one
it is UNAVAILABLE. A plan may break several calls of one play.

A crash is a BaseException that unwinds the call; from then on the dead process may not
reach anything, so its `finally` blocks have no effect, as in a killed process.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import grpc

from rollforward.app_code import ControlFlow
from rollforward.runtime import Cache
from rollforward.runtime.channel.failed_call import FailedCall
from rollforward.runtime.channel.rpc import _BlockingCall as BlockingCall
from rollforward.tasks import Unavailable
from rollforward.testing.calls import APP, CACHE, RemoteCall, describe

# What a service may answer although the call took effect, or will.
UNKNOWN_OUTCOMES = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DATA_LOSS,
)
# What it may answer to a call without effect, and not because of what was asked for.
FAILURES = (*UNKNOWN_OUTCOMES, grpc.StatusCode.ABORTED, grpc.StatusCode.RESOURCE_EXHAUSTED)
ERROR, REPLY_LOST = "error", "reply-lost"
CRASH_BEFORE, CRASH_AFTER = "crash-before", "crash-after"
KINDS = (ERROR, REPLY_LOST, CRASH_BEFORE, CRASH_AFTER)
FLUSH, OVERLAP, MEANWHILE = "flush", "overlap", "meanwhile"


class Crash(ControlFlow):
    """The process died."""


class CallFailed(FailedCall):
    """The error of a caller whose request, or its answer, is lost."""

    def __init__(self, code: grpc.StatusCode) -> None:
        super().__init__(code, "made by a test")


def code_of(kind: str) -> grpc.StatusCode:
    """Return the gRPC code that a kind of fault names, or UNAVAILABLE.

    >>> code_of("reply-lost:ABORTED"), code_of("error")
    (<StatusCode.ABORTED: (10, 'aborted')>, <StatusCode.UNAVAILABLE: (14, 'unavailable')>)
    """
    return grpc.StatusCode[kind.partition(":")[2] or "UNAVAILABLE"]


@dataclass
class NextFault:
    """A fault at the next calls of a service, or of a name, whichever come."""

    target: str
    kind: str
    times: int


@dataclass
class FaultPlan:
    """Counts the remote calls of the thread under test, and breaks one of them, or more."""

    at: int | None = None
    kind: str = ""
    more: dict[int, str] = field(
        default_factory=dict
    )  # Further faults: at which call, of which kind.
    next_call: str = ""  # Break the first call of this name that comes, whichever it is.
    on_fire: Callable[[], None] = lambda: None
    pending: list[NextFault] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    remote_calls: list[RemoteCall] = field(default_factory=list)  # The same, described.
    fired: str = ""
    on_break: Callable[[str, int, RemoteCall], None] = lambda kind, index, call: None
    is_watching: bool = False
    delivery: str = ""  # The task whose delivery makes the calls.
    dead_threads: set[int] = field(default_factory=set)

    def reset(
        self,
        kind: str = "",
        at: int | None = None,
        *,
        more: Mapping[int, str] = {},
        next_call: str = "",
    ) -> None:
        """Count from zero, and break the given calls."""
        self.kind, self.at, self.more, self.next_call = kind, at, dict(more), next_call
        self.calls, self.remote_calls, self.pending = [], [], []
        self.fired = ""

    def break_next(self, target: str, kind: str, times: int = 1) -> None:
        """Break the next calls of a service ("datastore") or of a name ("Commit")."""
        self.pending.append(NextFault(target, kind, times))

    def around(
        self,
        name: str,
        effect: Callable[[], Any],
        error: Callable[[grpc.StatusCode], Exception],
        described: Callable[[], RemoteCall] | None = None,
    ) -> Any:
        """Do one remote call, or break it."""
        self.check_alive()
        if not (self.is_watching or self.pending):
            return effect()
        call = described() if described is not None else RemoteCall(name, APP)
        call = replace(call, delivery=self.delivery)
        index = len(self.calls)
        self.calls.append(name)
        self.remote_calls.append(call)
        kind = self._fault_at(index, call)
        if kind is None:
            return effect()
        fired = f"{kind} at call {index} ({name})"
        self.fired = f"{self.fired}, then {fired}" if self.fired else fired
        self.on_break(kind, index, call)
        return self._break(kind, effect, error)

    def _fault_at(self, index: int, call: RemoteCall) -> str | None:
        if call.name == self.next_call:
            self.at, self.next_call = index, ""
        if index == self.at:
            return self.kind
        for fault in self.pending:
            if fault.target in (call.name, call.service):
                fault.times -= 1
                self.pending = [other for other in self.pending if other.times > 0]
                return fault.kind
        return self.more.get(index)

    def _break(
        self, kind: str, effect: Callable[[], Any], error: Callable[[grpc.StatusCode], Exception]
    ) -> Any:
        fault = kind.partition(":")[0]
        if fault == ERROR:
            raise error(code_of(kind))
        if fault == CRASH_BEFORE:
            self.die()
        if fault in (FLUSH, OVERLAP, MEANWHILE):
            with self.unwatched():
                self.on_fire()
            return effect()
        effect()
        if fault == REPLY_LOST:
            raise error(code_of(kind))
        self.die()
        return None

    def check_alive(self) -> None:
        """A dead process reaches nothing."""
        if threading.get_ident() in self.dead_threads:
            raise Crash

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Count and break the calls of this block."""
        self.is_watching = True
        try:
            yield
        finally:
            self.is_watching = False

    @contextlib.contextmanager
    def unwatched(self) -> Iterator[None]:
        """Leave the calls of this block alone."""
        was_watching, self.is_watching = self.is_watching, False
        pending, self.pending = self.pending, []
        try:
            yield
        finally:
            self.is_watching, self.pending = was_watching, pending

    def die(self) -> None:
        """Let the process of this thread die: it reaches nothing any more."""
        self.dead_threads.add(threading.get_ident())
        raise Crash


class FaultyWire(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    """Puts a plan around the calls of a gRPC channel, and remembers open transactions."""

    def __init__(self, plan: FaultPlan, ask: Callable[[Any, Any, Any], Any]) -> None:
        self.plan = plan
        self.open_transactions: dict[bytes, Callable[[], None]] = {}
        self.ask = ask  # Makes a call, or a part of it.

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        name = details.method.rpartition("/")[2]

        def effect() -> Any:
            call = self.ask(continuation, details, request)
            call.result()
            self._follow(name, request, call)
            return call

        return self.plan.around(name, effect, CallFailed, lambda: describe(details, request))

    def _follow(self, name: str, request: Any, call: Any) -> None:
        if name == "BeginTransaction":
            self.open_transactions[call.result().transaction] = lambda: None
        elif name in ("Commit", "Rollback"):
            self.open_transactions.pop(request.transaction, None)


@dataclass(frozen=True)
class WaitingStub:
    """Datastore's stub behind a `FaultyWire`, which waits for each call before the next.

    So the futures that ndb asks for are there at once, and gRPC runs no thread for each of them:
    that thread took more time than the call.
    """

    stub: Any

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.stub, name)
        return BlockingCall(method, lambda request: True) if name in _CALLS else method


_CALLS = ("allocate_ids", "begin_transaction", "commit", "lookup", "rollback", "run_query")


@dataclass(frozen=True)
class FaultyCache:
    """memcached behind a plan; a failing call is a miss, as the real client makes it."""

    cache: Cache
    plan: FaultPlan

    def get(self, key: str) -> bytes | None:
        value: bytes | None = self._around("get", key, lambda: self.cache.get(key), None)
        return value

    def set(self, key: str, value: bytes, ttl_s: int) -> bool:
        return bool(self._around("set", key, lambda: self.cache.set(key, value, ttl_s), False))

    def add(self, key: str, value: bytes, ttl_s: int) -> bool:
        return bool(self._around("add", key, lambda: self.cache.add(key, value, ttl_s), False))

    def delete(self, key: str) -> bool:
        return bool(self._around("delete", key, lambda: self.cache.delete(key), False))

    def incr(self, key: str, delta: int, ttl_s: int) -> int | None:
        count: int | None = self._around(
            "count", key, lambda: self.cache.incr(key, delta, ttl_s), None
        )
        return count

    def incr_existing(self, key: str, delta: int) -> int | None:
        count: int | None = self._around(
            "change", key, lambda: self.cache.incr_existing(key, delta), None
        )
        return count

    def ping(self) -> bool:
        return self.cache.ping()

    def close(self) -> None:
        self.cache.close()

    def _around(self, name: str, key: str, effect: Callable[[], Any], miss: Any) -> Any:
        try:
            return self.plan.around(
                f"cache.{name}",
                effect,
                lambda code: _Miss(),
                lambda: RemoteCall.here(f"cache.{name}", CACHE, key),
            )
        except _Miss:
            return miss


class _Miss(Exception):
    pass


class FaultyService:
    """A service of the app behind a plan: each call of a method is a remote call.

    An error and a lost reply raise `Unavailable`, as a client of a payment provider should.
    """

    def __init__(self, name: str, service: Any, plan: FaultPlan) -> None:
        vars(self).update(_name=name, _service=service, _plan=plan)

    def __setattr__(self, attribute: str, value: Any) -> None:
        setattr(self._service, attribute, value)

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(self._service, attribute)
        if attribute.startswith("_") or not callable(value):
            return value
        return self._watched(attribute, value)

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._watched("__call__", self._service)(*args, **options)

    def _watched(self, method: str, function: Callable[..., Any]) -> Callable[..., Any]:
        name = f"{self._name}.{method}"

        def call(*args: Any, **options: Any) -> Any:
            return self._plan.around(
                name,
                lambda: function(*args, **options),
                lambda code: Unavailable(code.name),
                lambda: RemoteCall.here(name, APP),
            )

        return call
