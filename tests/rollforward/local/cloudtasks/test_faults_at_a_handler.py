"""Faults, resets and connections, as the handler of the tasks meets them."""

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from rollforward.local.cloudtasks.emulator import running
from rollforward.local.cloudtasks.store.records import Attempt
from tests.rollforward.local.cloudtasks.control_calls import add, call, with_queue


class SlowHandler(BaseHTTPRequestHandler):
    """Answers at once; only /slow waits until its client hangs up."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.seen.append(self.path)  # type: ignore[attr-defined]
        self.server.callers.add(self.client_address)  # type: ignore[attr-defined]
        if self.path == "/slow":
            self.server.entered.set()  # type: ignore[attr-defined]
            self.connection.settimeout(20)
            if self.connection.recv(1) == b"":
                self.server.hung_up.set()  # type: ignore[attr-defined]
            return
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Stay silent."""


class SlowServer(ThreadingHTTPServer):
    """Keeps silent about connections that are dropped."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Stay silent."""


@pytest.fixture
def server():
    """A handler process that can be slow."""
    with SlowServer(("127.0.0.1", 0), SlowHandler) as made:
        made.seen, made.callers = [], set()
        made.entered, made.hung_up = threading.Event(), threading.Event()
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def url(server: Any, path: str) -> str:
    """Return an address at the handler."""
    return f"http://127.0.0.1:{server.server_port}{path}"


def test_fault_kill_worker(server):
    """The owner's callback is called while the handler runs; the attempt is then broken."""
    killed: list[Attempt] = []

    async def kill(attempt: Attempt) -> None:
        killed.append(attempt)

    with running(kill_worker=kill) as emulator:
        with_queue(emulator)
        rule = {"kind": "kill_worker", "max_count": 1, "param": 0.05}
        assert call(emulator, "POST", "/api/v1/faults", rule)[0] == 201
        add(emulator, "a", url(server, "/quick"))
        emulator.wait_idle(20)
        _, task = call(emulator, "GET", "/api/v1/tasks/work/a")

    assert [attempt.number for attempt in killed] == [0]
    assert "killed" in task["attempts"][0]["error"]
    assert task["attempts"][0]["faults"] == ["kill_worker"]
    assert task["state"] == "done"
    assert server.seen == ["/quick", "/quick"]


def test_fault_error_does_not_reach_the_handler(server):
    """The fault `error` answers 500 by itself."""
    with running() as emulator:
        with_queue(emulator)
        emulator.engine.faults.add(kind="error", max_count=2)
        add(emulator, "a", url(server, "/quick"))
        emulator.wait_idle(20)
        _, task = call(emulator, "GET", "/api/v1/tasks/work/a")

    assert [a["response"]["status"] for a in task["attempts"]] == [500, 500, 200]
    assert server.seen == ["/quick"]


def test_faults_duplicate_and_overlap_reach_the_handler(server):
    """Copies are delivered, and are marked in the attempts."""
    with running() as emulator:
        with_queue(emulator)
        for kind in ("duplicate", "overlap"):
            emulator.engine.faults.add(kind=kind, max_count=1)
        add(emulator, "a", url(server, "/quick"))
        emulator.wait_idle(20)
        _, task = call(emulator, "GET", "/api/v1/tasks/work/a")

    assert server.seen == ["/quick"] * 3
    assert sorted(a["kind"] for a in task["attempts"]) == ["duplicate", "normal", "overlap"]
    assert sum(a["is_copy"] for a in task["attempts"]) == 2


def test_reset_hangs_up(server):
    """A reset drops the attempts under way, so that they disturb nothing that follows."""
    with running() as emulator:
        with_queue(emulator)
        add(emulator, "a", url(server, "/slow"))
        assert server.entered.wait(20)

        call(emulator, "POST", "/api/v1/reset")

        assert server.hung_up.wait(20)
        add(emulator, "a", url(server, "/quick"))
        emulator.wait_idle(20)
        _, task = call(emulator, "GET", "/api/v1/tasks/work/a")
    assert len(task["attempts"]) == 1


def test_a_connection_that_was_idle_is_not_used_again(server):
    """Workers share connections evenly, so they share what is under way if none is kept long."""
    with running() as emulator:
        with_queue(emulator)
        for name in ("a", "b", "c"):
            add(emulator, name, url(server, "/quick"))
            emulator.wait_idle(20)
            time.sleep(0.3)

    assert len(server.callers) == len(server.seen) == 3
