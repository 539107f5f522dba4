"""gRPC's own server for Python, which hands each call from thread to thread.

Its asyncio variant takes no less processor time for a call.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from rollforward.local.cloudtasks.engine.engine import Engine
from rollforward.local.cloudtasks.server.front import GRPC_HOST
from rollforward.local.cloudtasks.server.grpc.answers import OPTIONS, method_of, respond
from rollforward.local.cloudtasks.server.methods import Method
from rollforward.local.cloudtasks.server.versions import Versions

# More would only wait for the lock.
_THREADS = 4
_GRACE_S = 0.2


def start(versions: Versions, engine: Engine) -> tuple[int, Callable[[], None]]:
    """Start a server with all services; return its port, and what stops it and waits for that."""
    threads = ThreadPoolExecutor(_THREADS, "grpc")
    server = grpc.server(threads, options=OPTIONS)
    server.add_generic_rpc_handlers((_Services(versions, engine),))
    port = server.add_insecure_port(f"{GRPC_HOST}:0")
    server.start()

    def stop() -> None:
        server.stop(_GRACE_S).wait()
        threads.shutdown()

    return port, stop


class _Services(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Finds the handler of each call."""

    def __init__(self, versions: Versions, engine: Engine) -> None:
        self._versions = versions
        self._engine = engine
        self._handlers: dict[str, Any] = {}

    def service(self, call_details: Any) -> Any:
        """Return the handler of `/service/method`, None if it does not exist."""
        path: str = call_details.method
        if path not in self._handlers:
            method = method_of(self._versions, path)
            if method is None:
                return None
            self._handlers[path] = self._unary(method)
        return self._handlers[path]

    def _unary(self, method: Method) -> Any:
        def handle(message: bytes, context: Any) -> bytes:
            with self._engine.lock:
                answered = respond(method, message)
            if isinstance(answered, bytes):
                return answered
            context.set_trailing_metadata(answered.metadata)
            context.abort(answered.code, answered.message)
            raise AssertionError("abort() raises")

        return grpc.unary_unary_rpc_method_handler(handle)
