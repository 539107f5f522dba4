"""The rates at which the Cloud Tasks emulator accepts and dispatches tasks.

    make bench NAMES=cloudtasks

1. creates: eight threads of the official client, in a process of their own,
   create tasks over gRPC in a queue that is paused.
2. dispatches: the queue is resumed, and a trivial HTTP handler, in a process of
   its own, answers each delivery with 204. The API allows 500 a second for one
   queue, so the tasks lie in several.

The store is a file, as in daily use.
"""

import contextlib
import multiprocessing
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import grpc
from aiohttp import web
from google.cloud import tasks_v2
from google.cloud.tasks_v2.services.cloud_tasks.transports import CloudTasksGrpcTransport

from benchmarks.harness.results import Result
from rollforward.local.cloudtasks.emulator import RunningEmulator, running

TARGET_PER_S = 500
CREATING_S = 6.0
MAX_DISPATCHING_S = 12.0
THREADS = 8
QUEUES = 8
VERSUS = "500 a second: the most that one queue of the service dispatches"

PARENT = "projects/demo-local/locations/us-central1"


def measure() -> Iterator[Result]:
    """Measure both."""
    # Processes are made anew, not forked: gRPC does not survive a fork.
    spawn = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory() as folder,
        _handler_process(spawn) as handler_url,
        running(store_path=Path(folder) / "tasks.sqlite3", app_url=handler_url) as emulator,
    ):
        _create_queues(emulator)
        created, create_s = _measure_creates(spawn, emulator.grpc_address, handler_url)
        yield _rate("cloudtasks.creates_per_s", created, create_s, threads=THREADS)
        dispatched, dispatch_s = _measure_dispatches(emulator, created)
        yield _rate("cloudtasks.dispatches_per_s", dispatched, dispatch_s, queues=QUEUES)


def _rate(name: str, count: int, took_s: float, **raw: Any) -> Result:
    figures = {"count": count, "seconds": round(took_s, 3), **raw}
    return Result(name, count / took_s, "1/s", VERSUS, TARGET_PER_S, raw=figures)


def _client(address: str) -> tasks_v2.CloudTasksClient:
    channel = grpc.insecure_channel(address)
    return tasks_v2.CloudTasksClient(transport=CloudTasksGrpcTransport(channel=channel))


def _queue(number: int) -> str:
    return f"{PARENT}/queues/bench-{number % QUEUES}"


def _create_queues(emulator: RunningEmulator) -> None:
    client = _client(emulator.grpc_address)
    for number in range(QUEUES):
        client.create_queue(parent=PARENT, queue={"name": _queue(number)})
        client.pause_queue(name=_queue(number))


# --- creates --------------------------------------------------------------


def _measure_creates(spawn: Any, address: str, handler_url: str) -> tuple[int, float]:
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_create_for_a_while, args=(theirs, address, handler_url))
    process.start()
    count, took_s = ours.recv()
    process.join()
    return count, took_s


def _create_for_a_while(pipe: Connection, address: str, handler_url: str) -> None:
    """Create tasks on eight threads and report how many, in how many seconds."""
    client = _client(address)
    counts = [0] * THREADS
    start = time.perf_counter()

    def create(thread: int) -> None:
        task = {"http_request": {"url": f"{handler_url}/work", "body": b'{"n": 1}'}}
        while time.perf_counter() - start < CREATING_S:
            client.create_task(parent=_queue(thread), task=task)
            counts[thread] += 1

    threads = [threading.Thread(target=create, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pipe.send((sum(counts), time.perf_counter() - start))


# --- dispatches -----------------------------------------------------------


def _measure_dispatches(emulator: RunningEmulator, waiting: int) -> tuple[int, float]:
    client = _client(emulator.grpc_address)
    start = time.perf_counter()
    for number in range(QUEUES):
        client.resume_queue(name=_queue(number))
    with contextlib.suppress(TimeoutError):  # What is left is not counted.
        emulator.wait_idle(MAX_DISPATCHING_S)
    took_s = time.perf_counter() - start
    left = sum(len(lane.tasks) for lane in emulator.engine.queues.all())
    return waiting - left, took_s


@contextlib.contextmanager
def _handler_process(spawn: Any) -> Iterator[str]:
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_serve_handler, args=(theirs,))
    process.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}"
    finally:
        process.terminate()
        process.join()


def _serve_handler(pipe: Connection) -> None:
    """Answer every request with 204."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=204)

    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    pipe.send(listening.getsockname()[1])
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    web.run_app(app, sock=listening, print=None, access_log=None)
