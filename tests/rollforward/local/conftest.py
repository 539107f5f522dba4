"""What the tests of the local platform share: a tiny app, processes, a console at work."""

import asyncio
import http.client
import http.server
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import datastore

from rollforward.local.cloudtasks.protocol import messages
from tests.rollforward.local.cloudtasks.engines import PLACE, QUEUE, close_engines, make_engine

STANDIN = """
import os
from flask import Flask, request

def serve():
    app = Flask(__name__)

    @app.get("/")
    def home():
        return "one"

    @app.get("/worker")
    def worker():
        return str(os.getpid())

    @app.get("/environment")
    def environment():
        return dict(os.environ)

    @app.get("/cron/sweep")
    def sweep():
        return request.headers.get("X-Appengine-Cron", "")

    return app
"""

QUEUE_YAML = """
queue:
  - name: default
    rate: 50/s
  - name: mails
    rate: 5/s
    max_concurrent_requests: 2
"""

CRON_YAML = """
cron:
  - description: sweep
    url: /cron/sweep
    schedule: every 5 minutes
"""


@pytest.fixture
def app_folder(tmp_path: Path) -> Path:
    """A folder with the smallest app the dev server can run."""
    write_app(tmp_path, STANDIN)
    return tmp_path


def write_app(folder: Path, code: str) -> None:
    """Write an app that the dev server can run."""
    (folder / "main.py").write_text(code)
    (folder / "queue.yaml").write_text(QUEUE_YAML)
    (folder / "cron.yaml").write_text(CRON_YAML)


def eventually(claim: Callable[[], bool], what: str, timeout_s: float = 90.0) -> None:
    """Wait until a claim about another process holds; fail if it never does."""
    deadline = time.monotonic() + timeout_s
    while not claim():
        if time.monotonic() > deadline:
            pytest.fail(f"never came true: {what}")
        time.sleep(0.02)


def is_gone(process: psutil.Process) -> bool:
    """Return whether a process has ended, reaped or not."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_gone(processes: list[psutil.Process]) -> None:
    """Wait until all these processes have ended; fail if one stays."""
    eventually(lambda: all(map(is_gone, processes)), f"{processes} have ended")


def datastore_client(address: str, project: str = "demo-local") -> Any:
    """Connect to an emulator without credentials, whatever the environment says."""
    inherits = "DATASTORE_EMULATOR_HOST" in os.environ
    credentials = None if inherits else AnonymousCredentials()
    client = datastore.Client(project=project, credentials=credentials)
    client.base_url = f"http://{address}"
    return client


@dataclass
class Answer:
    """What an HTTP server answered."""

    status: int
    headers: dict[str, str]
    text: str

    def json(self) -> Any:
        """Return the body as JSON."""
        return json.loads(self.text)


def ask(
    address: str,
    method: str,
    path: str,
    *,
    body: str | None = None,
    headers: dict[str, str] | None = None,
    timeout_s: float = 30,
) -> Answer:
    """Send one request exactly as given, Host included, and follow nothing."""
    connection = http.client.HTTPConnection(address, timeout=timeout_s)
    try:
        connection.request(method, path, body=body, headers=headers or {})
        response = connection.getresponse()
        text = response.read().decode()
        return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, text)
    finally:
        connection.close()


@dataclass
class RecordingApp:
    """An HTTP server that keeps what it was asked and answers as told."""

    url: str
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    status: int = 200
    said: str = "掃除した"


@contextmanager
def recording_app() -> Iterator[RecordingApp]:
    """Run a RecordingApp on a free port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            app.requests.append((self.path, {k.lower(): v for k, v in self.headers.items()}))
            self.send_response(app.status)
            self.end_headers()
            self.wfile.write(app.said.encode())

        def log_message(self, format: str, *arguments: Any) -> None:
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    app = RecordingApp(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield app
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def sweeping_app() -> Iterator[RecordingApp]:
    """A server in the app's place, for cron to call."""
    with recording_app() as app:
        yield app


class LoopThread:
    """An event loop in a thread, for servers that a test talks to from outside."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    def run(self, coroutine: Any) -> Any:
        """Run a coroutine there and return its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(60)

    def close(self) -> None:
        """End the loop and the thread."""
        self.run(self.loop.shutdown_default_executor())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@pytest.fixture
def loop_thread() -> Iterator[LoopThread]:
    """An event loop in a thread of its own."""
    thread = LoopThread()
    yield thread
    thread.close()


@pytest.fixture(autouse=True)
def _closed_engines():
    yield
    close_engines()


@pytest.fixture
def engine():
    """An engine with one queue."""
    made = make_engine()
    made.create_queue(PLACE.parent, messages.Queue(name=QUEUE))
    return made
