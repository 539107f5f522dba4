"""The API over gRPC, with the codes, words and details of the service.

The first connection of gRPC loads this module: gRPC takes as long to load as the engine does, and
a quarter of the memory.

The server has threads of its own. Its asyncio variant would save them, and takes
1.6 times the processor time for a call.

Calls hold the engine's lock, one at a time.
"""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import RLock
from typing import Any

import grpc
from google.rpc import status_pb2

from rollforward.local.cloudtasks.delivery.statuses import code_number
from rollforward.local.cloudtasks.protocol.errors import Refused
from rollforward.local.cloudtasks.server.front import GRPC_HOST, MAX_MESSAGE_BYTES
from rollforward.local.cloudtasks.server.methods import Method
from rollforward.local.cloudtasks.server.versions import Versions

# More would only wait for the lock.
_THREADS = 4
_GRACE_S = 0.2
_OPTIONS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
]

log = logging.getLogger(__name__)


def start_server(versions: Versions, lock: RLock) -> tuple[int, Callable[[], None]]:
    """Start a server with all services; return its port, and what stops it and waits for that.

    Args:
        lock: Held during each call.
    """
    threads = ThreadPoolExecutor(_THREADS, "grpc")
    server = grpc.server(threads, options=_OPTIONS)
    server.add_generic_rpc_handlers((_Services(versions, lock),))
    port = server.add_insecure_port(f"{GRPC_HOST}:0")
    server.start()

    def stop() -> None:
        server.stop(_GRACE_S).wait()
        threads.shutdown()

    return port, stop


class _Services(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Finds the handler of each call."""

    def __init__(self, versions: Versions, lock: RLock) -> None:
        self._versions = versions
        self._lock = lock
        self._handlers: dict[str, Any] = {}

    def service(self, call_details: Any) -> Any:
        """Return the handler of `/service/method`, None if there is no such method."""
        path: str = call_details.method
        if path not in self._handlers:
            _, service, name = path.split("/")
            method = self._versions.service(service).get(name)
            if method is None:
                return None
            self._handlers[path] = _unary(method, self._lock)
        return self._handlers[path]


def _unary(method: Method, lock: RLock) -> Any:
    def handle(request: Any, context: Any) -> bytes:
        try:
            with lock:
                # Another call may change the message as soon as the lock is free.
                response: bytes = method.call(request).SerializeToString()
                return response
        except Refused as refused:
            context.set_trailing_metadata(_details(refused))
            context.abort(grpc.StatusCode[refused.code], refused.message)
            raise
        except Exception:
            log.exception("Call failed: %s", method.request.DESCRIPTOR.name)
            context.abort(grpc.StatusCode.INTERNAL, "The emulator failed; see its log.")
            raise

    return grpc.unary_unary_rpc_method_handler(
        handle, request_deserializer=method.request.FromString
    )


def _details(refused: Refused) -> tuple[tuple[str, bytes], ...]:
    """Return the trailing metadata that carries the details, if there are any."""
    if not refused.details:
        return ()
    status = status_pb2.Status(code=code_number(refused.code), message=refused.message)
    for detail in refused.details:
        status.details.add().Pack(detail)
    return (("grpc-status-details-bin", status.SerializeToString()),)
