"""The Datastore in memory as a process that speaks gRPC."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from google.cloud import datastore_v1

from benchmarks.memory.counts import METHOD, SERVICE
from benchmarks.memory.service import MemoryDatastore, RefusedError
from rollforward.local.system import ports

ROOT = Path(__file__).parents[2]
THREADS = 8
READY = "ready"


def serve(port: int) -> None:
    """Serve until the process is ended."""
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
    print(READY, flush=True)
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
    """Run a Datastore in memory; yield its address, for DATASTORE_EMULATOR_HOST."""
    port = ports.free_port()
    command = [sys.executable, "-m", "benchmarks.memory", str(port)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline().strip() != READY:
                raise RuntimeError("the Datastore in memory does not start")
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()
