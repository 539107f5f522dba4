"""The testbed of benchmarks: emulators, a queue, and the measured app under gunicorn.

Cloud Tasks runs in the benchmark's own process. The Datastore emulator and the app's workers, two
by default, are processes of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
from flask import Flask

import main
from benchmarks.harness.proxies import proxy_before
from benchmarks.harness.wire_count import WireCount
from benchmarks.memory.server import memory_datastore
from handlers.settings import DemoSettings
from pipelines.invitations.mail import Mailer, SmtpMailer
from rollforward.cloud_profile import load as load_profile
from rollforward.cloud_profile.slowdown import slowed
from rollforward.local.app.server import THREADS, WORKERS, AppServer
from rollforward.local.cloudtasks.emulator import RunningEmulator, running
from rollforward.local.services.mail import MailServer
from rollforward.local.services.standalone import datastore_emulator, mail_server, memcached
from rollforward.local.system import ports
from rollforward.outbox import InlineRelay
from rollforward.registry import Registry
from rollforward.runtime import (
    Cache,
    Clients,
    Cost,
    Meter,
    NoCache,
    open_cloud_tasks,
    open_datastore,
)
from rollforward.tasks import CloudTaskQueue, UrlTarget

ROOT = Path(__file__).parents[2]
PROJECT, LOCATION = "demo-bench", "us-central1"
ACCOUNT = "tasks@demo-bench.iam.gserviceaccount.com"
NOTED_EVERY_S = 0.1
MAX_MAILS = 1_000_000  # The benchmark counts all at the end.
# The highest limits that the service allows for one queue.
QUEUE_YAML = """
queue:
  - name: bench
    rate: 500/s
    bucket_size: 500
    max_concurrent_requests: AT_ONCE
"""
# Queues for the patterns' own tasks; a task that lost a race is retried as with queue.yaml.
QUEUE_YAML += "".join(
    f"""
  - name: {name}
    rate: 500/s
    bucket_size: 500
    max_concurrent_requests: 16
    retry_parameters:
      min_backoff_seconds: 0.1
      max_backoff_seconds: 5
"""
    for name in ("default", "fork-join", "streams", "streams-ticks")
)


@dataclass(frozen=True)
class Bench:
    """The measured app, and the services that it uses."""

    clients: Clients
    writer: Clients  # As slow as the profile: the clients of a caller in the cloud.
    read_meter: Meter  # Meters the Datastore calls of `clients` in this process.
    queue: RunningEmulator
    relay: MailServer
    costs: Path
    port: int
    workers: Callable[[], list[int]]  # Their process ids.
    datastore: str  # The emulator's address.
    wire: WireCount | None = None  # Counts the calls to the emulators.

    def cost(self) -> Cost:
        """Return the app's cost so far, plus this process's cost of Cloud Tasks."""
        bills = [Cost(**bill["cost"]) for bill in self._bills()]
        own_costs = [self.clients.meter.total()]
        if self.writer is not self.clients:
            own_costs.append(self.writer.meter.total())
        return sum([*bills, *own_costs], start=Cost())

    def aborts(self) -> int:
        """Return how many calls of the app were aborted by a conflict so far."""
        return sum(bill["aborts"] for bill in self._bills())

    def moved_bytes(self) -> int:
        """Return the bytes that app and Datastore have exchanged; 0 if they are not counted."""
        return sum(bill["bytes"] for bill in self._bills())

    def whole_cost(self) -> Cost:
        """Return `cost()`, plus this process's cost of Datastore."""
        return self.cost() + self.read_meter.total()

    def cached(self) -> int:
        """Return how many operations the app has sent to memcached."""
        return sum(bill["cache_operations"] for bill in self._bills())

    def settle(self, timeout_s: float) -> None:
        """Wait until all accepted items are folded: no item in memory, and no task left."""
        time.sleep(0.6)
        ends_at = time.monotonic() + timeout_s
        while self.queue.engine.wake_at() is not None:
            if time.monotonic() > ends_at:
                raise RuntimeError("the queue did not drain")
            time.sleep(0.05)
        self.queue.wait_idle(timeout_s)

    def _bills(self) -> list[dict[str, Any]]:
        """Return the bills of the app's workers, after they have noted their last operations."""
        time.sleep(3 * NOTED_EVERY_S)
        return [json.loads(path.read_text()) for path in self.costs.glob("*.json")]


class CountingCache:
    """A memcached client that counts its operations."""

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self.operations = 0
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        asked = getattr(self.cache, name)

        def counted(*args: Any, **options: Any) -> Any:
            with self._lock:
                self.operations += 1
            return asked(*args, **options)

        return counted


class AbortCounter(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    """Counts the calls that a conflict aborted, whichever service reports it."""

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()

    def intercept_unary_unary(
        self, continuation: Callable[[Any, Any], Any], details: Any, request: Any
    ) -> Any:
        call = continuation(details, request)
        call.add_done_callback(self._look)
        return call

    def _look(self, call: Any) -> None:
        error = call.exception()
        if isinstance(error, grpc.Call) and error.code() == grpc.StatusCode.ABORTED:
            with self._lock:
                self.count += 1


class ByteCounter(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    """Counts the bytes of requests and answers; it serializes both again, which takes time."""

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()

    def intercept_unary_unary(
        self, continuation: Callable[[Any, Any], Any], details: Any, request: Any
    ) -> Any:
        call = continuation(details, request)
        call.add_done_callback(lambda done: self._add(request, done))
        return call

    def _add(self, request: Any, call: Any) -> None:
        count = _size(request) + (0 if call.exception() else _size(call.result()))
        with self._lock:
            self.count += count


def _size(message: Any) -> int:
    return int(getattr(message, "_pb", message).ByteSize())


def app_for(registry: Registry) -> tuple[Flask, Clients]:
    """Return an app for a registry; each process notes its bill in the folder BENCH_COSTS.

    Bytes are counted if BENCH_BYTES is set.
    """
    settings = DemoSettings.from_environment(os.environ)
    aborts, moved = AbortCounter(), ByteCounter()
    watchers = [aborts, moved] if os.environ.get("BENCH_BYTES") else [aborts]
    opened = main.open_clients(settings, registry, interceptors=watchers)
    cache = CountingCache(opened.cache)
    clients = replace(opened, cache=cache)  # type: ignore[arg-type]
    path = Path(os.environ["BENCH_COSTS"]) / f"{os.getpid()}.json"

    def bill() -> dict[str, Any]:
        cost, asked = clients.meter.total().as_dict(), cache.operations
        counts = {"aborts": aborts.count, "bytes": moved.count}
        return {"cost": cost, "cache_operations": asked, **counts}

    threading.Thread(target=_note, args=[path, bill], daemon=True).start()
    return main.create_app(settings, clients, registry), clients


def _note(path: Path, bill_of: Callable[[], dict[str, Any]]) -> None:
    """Write the bill to a file whenever it has grown, without delaying a request."""
    noted = ""
    while True:
        bill = json.dumps(bill_of())
        if bill != noted:
            part = path.with_suffix(".part")
            part.write_text(bill)
            part.replace(path)
            noted = bill
        time.sleep(NOTED_EVERY_S)


@contextlib.contextmanager
def open_testbed(
    target: str,
    *,
    is_cached: bool = False,
    workers: int = WORKERS,
    threads: int = THREADS,
    emulator: str = "datastore",
    at_once: int = 16,
    profile: Path | None = None,
    is_counted: bool = False,
    queue_yaml: str = QUEUE_YAML,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Bench]:
    """Start everything on free ports.

    Args:
        target: The app for gunicorn, "module:serve()".
        is_cached: The app has a memcached.
        workers: The number of processes that serve the app.
        threads: The number of threads per process.
        emulator: "datastore"; "firestore", which locks and supports increments; or "memory",
            whose queries take time in proportion to their results (benchmarks/memory).
        at_once: The number of tasks of the queue "bench" that are delivered concurrently.
        profile: The latencies of the services; None: the emulators add none.
        is_counted: Whether proxies count the calls, which slows them down.
        queue_yaml: The queues.
        environment: Extra variables for the app's environment.
    """
    port = ports.free_port()
    url = f"http://127.0.0.1:{port}"
    wire = WireCount() if is_counted else None
    with (
        tempfile.TemporaryDirectory() as folder,
        open_store(emulator) as emulated,
        _watched(emulated, wire) as datastore,
        memcached() as cache,
        mail_server(limit=MAX_MAILS) as relay,
        running(
            queue_yaml=_written(Path(folder) / "queue.yaml", queue_yaml, at_once),
            app_url=url,
            project=PROJECT,
            location=LOCATION,
            issuer="http://issuer.bench",
            profile=load_profile(profile) if profile else None,
        ) as queue,
        _watched(queue.grpc_address, wire) as cloud_tasks,
        _app(
            target,
            port,
            (workers, threads),
            folder,
            datastore,
            cache if is_cached else None,
            relay,
            queue,
            cloud_tasks,
            {**(environment or {}), "CLOUD_PROFILE": str(profile or "")},
        ) as app,
    ):
        read_meter = Meter()
        clients = writer = _clients(url, datastore, relay, cloud_tasks, read_meter)
        if profile is not None:
            writer = _clients(url, datastore, relay, cloud_tasks, Meter(), profile)
        if wire is not None:
            wire.deliveries = lambda: queue.engine.attempts.operations
        costs = Path(folder)
        yield Bench(
            clients, writer, read_meter, queue, relay, costs, port, app.workers, datastore, wire
        )


def open_store(kind: str) -> contextlib.AbstractContextManager[str]:
    """Run an emulator, or the store in memory, and yield its address."""
    return memory_datastore() if kind == "memory" else datastore_emulator(kind)


@contextlib.contextmanager
def _watched(service: str, wire: WireCount | None) -> Iterator[str]:
    """Yield the address of a service, or of a counting proxy in front of it."""
    if wire is None:
        yield service
        return
    with proxy_before(service, wire.saw) as proxy:
        yield proxy.address


def _written(path: Path, queue_yaml: str, at_once: int) -> Path:
    path.write_text(queue_yaml.replace("AT_ONCE", str(at_once)))
    return path


def _clients(
    url: str,
    datastore: str,
    relay: MailServer,
    cloud_tasks: str,
    read_meter: Meter,
    profile: Path | None = None,
) -> Clients:
    """Return clients of this process; with a profile, all their calls count as cost."""
    slow = slowed(str(profile), NoCache()) if profile else None
    meter = Meter() if slow is None else read_meter
    client = open_cloud_tasks(
        emulator=cloud_tasks, interceptors=[meter, *(slow.tasks if slow else ())]
    )
    host, _, port = relay.address.rpartition(":")
    return Clients(
        datastore=open_datastore(
            PROJECT,
            emulator=datastore,
            interceptors=[read_meter, *(slow.datastore if slow else ())],
        ),
        tasks=CloudTaskQueue(client, PROJECT, LOCATION, UrlTarget(url, ACCOUNT, url)),
        cache=NoCache(),
        meter=meter,
        relay=InlineRelay(),
        services={Mailer: SmtpMailer(host, int(port), "News <news@bench.example>")},
    )


@contextlib.contextmanager
def _app(
    target: str,
    port: int,
    workers: tuple[int, int],
    folder: str,
    datastore: str,
    cache: str | None,
    relay: MailServer,
    queue: RunningEmulator,
    cloud_tasks: str,
    environment: Mapping[str, str],
) -> Iterator[AppServer]:
    """Run gunicorn with the measured app."""
    url = f"http://127.0.0.1:{port}"
    env = {
        **os.environ,
        "GOOGLE_CLOUD_PROJECT": PROJECT,
        "DATASTORE_EMULATOR_HOST": datastore,
        "CLOUD_TASKS_EMULATOR_HOST": cloud_tasks,
        "MEMCACHE_HOSTS": cache or "",
        "SMTP_HOST": relay.address,
        "TASKS_URL": url,
        "TASKS_LOCATION": LOCATION,
        "TASKS_SERVICE_ACCOUNT": ACCOUNT,
        "TASKS_CERTS_URL": f"{queue.control_url}/oauth2/v1/certs",
        "TASKS_ISSUER": "http://issuer.bench",
        "SECRET_KEY": secrets.token_hex(32),
        "LOG_LEVEL": "WARNING",
        "BENCH_COSTS": folder,
        **environment,
    }
    count, threads = workers
    app = AppServer(ROOT, port=port, env=env, target=target, workers=count, threads=threads)
    _wait(app.start)
    try:
        yield app
    finally:
        _wait(app.stop)


def _wait(coroutine_function: Callable[[], object]) -> None:
    """Run a coroutine on a thread of its own, as the caller's may already run an event loop."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: asyncio.run(coroutine_function())).result()  # type: ignore[arg-type]
