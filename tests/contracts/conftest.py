"""A Cloud Tasks emulator for each test, the official client on it, and a handler."""

import contextlib
import threading
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
import pytest
from google.cloud import tasks_v2
from google.cloud.tasks_v2.services.cloud_tasks.transports import CloudTasksGrpcTransport
from google.protobuf import timestamp_pb2

from rollforward.local.cloudtasks.emulator import RunningEmulator, running
from rollforward.local.cloudtasks.store.records import Attempt

PARENT = "projects/demo-local/locations/us-central1"
NOW = 1_800_000_000.0


@dataclass
class Received:
    """A request as the handler got it; header names in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Cloud:
    """The official client and the emulator behind it, with one queue, `work`."""

    client: tasks_v2.CloudTasksClient
    emulator: RunningEmulator
    queue: str = f"{PARENT}/queues/work"
    handler_url: str = "http://handler.invalid"

    @property
    def engine(self) -> Any:
        return self.emulator.engine

    def now(self) -> float:
        return self.engine.clock.now()

    def advance(self, seconds: float) -> None:
        self.engine.advance(seconds)

    def http(self, path: str = "/ok", **fields: Any) -> dict[str, Any]:
        """Return an HTTP request of a task."""
        return {"url": f"{self.handler_url}{path}", **fields}

    def create(self, task_id: str = "", **task: Any) -> tasks_v2.Task:
        """Create a task, for the handler's /ok unless told else."""
        if "app_engine_http_request" not in task:
            task.setdefault("http_request", self.http())
        if task_id:
            task["name"] = f"{self.queue}/tasks/{task_id}"
        return self.client.create_task(parent=self.queue, task=task)

    def create_in(self, seconds: float, task_id: str = "") -> tasks_v2.Task:
        """Create a task that is due so many seconds from now."""
        at = timestamp_pb2.Timestamp()
        at.FromNanoseconds(round((self.now() + seconds) * 1e9))
        return self.create(task_id, schedule_time=at)

    def configure(self, **fields: Any) -> None:
        """Update fields of the queue, named by paths with __ for the dot."""
        queue: dict[str, Any] = {"name": self.queue}
        for path, value in fields.items():
            outer, found, last = path.partition("__")
            if found:
                queue.setdefault(outer, {})[last] = value
            else:
                queue[outer] = value
        paths = [path.replace("__", ".") for path in fields]
        self.client.update_queue(queue=queue, update_mask={"paths": paths})

    def begin(self) -> list[Attempt]:
        """Begin what the queues let go now."""
        return self.engine.begin_ready()

    def deliver(self, status: int = 200, headers: dict[str, str] | None = None) -> list[Attempt]:
        """Begin what the queues let go now, and answer it all with a status."""
        begun = self.begin()
        for attempt in begun:
            self.engine.end_attempt(attempt.id, status=status, headers=headers)
        return begun

    def settle(self) -> None:
        """Wait until nothing runs or is due; a later retry may be waiting."""
        self.emulator.wait_idle(20, with_retrying=False)


@dataclass
class Handler:
    """An HTTP server that answers by script and writes down what it got."""

    url: str = ""
    received: dict[str, list[Received]] = field(default_factory=lambda: defaultdict(list))
    statuses: dict[str, deque[int]] = field(default_factory=lambda: defaultdict(deque))
    headers: dict[str, dict[str, str]] = field(default_factory=dict)
    bodies: dict[str, bytes] = field(default_factory=dict)
    blocked: dict[str, threading.Event] = field(default_factory=dict)
    hangs_up: set[str] = field(default_factory=set)
    entered: dict[str, threading.Event] = field(
        default_factory=lambda: defaultdict(threading.Event)
    )

    def script(self, path: str, *statuses: int) -> None:
        """Answer so, in turn; 200 when the script is at its end."""
        self.statuses[path].extend(statuses)

    def block(self, path: str) -> threading.Event:
        """Let requests wait for the returned event."""
        self.blocked[path] = threading.Event()
        return self.blocked[path]

    def reload(self, path: str) -> None:
        """Take the first request and close the connection without an answer."""
        self.hangs_up.add(path)


class _RequestHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        script: Handler = self.server.script  # type: ignore[attr-defined]
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        script.received[self.path].append(Received(self.command, self.path, headers, body))
        script.entered[self.path].set()
        if self.path in script.blocked:
            script.blocked[self.path].wait(30)
        if self.path in script.hangs_up:
            script.hangs_up.remove(self.path)
            self.close_connection = True
            return
        statuses = script.statuses[self.path]
        self._send(statuses.popleft() if statuses else 200, script)

    def _send(self, status: int, script: Handler) -> None:
        answer = script.bodies.get(self.path, b"")
        self.send_response(status)
        for name, value in script.headers.get(self.path, {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_HEAD = _answer

    def log_message(self, format: str, *args: Any) -> None:
        """Stay silent."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Stay silent: a dropped connection is what some tests are about."""


@pytest.fixture
def handler() -> Iterator[Handler]:
    """An HTTP handler for the tasks."""
    with serving() as script:
        yield script


@contextlib.contextmanager
def serving() -> Iterator[Handler]:
    """Run an HTTP handler on a port of its own."""
    with _Server(("127.0.0.1", 0), _RequestHandler) as server:
        script = Handler(url=f"http://127.0.0.1:{server.server_port}")
        server.script = script  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield script
        for event in script.blocked.values():
            event.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    """An emulator that dispatches nothing by itself, with a clock that stands still."""
    with (
        running(dispatching=False, clock=lambda: NOW) as emulator,
        grpc.insecure_channel(emulator.grpc_address) as channel,
    ):
        yield _cloud(emulator, channel)


@pytest.fixture
def live_cloud(handler: Handler) -> Iterator[Cloud]:
    """An emulator that sends its tasks to the handler."""
    with (
        running(app_url=handler.url) as emulator,
        grpc.insecure_channel(emulator.grpc_address) as channel,
    ):
        cloud = _cloud(emulator, channel)
        cloud.handler_url = handler.url
        yield cloud


def _cloud(emulator: RunningEmulator, channel: grpc.Channel) -> Cloud:
    client = tasks_v2.CloudTasksClient(transport=CloudTasksGrpcTransport(channel=channel))
    cloud = Cloud(client, emulator)
    client.create_queue(parent=PARENT, queue={"name": cloud.queue})
    return cloud
