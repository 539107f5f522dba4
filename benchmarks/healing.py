"""How long after the last fault everything is exact again, on the whole stack as `make run` has it.

Writers add to a sum and to a school without pause while a fault strikes; then they end, and the
time counts until total and bars are what was accepted. A write without an answer is sent again
with its key. Cron rests: what is measured is not the sweep of the next minute.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import grpc

from benchmarks.books import Books
from benchmarks.dev_server import Stack, running
from benchmarks.results import Result
from devserver import ports
from devserver.services import datastore_emulator

WRITE_S, FORGET_S = 3.0, 8.0
LOST_SHARE = 0.3
COMMIT = "/google.datastore.v1.Datastore/Commit"


def measure() -> Iterator[Result]:
    """Measure each kind of fault once; the targets are for a machine with nothing else to do."""
    with running() as stack:
        yield _result("killed_worker", 10.0, heal(stack, stack.kill_worker))
    with running() as stack:
        yield _result("graceful_restart", 5.0, heal(stack, stack.restart))
    with (
        datastore_emulator() as real,
        forgetful(real) as proxy,
        running(DATASTORE_EMULATOR_HOST=proxy.address) as stack,
    ):
        yield _result("lost_replies", 5.0, heal(stack, proxy.forget_for_a_while))


def _result(name: str, most_s: float, healed: dict[str, float]) -> Result:
    slowest_s = max(healed.values())
    versus = "from the end of the fault to exact"
    return Result(f"healing.{name}", slowest_s, "s", versus, most_s, at_least=False, raw={**healed})


def heal(stack: Stack, fault: Callable[[], None]) -> dict[str, float]:
    """Return the seconds from the end of a fault until each total was exact."""
    stack.rest_cron()
    books = Books(stack)
    books.open()
    with books.writing():
        time.sleep(WRITE_S)
        fault()
        began = time.monotonic()
    stack.rest_cron()
    return books.until_exact(began)


# A Datastore that forgets to answer


class Proxy(grpc.GenericRpcHandler):
    """Hands every call on; on request it loses replies of commits that took effect."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.address = ""
        self._channel = channel
        self._forgets = False

    def forget_for_a_while(self) -> None:
        """Lose LOST_SHARE of the replies for FORGET_S."""
        self._forgets = True
        time.sleep(FORGET_S)
        self._forgets = False

    def service(self, handler_call_details: Any) -> Any:
        method = handler_call_details.method
        forward = self._channel.unary_unary(method)

        def serve(request: bytes, context: grpc.ServicerContext) -> bytes:
            try:
                answer: bytes = forward(request, timeout=60)
            except grpc.RpcError as error:
                context.abort(error.code(), error.details())
            if method == COMMIT and self._forgets and random.random() < LOST_SHARE:
                context.abort(grpc.StatusCode.UNAVAILABLE, "the reply was lost")
            return answer

        return grpc.unary_unary_rpc_method_handler(serve)


@contextlib.contextmanager
def forgetful(real: str) -> Iterator[Proxy]:
    """Run a proxy before a Datastore."""
    limits = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(real, limits) as channel:
        server = grpc.server(futures.ThreadPoolExecutor(64), options=limits)
        proxy = Proxy(channel)
        server.add_generic_rpc_handlers([proxy])
        proxy.address = f"{ports.LOOPBACK}:{server.add_insecure_port(f'{ports.LOOPBACK}:0')}"
        server.start()
        try:
            yield proxy
        finally:
            server.stop(0).wait()
