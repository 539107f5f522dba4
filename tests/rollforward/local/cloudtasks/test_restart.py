"""kill -9 in the middle of the work, and a new start on the same store."""

import contextlib
import json
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.api_core import exceptions
from google.cloud import tasks_v2
from google.cloud.tasks_v2.services.cloud_tasks.transports import CloudTasksGrpcTransport

ROOT = Path(__file__).parents[4]
QUEUE = "projects/demo-local/locations/us-central1/queues/work"

PROGRAM = """
import json, sys
from rollforward.local.cloudtasks.emulator import running
with running(store_path=sys.argv[1], queue_yaml=sys.argv[2]) as emulator:
    key_id = emulator.engine.tokens.key_id
    print(json.dumps([emulator.grpc_address, key_id]), flush=True)
    sys.stdin.read()
"""


class Handler(BaseHTTPRequestHandler):
    """Keeps /slow waiting until the second start, and writes down what came."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.server.seen.append(  # type: ignore[attr-defined]
            (self.path, self.headers["X-CloudTasks-TaskRetryCount"])
        )
        self.server.arrived.release()  # type: ignore[attr-defined]
        if self.path == "/slow":
            self.server.let_go.wait(30)  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Stay silent."""


class Server(ThreadingHTTPServer):
    """Keeps silent about connections that are dropped."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Stay silent."""


@pytest.fixture
def server():
    """A handler for the tasks."""
    with Server(("127.0.0.1", 0), Handler) as made:
        made.seen, made.let_go = [], threading.Event()
        made.arrived = threading.Semaphore(0)
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.let_go.set()
        made.shutdown()
        thread.join()


class Started:
    """The emulator as a process of its own, with a client."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, folder / "tasks.sqlite3", folder / "queue.yaml"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        self.address, self.key_id = json.loads(self.process.stdout.readline())
        self.channel = grpc.insecure_channel(self.address)
        self.client = tasks_v2.CloudTasksClient(
            transport=CloudTasksGrpcTransport(channel=self.channel)
        )

    def create(self, task_id: str, url: str) -> None:
        """Create a named task."""
        task = {"name": f"{QUEUE}/tasks/{task_id}", "http_request": {"url": url}}
        self.client.create_task(parent=QUEUE, task=task)

    def kill(self) -> None:
        """End the process with SIGKILL."""
        self.channel.close()
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()

    def stop(self) -> None:
        """Let the process end by itself."""
        self.channel.close()
        self.process.communicate()


def test_kill_and_restart(tmp_path, server):
    """After kill -9 nothing that was answered is lost, and what was running runs again."""
    (tmp_path / "queue.yaml").write_text("queue:\n- name: work\n  rate: 100/s\n")
    base = f"http://127.0.0.1:{server.server_port}"
    first = Started(tmp_path)
    first.create("done", f"{base}/quick")
    assert server.arrived.acquire(timeout=20)
    wait_until_gone(first.client, "done")
    first.create("running", f"{base}/slow")
    assert server.arrived.acquire(timeout=20)
    first.client.pause_queue(name=QUEUE)
    first.create("waiting", f"{base}/quick")
    first.kill()
    server.let_go.set()

    second = Started(tmp_path)
    try:
        assert second.key_id == first.key_id
        assert second.client.get_queue(name=QUEUE).state.name == "PAUSED"
        with pytest.raises(exceptions.AlreadyExists):
            second.create("done", f"{base}/quick")
        second.client.resume_queue(name=QUEUE)
        for task_id in ("running", "waiting"):
            assert server.arrived.acquire(timeout=20)
            wait_until_gone(second.client, task_id)
    finally:
        second.stop()

    assert sorted(server.seen) == [
        ("/quick", "0"),
        ("/quick", "0"),
        ("/slow", "0"),
        ("/slow", "1"),
    ]


def test_a_kill_amid_creates(tmp_path):
    """Each create that was acknowledged is there, of many that came together."""
    (tmp_path / "queue.yaml").write_text("queue:\n- name: work\n  rate: 0/s\n")
    first = Started(tmp_path)
    acknowledged: list[str] = []
    task = {"http_request": {"url": "http://handler.invalid/"}}

    def create() -> None:
        with contextlib.suppress(exceptions.GoogleAPICallError):
            while True:
                acknowledged.append(first.client.create_task(parent=QUEUE, task=task).name)

    threads = [threading.Thread(target=create) for _ in range(8)]
    for thread in threads:
        thread.start()
    while len(acknowledged) < 300:
        threading.Event().wait(0.01)
    first.process.kill()
    for thread in threads:
        thread.join()
    first.kill()

    second = Started(tmp_path)
    try:
        stored = {task.name for task in second.client.list_tasks(parent=QUEUE)}
    finally:
        second.stop()
    assert len(acknowledged) >= 300
    assert set(acknowledged) <= stored


def wait_until_gone(client: tasks_v2.CloudTasksClient, task_id: str) -> None:
    """Wait until a task has ended, ten seconds at most."""
    for _ in range(500):
        try:
            client.get_task(name=f"{QUEUE}/tasks/{task_id}")
        except exceptions.NotFound:
            return
        threading.Event().wait(0.02)
    pytest.fail(f"{task_id} has not ended")
