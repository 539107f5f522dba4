"""Faults at remote calls: the narrow seam through which tests break the world.

Every remote call of the code under test (Datastore and Cloud Tasks over gRPC, the mail relay,
memcached) asks a `FaultPlan` first. The plan counts the calls and may, at one of them:

    error         fail before the effect
    reply-lost    take effect, then fail
    crash-before  the process dies before the effect
    crash-after   the process dies after the effect
    flush         empty memcached, then go on
    overlap       deliver the same task again, to its end, while this call waits

An error and a lost reply may name their gRPC code ("reply-lost:DEADLINE_EXCEEDED"); without one
it is UNAVAILABLE. A plan may break several calls of one play.

A crash is a BaseException that unwinds the call; from then on the dead process may not
reach anything, so its `finally` blocks have no more effect than those of a killed process.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from email.message import EmailMessage
from typing import Any

import grpc

from pipelines.invitations.mail import Connection, Mailer
from rollforward.runtime import Cache
from rollforward.runtime.channel.failed_call import FailedCall
from rollforward.runtime.channel.rpc import _BlockingCall as BlockingCall
from rollforward.tasks import Unavailable

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
FLUSH, OVERLAP = "flush", "overlap"


class Crash(BaseException):
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
class FaultPlan:
    """Counts the remote calls of the thread under test, and breaks one of them, or more."""

    at: int | None = None
    kind: str = ""
    more: dict[int, str] = field(
        default_factory=dict
    )  # Further faults: at which call, of which kind.
    next_call: str = ""  # Break the first call of this name that comes, whichever it is.
    on_fire: Callable[[], None] = lambda: None
    calls: list[str] = field(default_factory=list)
    fired: str = ""
    is_watching: bool = False
    dead_threads: set[int] = field(default_factory=set)

    def reset(
        self,
        kind: str = "",
        at: int | None = None,
        *,
        more: Mapping[int, str] = {},
        next_call: str = "",
    ) -> None:
        """Count from zero, and break what is asked for."""
        self.kind, self.at, self.more, self.next_call = kind, at, dict(more), next_call
        self.calls, self.fired = [], ""

    def around(
        self, name: str, effect: Callable[[], Any], error: Callable[[grpc.StatusCode], Exception]
    ) -> Any:
        """Do one remote call, or break it."""
        self.check_alive()
        if not self.is_watching:
            return effect()
        index = len(self.calls)
        self.calls.append(name)
        if name == self.next_call:
            self.at, self.next_call = index, ""
        kind = self.kind if index == self.at else self.more.get(index)
        if kind is None:
            return effect()
        fired = f"{kind} at call {index} ({name})"
        self.fired = f"{self.fired}, then {fired}" if self.fired else fired
        return self._break(kind, effect, error)

    def _break(
        self, kind: str, effect: Callable[[], Any], error: Callable[[grpc.StatusCode], Exception]
    ) -> Any:
        what = kind.partition(":")[0]
        if what == ERROR:
            raise error(code_of(kind))
        if what == CRASH_BEFORE:
            self.die()
        if what in (FLUSH, OVERLAP):
            with self.unwatched():
                self.on_fire()
            return effect()
        effect()
        if what == REPLY_LOST:
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
        before, self.is_watching = self.is_watching, False
        try:
            yield
        finally:
            self.is_watching = before

    def die(self) -> None:
        """Let the process of this thread die: it reaches nothing any more."""
        self.dead_threads.add(threading.get_ident())
        raise Crash


class FaultyWire(grpc.UnaryUnaryClientInterceptor):
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

        return self.plan.around(name, effect, CallFailed)

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
        found = getattr(self.stub, name)
        return BlockingCall(found, lambda request: True) if name in _CALLS else found


_CALLS = ("allocate_ids", "begin_transaction", "commit", "lookup", "rollback", "run_query")


@dataclass(frozen=True)
class FaultyMailer:
    """A mail relay behind a plan."""

    mailer: Mailer
    plan: FaultPlan

    @property
    def sender(self) -> str:
        return self.mailer.sender

    @contextlib.contextmanager
    def connect(self) -> Iterator[Connection]:
        self.plan.check_alive()
        with self.mailer.connect() as line:
            yield _FaultyLine(line, self.plan)


@dataclass(frozen=True)
class _FaultyLine:
    line: Connection
    plan: FaultPlan

    def send(self, mail: EmailMessage) -> None:
        self.plan.around("send", lambda: self.line.send(mail), lambda code: Unavailable(code.name))


@dataclass(frozen=True)
class FaultyCache:
    """memcached behind a plan; a failing call is a miss, as the real client makes it."""

    cache: Cache
    plan: FaultPlan

    def get(self, key: str) -> bytes | None:
        return self._around("get", lambda: self.cache.get(key), None)

    def set(self, key: str, value: bytes, ttl_s: int) -> bool:
        return self._around("set", lambda: self.cache.set(key, value, ttl_s), False)

    def add(self, key: str, value: bytes, ttl_s: int) -> bool:
        return self._around("add", lambda: self.cache.add(key, value, ttl_s), False)

    def delete(self, key: str) -> bool:
        return self._around("delete", lambda: self.cache.delete(key), False)

    def incr(self, key: str, delta: int, ttl_s: int) -> int | None:
        return self._around("count", lambda: self.cache.incr(key, delta, ttl_s), None)

    def incr_existing(self, key: str, delta: int) -> int | None:
        return self._around("change", lambda: self.cache.incr_existing(key, delta), None)

    def ping(self) -> bool:
        return self.cache.ping()

    def close(self) -> None:
        self.cache.close()

    def _around(self, name: str, effect: Callable[[], Any], miss: Any) -> Any:
        try:
            return self.plan.around(f"cache.{name}", effect, lambda code: _Miss())
        except _Miss:
            return miss


class _Miss(Exception):
    pass
