"""The Datastore in memory as a process that speaks gRPC."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from google.cloud import datastore_v1

from benchmarks.memory.counts import METHOD, SERVICE
from benchmarks.memory.service import MemoryDatastore, RefusedError
from rollforward.local.errors import ServiceFailedError
from rollforward.local.system import ports
from rollforward.local.system.processes import GuardedProcess

ROOT = Path(__file__).parents[2]
THREADS = 8
LOOK_EVERY_S = 0.02


def serve(port: int) -> None:
    """Serve until the process is terminated."""
    server = grpc.server(
        ThreadPoolExecutor(THREADS), options=[("grpc.max_receive_message_length", -1)]
    )
    store = MemoryDatastore()
    handlers = {name: _handler(name, method) for name, method in store.methods().items()}
    handlers[METHOD] = grpc.unary_unary_rpc_method_handler(
        lambda request, context: json.dumps(store.counts).encode()
    )
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, handlers)])
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    server.wait_for_termination()


def _handler(name: str, method: Callable[[Any], Any]) -> Any:
    def call(request: Any, context: Any) -> Any:
        try:
            return method(request)
        except RefusedError as error:
            context.abort(error.code, str(error))

    request = getattr(datastore_v1.types, f"{name}Request").pb()
    return grpc.unary_unary_rpc_method_handler(
        call, request_deserializer=request.FromString, response_serializer=_serialized
    )


def _serialized(message: Any) -> bytes:
    return bytes(message.SerializeToString())


@contextlib.contextmanager
def memory_datastore() -> Iterator[str]:
    """Run a Datastore in memory; yield its address, for DATASTORE_EMULATOR_HOST.

    Raises:
        ServiceFailedError: the process did not start.
    """
    port = ports.free_port()
    command = [sys.executable, "-m", "benchmarks.memory", str(port)]
    process = GuardedProcess("memory", command, cwd=ROOT, grace_s=1)
    process.start()
    try:
        while not ports.accepts_connections(ports.LOOPBACK, port):
            if process.wait(LOOK_EVERY_S):
                text = f"the Datastore in memory did not start:\n{process.describe_end()}"
                raise ServiceFailedError(text)
        yield f"{ports.LOOPBACK}:{port}"
    finally:
        process.stop()
