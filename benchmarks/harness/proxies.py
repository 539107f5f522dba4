"""Proxies for Datastore and Cloud Tasks that lose, delay, repeat and cut calls on request."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc

from rollforward.local.system import ports

COMMIT = "/google.datastore.v1.Datastore/Commit"
CUT_EVERY_S = 0.1
_ANY_SIZE = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]

# Calls the service; raises grpc.RpcError.
Forward = Callable[[], bytes]


class Refused(Exception):
    """Raised to answer the caller with a status code."""

    def __init__(self, code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE) -> None:
        super().__init__(code)
        self.code = code


@dataclass(frozen=True)
class Trouble:
    """A share of the calls, and the fault that they meet."""

    answer: Callable[[Forward], bytes]
    share: float = 1.0
    method: str = ""  # Empty: all methods.

    def hits(self, method: str) -> bool:
        return self.method in ("", method) and random.random() < self.share


def lost(forward: Forward) -> bytes:
    """Forward the call, and lose the reply."""
    forward()
    raise Refused


def away(forward: Forward) -> bytes:
    """Refuse the call without forwarding it."""
    raise Refused


def refused(code: grpc.StatusCode) -> Callable[[Forward], bytes]:
    """Return a fault that answers with a code, without forwarding the call."""

    def answer(forward: Forward) -> bytes:
        raise Refused(code)

    return answer


def slow(forward: Forward) -> bytes:
    """Forward the call after a second."""
    time.sleep(1)
    return forward()


def late(forward: Forward) -> bytes:
    """Forward the call, and reply after the caller has timed out."""
    answer = forward()
    time.sleep(3)
    return answer


def twice(forward: Forward) -> bytes:
    """Forward the call, and repeat it."""
    answer = forward()
    with contextlib.suppress(grpc.RpcError):
        forward()
    return answer


# Gets the method, the request and the answer of each forwarded call; None: an error.
Watch = Callable[[str, bytes, bytes | None], None]
# Calls the service; its arguments are a function that sends a request, the method, the request.
Ask = Callable[[Callable[[bytes], bytes], str, bytes], bytes]


def plainly(send: Callable[[bytes], bytes], method: str, request: bytes) -> bytes:
    """Send the caller's request unchanged."""
    return send(request)


class Proxy(grpc.GenericRpcHandler):
    """Forwards every call, unless a trouble is active and matches it."""

    def __init__(
        self, channel: grpc.Channel, watch: Watch | None = None, ask: Ask = plainly
    ) -> None:
        self.address = ""
        self._channel = channel
        self._watch = watch
        self._ask = ask
        self._troubles: list[Trouble] = []

    def trouble(self, trouble: Trouble, seconds: float) -> None:
        """Cause a trouble for some seconds, in addition to any other trouble."""
        self._troubles.append(trouble)
        time.sleep(seconds)
        self._troubles.remove(trouble)

    def service(self, handler_call_details: Any) -> Any:
        method = handler_call_details.method
        call = self._channel.unary_unary(method)

        def serve(request: bytes, context: grpc.ServicerContext) -> bytes:
            def forward() -> bytes:
                answer: bytes | None = None
                try:
                    answer = self._ask(partial(call, timeout=60), method, request)
                finally:
                    if self._watch is not None:
                        self._watch(method, request, answer)
                return answer

            striking = (trouble for trouble in [*self._troubles] if trouble.hits(method))
            try:
                if (trouble := next(striking, None)) is not None:
                    return trouble.answer(forward)
                return forward()
            except Refused as refusal:
                context.abort(refusal.code, "the proxy refuses")
            except grpc.RpcError as error:
                context.abort(error.code(), error.details())

        return grpc.unary_unary_rpc_method_handler(serve)


@contextlib.contextmanager
def proxy_before(service: str, watch: Watch | None = None, ask: Ask = plainly) -> Iterator[Proxy]:
    """Run a proxy in front of a service, which may start later."""
    with grpc.insecure_channel(service, _ANY_SIZE) as channel:
        server = grpc.server(futures.ThreadPoolExecutor(64), options=_ANY_SIZE)
        proxy = Proxy(channel, watch, ask)
        server.add_generic_rpc_handlers([proxy])
        proxy.address = f"{ports.LOOPBACK}:{server.add_insecure_port(f'{ports.LOOPBACK}:0')}"
        server.start()
        try:
            yield proxy
        finally:
            server.stop(0).wait()


class Wire:
    """Forwards bytes in both directions, and cuts connections on request."""

    def __init__(self, service: str) -> None:
        host, _, port = service.rpartition(":")
        self._service = (host, int(port))
        self._listener = socket.create_server((ports.LOOPBACK, 0))
        self._lock = threading.Lock()
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._flows = threading.Event()
        self._flows.set()
        self.address = f"{ports.LOOPBACK}:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, share: float, seconds: float) -> None:
        """Cut a share of all connections, ten times a second."""
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at:
            with self._lock:
                unlucky = [pair for pair in self._pairs if random.random() < share]
            for pair in unlucky:
                self._hang_up(pair)
            time.sleep(CUT_EVERY_S)

    def hold(self, seconds: float) -> None:
        """Forward nothing for some seconds: the service is reachable, but silent."""
        self._flows.clear()
        time.sleep(seconds)
        self._flows.set()

    def close(self) -> None:
        self._flows.set()
        self._listener.close()
        for pair in list(self._pairs):
            self._hang_up(pair)

    def _accept(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:  # The socket was closed.
                return
            try:
                service = socket.create_connection(self._service)
            except OSError:
                caller.close()
                continue
            pair = (caller, service)
            with self._lock:
                self._pairs.add(pair)
            for source, sink in (pair, pair[::-1]):
                threading.Thread(target=self._hand_on, args=(pair, source, sink)).start()

    def _hand_on(
        self, pair: tuple[socket.socket, socket.socket], source: socket.socket, sink: socket.socket
    ) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                self._flows.wait()
                sink.sendall(data)
        self._hang_up(pair)

    def _hang_up(self, pair: tuple[socket.socket, socket.socket]) -> None:
        with self._lock:
            self._pairs.discard(pair)
        for end in pair:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


@contextlib.contextmanager
def wire_before(service: str) -> Iterator[Wire]:
    """Run a wire to a service."""
    wire = Wire(service)
    try:
        yield wire
    finally:
        wire.close()
