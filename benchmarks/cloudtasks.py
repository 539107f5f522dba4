"""The rates and the memory of the Cloud Tasks emulator.

    make bench NAMES=cloudtasks

1. creates: eight threads of the official client, in a process of their own,
   create tasks over gRPC in a queue that is paused.
2. dispatches: the queue is resumed, and a trivial HTTP handler, in a process of
   its own, answers each delivery with 204. The API allows 500 a second for one
   queue, so the tasks lie in several.

3. rates: a queue with so many dispatches a second empties a backlog. The handler writes down when
   each delivery came; the count is compared with the token bucket that the reference describes,
   which begins full: burst + rate x seconds.
4. memory: a process of its own keeps waiting tasks, and what the last of them added to its resident
   memory is scaled up to a million.

The store is a file, as in daily use.
"""

import contextlib
import itertools
import json
import multiprocessing
import socket
import tempfile
import threading
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import grpc
import psutil
from aiohttp import web
from google.cloud import tasks_v2
from google.cloud.tasks_v2.services.cloud_tasks.transports import CloudTasksGrpcTransport

from benchmarks.harness.results import Result
from rollforward.local.cloudtasks.emulator import RunningEmulator, running
from rollforward.local.cloudtasks.protocol import messages

CREATES_PER_S = 2_000
DISPATCHES_PER_S = 1_500
CREATING_S = 6.0
MAX_DISPATCHING_S = 12.0
THREADS = 8
QUEUES = 8
VERSUS = "one queue of the service dispatches at most 500 a second"
RATES = (5, 50, 500)
RATED_S = 3.0
WAITING, MEASURED, MILLION = 50_000, 100_000, 1_000_000
MAX_MEGABYTES = 1_000

PARENT = "projects/demo-local/locations/us-central1"


def measure() -> Iterator[Result]:
    """Measure all."""
    # Processes are made anew, not forked: gRPC does not survive a fork.
    spawn = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory() as folder,
        _handler_process(spawn) as handler_url,
        running(store_path=Path(folder) / "tasks.sqlite3", app_url=handler_url) as emulator,
    ):
        _create_queues(emulator)
        created, create_s = _measure_creates(spawn, emulator.grpc_address, handler_url)
        yield _rate("creates", CREATES_PER_S, created, create_s, threads=THREADS)
        dispatched, dispatch_s = _measure_dispatches(emulator, created)
        yield _rate("dispatches", DISPATCHES_PER_S, dispatched, dispatch_s, queues=QUEUES)
        for rate in RATES:
            yield _measure_rate(emulator, handler_url, rate)
    yield _measure_memory(spawn)


def _rate(verb: str, target: float, count: int, took_s: float, **raw: Any) -> Result:
    figures = {"count": count, "seconds": round(took_s, 3), **raw}
    name = f"cloudtasks.{verb}_per_s"
    return Result(name, count / took_s, "1/s", VERSUS, target, raw=figures)


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
    """Answer every POST with 204, and a GET with the times of the POSTs to the same path."""

    arrivals: dict[str, list[float]] = defaultdict(list)

    async def answer(request: web.Request) -> web.Response:
        if request.method == "GET":
            return web.json_response(arrivals[request.path])
        if request.path != "/work":
            arrivals[request.path].append(time.time())
        return web.Response(status=204)

    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    pipe.send(listening.getsockname()[1])
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    web.run_app(app, sock=listening, print=None, access_log=None)


# --- rates ----------------------------------------------------------------


def _measure_rate(emulator: RunningEmulator, handler_url: str, rate: int) -> Result:
    """Empty a backlog at a rate; return how far the count was from the token bucket's."""
    client, name = _client(emulator.grpc_address), f"{PARENT}/queues/rate-{rate}"
    limits = {"max_dispatches_per_second": rate}
    burst = client.create_queue(
        parent=PARENT, queue={"name": name, "rate_limits": limits}
    ).rate_limits.max_burst_size
    client.pause_queue(name=name)
    path, total = f"/rate-{rate}", burst + int(rate * RATED_S)
    for _ in range(total):
        client.create_task(parent=name, task={"http_request": {"url": f"{handler_url}{path}"}})
    began_at = time.time()
    client.resume_queue(name=name)
    emulator.wait_idle(60)
    with urllib.request.urlopen(f"{handler_url}{path}") as response:
        arrivals = [at - began_at for at in json.load(response)]
    seconds = [tenth / 10 for tenth in range(1, int(RATED_S * 10))]
    counts = [sum(at <= second for at in arrivals) for second in seconds]
    expected = [min(total, burst + rate * second) for second in seconds]
    furthest = max(abs(count - wanted) for count, wanted in zip(counts, expected, strict=True))
    return Result(
        f"cloudtasks.from_bucket_at_{rate}_per_s",
        furthest / total,
        "ratio",
        f"the count of the token bucket, ten times a second, of {total} tasks",
        0.1,
        at_least=False,
        raw={"burst": burst, "counts": counts, "bucket": expected},
    )


# --- memory ---------------------------------------------------------------


def _measure_memory(spawn: Any) -> Result:
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_fill, args=(theirs,))
    process.start()
    before_bytes, after_bytes = ours.recv()
    process.join()
    task_bytes = (after_bytes - before_bytes) / MEASURED
    return Result(
        "cloudtasks.million_waiting_mb",
        (before_bytes + task_bytes * (MILLION - WAITING)) / 1e6,
        "MB",
        "resident memory with a million waiting tasks",
        MAX_MEGABYTES,
        at_least=False,
        raw={"task_bytes": round(task_bytes), "measured": MEASURED},
    )


def _fill(pipe: Connection) -> None:
    """Report the resident memory with so many waiting tasks, and with so many more."""
    task = {"http_request": {"url": "http://handler.invalid/work", "body": b'{"n": 1}'}}
    requests = [messages.request("CreateTaskRequest")(parent=_queue(0), task=task)] * 100
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tasks.sqlite3"
        with running(store_path=path, dispatching=False) as emulator:
            emulator.engine.create_queue(PARENT, messages.Queue(name=_queue(0)))
            sizes = []
            for count in (WAITING, MEASURED):
                for _ in itertools.repeat(None, count // len(requests)):
                    emulator.engine.tasks.create_many(_queue(0), requests)
                sizes.append(psutil.Process().memory_info().rss)
            pipe.send(sizes)
