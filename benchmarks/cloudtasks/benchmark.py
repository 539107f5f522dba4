"""The rates and the memory of the Cloud Tasks emulator.

    make bench NAMES=cloudtasks
    make bench NAMES=cloudtasks.million ITEMS=1000000

1. creates: a process of its own creates tasks over gRPC in paused queues, with sixteen concurrent
   calls. Their requests are prepared in advance. A second figure uses the official client on eight
   threads, which the client limits.
2. dispatches: the queues are resumed, and a handler in a process of its own answers each delivery
   with 204. The API allows 500 a second for one queue, so the tasks are spread over several.
3. rates: a queue with a limited rate of dispatches empties a backlog. The handler records the time
   of each delivery. The benchmark compares the count with the documented token bucket, which begins
   full: burst + rate x seconds. `python -m benchmarks.cloudtasks.plot` draws it.
4. memory: a process of its own keeps waiting tasks, 150,000 or the number in ITEMS. The growth of
   its resident memory after the first 50,000 is scaled up to a million.

The store is a file, as in daily use. "cpu_us" is the processor time of the emulator's process for
one task, which other work on the machine disturbs less than the rates.
"""

import contextlib
import itertools
import json
import multiprocessing
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import grpc
import psutil
from google.cloud import tasks_v2
from google.cloud.tasks_v2.services.cloud_tasks.transports import CloudTasksGrpcTransport

from benchmarks.cloudtasks import load
from benchmarks.harness.results import Result
from rollforward.local.cloudtasks.emulator import RunningEmulator, running
from rollforward.local.cloudtasks.protocol import messages

CREATES_PER_S = 2_000
DISPATCHES_PER_S = 1_500
CREATING_S = 6.0
MAX_DISPATCHING_S = 12.0
CALLS = 16
THREADS = 8
QUEUES = 8
VERSUS = "one queue of the service dispatches at most 500 a second"
RATES = (5, 50, 500)
RATED_S = 3.0
FIRST, WAITING, MILLION = 50_000, 150_000, 1_000_000
MAX_MEGABYTES = 1_000

PARENT = "projects/demo-local/locations/us-central1"


def measure(waiting: int = WAITING) -> Iterator[Result]:
    """Measure all.

    Args:
        waiting: The number of waiting tasks for the measurement of memory, at least 150,000.
    """
    # Processes are spawned, not forked, as gRPC does not survive a fork.
    spawn = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory() as folder,
        _handler_process(spawn) as handler_url,
        running(store_path=Path(folder) / "tasks.sqlite3", app_url=handler_url) as emulator,
    ):
        _create_queues(emulator)
        created = 0
        for name, target, work in (
            ("creates", CREATES_PER_S, load.create),
            ("creates_by_client", None, _create_by_client),
        ):
            count, raw = _measure_creates(spawn, work, emulator.grpc_address, handler_url)
            created += count
            yield _rate(name, target, count, **raw)
        count, raw = _measure_dispatches(emulator, created)
        yield _rate("dispatches", DISPATCHES_PER_S, count, **raw, queues=QUEUES)
        for rate in RATES:
            yield _measure_rate(emulator, handler_url, rate)
    yield _measure_memory(spawn, max(waiting, WAITING))


def _rate(
    verb: str, target: float | None, count: int, seconds: float, cpu_s: float, **raw: Any
) -> Result:
    figures = {"count": count, "seconds": round(seconds, 3), "cpu_us": round(cpu_s / count * 1e6)}
    name = f"cloudtasks.{verb}_per_s"
    return Result(name, count / seconds, "1/s", VERSUS, target, raw=figures | raw)


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


Work = Callable[[Connection, str, list[bytes], float, int], None]


def _measure_creates(
    spawn: Any, work: Work, address: str, handler_url: str
) -> tuple[int, dict[str, Any]]:
    """Return the number of tasks that a process has created, and its times."""
    task = {"http_request": {"url": f"{handler_url}/work", "body": b'{"n": 1}'}}
    requests = [
        tasks_v2.CreateTaskRequest.serialize({"parent": _queue(number), "task": task})
        for number in range(QUEUES)
    ]
    start_cpu = time.process_time()
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=work, args=(theirs, address, requests, CREATING_S, CALLS))
    process.start()
    count, seconds, client_s = ours.recv()
    cpu_s = time.process_time() - start_cpu
    process.join()
    return count, {
        "seconds": seconds,
        "cpu_s": cpu_s,
        "client_cpu_us": round(client_s / count * 1e6),
    }


def _create_by_client(
    pipe: Connection, address: str, requests: list[bytes], seconds: float, calls: int
) -> None:
    """Create the same tasks with the official client, on eight threads."""
    client = _client(address)
    counts = [0] * THREADS
    start, start_cpu = time.perf_counter(), time.process_time()

    def create(thread: int) -> None:
        request = tasks_v2.CreateTaskRequest.deserialize(requests[thread % len(requests)])
        while time.perf_counter() - start < seconds:
            client.create_task(parent=request.parent, task=request.task)
            counts[thread] += 1

    threads = [threading.Thread(target=create, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pipe.send((sum(counts), time.perf_counter() - start, time.process_time() - start_cpu))


# --- dispatches -----------------------------------------------------------


def _measure_dispatches(emulator: RunningEmulator, waiting: int) -> tuple[int, dict[str, float]]:
    """Return the number of delivered tasks, and the times."""
    client = _client(emulator.grpc_address)
    start, start_cpu = time.perf_counter(), time.process_time()
    for number in range(QUEUES):
        client.resume_queue(name=_queue(number))
    with contextlib.suppress(TimeoutError):  # Remaining tasks are not counted.
        emulator.wait_idle(MAX_DISPATCHING_S)
    seconds, cpu_s = time.perf_counter() - start, time.process_time() - start_cpu
    remaining = sum(len(queue.tasks) for queue in emulator.engine.queues.all())
    for number in range(QUEUES):  # No other load during the rates.
        client.purge_queue(name=_queue(number))
    emulator.wait_idle()
    return waiting - remaining, {"seconds": seconds, "cpu_s": cpu_s}


@contextlib.contextmanager
def _handler_process(spawn: Any) -> Iterator[str]:
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=load.serve, args=(theirs,))
    process.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}"
    finally:
        process.terminate()
        process.join()


# --- rates ----------------------------------------------------------------


def _measure_rate(emulator: RunningEmulator, handler_url: str, rate: int) -> Result:
    """Empty a backlog at a rate; return the largest deviation from the token bucket's count."""
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
    furthest = max(abs(count - bucket) for count, bucket in zip(counts, expected, strict=True))
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


def _measure_memory(spawn: Any, waiting: int) -> Result:
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_fill, args=(theirs, waiting))
    process.start()
    before_bytes, after_bytes = ours.recv()
    process.join()
    task_bytes = (after_bytes - before_bytes) / (waiting - FIRST)
    return Result(
        "cloudtasks.million_waiting_mb",
        (before_bytes + task_bytes * (MILLION - FIRST)) / 1e6,
        "MB",
        "resident memory with a million waiting tasks",
        MAX_MEGABYTES,
        at_least=False,
        raw={"task_bytes": round(task_bytes), "waiting": waiting},
    )


def _fill(pipe: Connection, waiting: int) -> None:
    """Report the resident memory after the first part of the waiting tasks, and after all."""
    task = {"http_request": {"url": "http://handler.invalid/work", "body": b'{"n": 1}'}}
    requests = [messages.request("CreateTaskRequest")(parent=_queue(0), task=task)] * 100
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tasks.sqlite3"
        with running(store_path=path, dispatching=False) as emulator:
            emulator.engine.create_queue(PARENT, messages.Queue(name=_queue(0)))
            sizes = []
            for count in (FIRST, waiting - FIRST):
                for _ in itertools.repeat(None, count // len(requests)):
                    emulator.engine.tasks.create_many(_queue(0), requests)
                sizes.append(psutil.Process().memory_info().rss)
            pipe.send(sizes)
