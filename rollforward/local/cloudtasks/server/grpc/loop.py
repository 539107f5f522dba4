"""A server of gRPC on one thread: calls that have come together share a commit.

gRPC's own server for Python hands each call back and forth between two threads, and answers one
after another. That takes three times the processor time. This one drives the same core, by the same
interface, and works in turns:

1. It waits for an event, and takes all that follow without a wait: calls that begin, and messages
   that have come whole.
2. It calls the engine for each message, under one lock.
3. They are committed together, and only then answered.

The interface is not a public one. `server` falls back on gRPC's own server if it has changed.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

import grpc
from grpc._cython import cygrpc  # type: ignore[import-untyped]

from rollforward.local.cloudtasks.engine.engine import Engine
from rollforward.local.cloudtasks.server.front import GRPC_HOST
from rollforward.local.cloudtasks.server.grpc.answers import (
    FAILED,
    OPTIONS,
    Failure,
    method_of,
    respond,
)
from rollforward.local.cloudtasks.server.methods import Method
from rollforward.local.cloudtasks.server.versions import Versions

_MAX_EVENTS = 64
# Calls that may begin before the thread comes round.
_WAITING = 32
_NO_FLAGS = 0
_AT_ONCE = 0
_GRACE_S = 0.2
_NO_METHOD = Failure(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
_NO_MESSAGE = Failure(grpc.StatusCode.INTERNAL, "The request has no message.")

log = logging.getLogger(__name__)


def start(versions: Versions, engine: Engine) -> tuple[int, Callable[[], None]]:
    """Start a server with all services; return its port, and what stops it and waits for that.

    Raises:
        AttributeError, TypeError: the core of gRPC has another interface.
    """
    # What the core takes of an answer would show with the first call only.
    for answered in (b"", _NO_METHOD):
        _operations(answered)
    loop = Loop(versions, engine)
    return loop.port, loop.stop


class Loop:
    """One server and its thread, from construction to stop()."""

    def __init__(self, versions: Versions, engine: Engine) -> None:
        self._versions = versions
        self._engine = engine
        self._methods: dict[bytes, Method | None] = {}
        self._arrived: list[tuple[Any, Method | None, bytes | None]] = []
        self._awaited = 0
        self._lock = threading.Lock()
        self._is_stopping = False
        self._is_shut_down = False
        self._events = cygrpc.CompletionQueue()
        self._server = cygrpc.Server(
            tuple((name.encode(), value) for name, value in OPTIONS), False
        )
        self._server.register_completion_queue(self._events)
        self.port: int = self._server.add_http2_port(f"{GRPC_HOST}:0".encode())
        self._server.start()
        for _ in range(_WAITING):
            self._await_call()
        self._thread = threading.Thread(target=self._run, name="grpc", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Take no call, end those in progress, and wait for that."""
        with self._lock:
            self._is_stopping = True
            self._server.shutdown(self._events, self._shut_down)
        self._thread.join(_GRACE_S)
        if self._thread.is_alive():
            self._server.cancel_all_calls()
            self._thread.join()
        self._server.destroy()

    def _run(self) -> None:
        while not self._is_shut_down or self._awaited:
            self._take_event(None)
            for _ in range(_MAX_EVENTS):
                if not self._take_event(_AT_ONCE):
                    break
            if self._arrived:
                self._respond_all()

    # --- events -----------------------------------------------------------

    def _take_event(self, deadline: float | None) -> bool:
        """Take an event; return whether there was one before the deadline.

        No name here outlives the event: one that refers to a call would keep it from ending.
        """
        event = self._events.poll(deadline=deadline)
        if event.completion_type == cygrpc.CompletionType.queue_timeout:
            return False
        try:
            event.tag(event)
        except Exception:
            log.exception("A call was dropped")
        return True

    def _await_call(self) -> None:
        with self._lock:
            if not self._is_stopping:
                self._server.request_call(self._events, self._events, self._begin)
                self._awaited += 1

    def _await(self, call: Any, operations: Sequence[Any], then: Callable[[Any], None]) -> None:
        """Start operations of a call; the event of their end comes to a function."""
        if call.start_server_batch(operations, then) == cygrpc.CallError.ok:
            self._awaited += 1

    def _begin(self, event: Any) -> None:
        """Wait for the message of a call that begins, and for another call."""
        self._awaited -= 1
        if not event.success:
            return  # The server stops.
        self._await_call()
        call, method = event.call, self._method(event.call_details.method)

        def arrive(received: Any) -> None:
            self._awaited -= 1
            self._arrived.append((call, method, received.batch_operations[0].message()))

        self._await(call, (cygrpc.ReceiveMessageOperation(_NO_FLAGS),), arrive)

    def _end(self, _: Any) -> None:
        self._awaited -= 1

    def _shut_down(self, _: Any) -> None:
        self._is_shut_down = True

    def _method(self, path: bytes) -> Method | None:
        if path not in self._methods:
            method = method_of(self._versions, path.decode(errors="replace"))
            if method is None:
                return None  # Not kept: there is no end of wrong names.
            self._methods[path] = method
        return self._methods[path]

    # --- answers ----------------------------------------------------------

    def _respond_all(self) -> None:
        """Answer the messages that have come, when all of them are committed."""
        arrived, self._arrived = self._arrived, []
        answers: list[bytes | Failure]
        try:
            with self._engine.together():
                answers = [_respond(method, message) for _, method, message in arrived]
        except Exception:
            log.exception("%d calls were not committed", len(arrived))
            answers = [FAILED] * len(arrived)
        for (call, _, _), answered in zip(arrived, answers, strict=True):
            try:
                self._await(call, _operations(answered), self._end)
            except Exception:
                # It must not end the thread, and with it all calls to come.
                log.exception("A call was not answered")


def _respond(method: Method | None, message: bytes | None) -> bytes | Failure:
    if method is None:
        return _NO_METHOD
    if message is None:
        return _NO_MESSAGE
    return respond(method, message)


def _operations(answered: bytes | Failure) -> tuple[Any, ...]:
    """Return what sends an answer and ends its call."""
    begin = cygrpc.SendInitialMetadataOperation((), _NO_FLAGS)
    end = cygrpc.ReceiveCloseOnServerOperation(_NO_FLAGS)
    if isinstance(answered, bytes):
        status = cygrpc.SendStatusFromServerOperation((), cygrpc.StatusCode.ok, b"", _NO_FLAGS)
        return begin, cygrpc.SendMessageOperation(answered, _NO_FLAGS), status, end
    code, details = answered.code.value[0], answered.message.encode(errors="replace")
    status = cygrpc.SendStatusFromServerOperation(answered.metadata, code, details, _NO_FLAGS)
    return begin, status, end
