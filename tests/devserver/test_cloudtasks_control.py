"""The JSON control API, and the faults that only a dispatcher can carry out."""

import json
import socket
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from devserver.cloudtasks import messages
from devserver.cloudtasks.control import is_loopback_host
from devserver.cloudtasks.emulator import Emulator, EmulatorSettings, RunningEmulator, running
from devserver.cloudtasks.records import Attempt

JSON = {"Content-Type": "application/json"}


def call(
    emulator: RunningEmulator,
    method: str,
    path: str,
    body: Any = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, Any]:
    """Call the control API; return status and JSON."""
    data = None if method == "GET" else json.dumps(body if body is not None else {}).encode()
    request = urllib.request.Request(
        emulator.control_url + path, data, JSON if headers is None else headers, method=method
    )
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def queue_name(emulator: RunningEmulator) -> str:
    """Return the full name of the queue `work`."""
    return emulator.engine.place.queue_name("work")


def add(emulator: RunningEmulator, task_id: str = "", url: str = "http://127.0.0.1:9/") -> None:
    """Create a task in the queue `work`."""
    queue = queue_name(emulator)
    task = messages.Task(name=f"{queue}/tasks/{task_id}" if task_id else "")
    task.http_request.url = url
    task.http_request.body = b'{"n": 1}'
    emulator.engine.tasks.create(queue, task)


def with_queue(emulator: RunningEmulator) -> RunningEmulator:
    """Create the queue `work`."""
    emulator.engine.create_queue(
        emulator.engine.place.parent, messages.Queue(name=queue_name(emulator))
    )
    return emulator


@pytest.fixture(scope="module")
def shared():
    """An emulator that dispatches nothing, for all tests of this module."""
    with running(dispatching=False) as emulator:
        yield with_queue(emulator)


@pytest.fixture
def emulator(shared):
    """The shared emulator, emptied."""
    shared.engine.reset()
    return shared


# --- queues and tasks -----------------------------------------------------


def test_queues_with_their_counts(emulator):
    """GET queues tells settings, state, and how many tasks are in each state."""
    add(emulator)
    add(emulator)
    attempt, _ = emulator.engine.begin_ready()
    emulator.engine.end_attempt(attempt.id, status=200)

    status, answer = call(emulator, "GET", "/api/v1/queues")

    (queue,) = answer["queues"]
    assert status == 200
    assert (queue["id"], queue["state"], queue["rate_per_s"]) == ("work", "running", 500)
    assert queue["counts"] == {
        "scheduled": 0, "queued": 0, "running": 1, "retrying": 0, "done": 1, "failed": 0,
        "deleted": 0,
    }  # fmt: skip


def test_queue_is_paused_resumed_purged(emulator):
    """POST pause, resume and purge do so."""
    add(emulator)

    states = [
        call(emulator, "POST", f"/api/v1/queues/work/{verb}")[1]["state"]
        for verb in ("pause", "resume")
    ]
    _, purged = call(emulator, "POST", "/api/v1/queues/work/purge")

    assert states == ["paused", "running"]
    assert (purged["counts"]["queued"], purged["counts"]["deleted"]) == (0, 1)


def test_unknown_queue(emulator):
    """An unknown queue is 404."""
    assert call(emulator, "POST", "/api/v1/queues/missing/pause")[0] == 404


def test_tasks_are_listed_newest_first_in_pages(emulator):
    """GET tasks pages through all tasks, newest first."""
    for number in range(5):
        add(emulator, f"t{number}")

    found, after = [], ""
    while True:
        _, page = call(emulator, "GET", f"/api/v1/tasks?queue=work&limit=2&after={after}")
        found += [task["id"] for task in page["tasks"]]
        after = page["next"]
        if not after:
            break

    assert found == ["t4", "t3", "t2", "t1", "t0"]


@pytest.mark.parametrize(("state", "expected"), [("done", ["a"]), ("queued", ["b"])])
def test_tasks_are_filtered_by_state(emulator, state, expected):
    """GET tasks takes a state, live or ended."""
    add(emulator, "a")
    (attempt,) = emulator.engine.begin_ready()
    emulator.engine.end_attempt(attempt.id, status=200)
    add(emulator, "b")

    _, page = call(emulator, "GET", f"/api/v1/tasks?state={state}")

    assert [task["id"] for task in page["tasks"]] == expected


@pytest.mark.parametrize("query", ["state=nonsense", "limit=x", "limit=0", "after=x"])
def test_wrong_query(emulator, query):
    """A query that is not understood is 400."""
    assert call(emulator, "GET", f"/api/v1/tasks?{query}")[0] == 400


def test_task_with_its_attempts(emulator):
    """GET a task tells its request and each attempt: sent, received, error, next retry."""
    add(emulator, "a")
    (attempt,) = emulator.engine.begin_ready()
    emulator.engine.end_attempt(attempt.id, status=503, headers={"X-A": "1"}, body=b"\xff")

    _, task = call(emulator, "GET", "/api/v1/tasks/work/a")

    (shown,) = task["attempts"]
    assert task["state"] == "retrying"
    assert task["request"]["body"] == {"size_bytes": 8, "text": '{"n": 1}', "json": {"n": 1}}
    assert shown["request"]["headers"]["X-CloudTasks-TaskName"] == "a"
    assert shown["response"] == {
        "status": 503,
        "headers": {"X-A": "1"},
        "body": {"size_bytes": 1, "base64": "/w=="},
    }
    assert shown["next_retry_at"] == task["schedule_at"]
    assert shown["duration_ms"] >= 0
    assert not shown["is_copy"]


def test_task_is_run_retried_deleted(emulator):
    """POST run, retry and delete do so."""
    add(emulator, "a")
    call(emulator, "POST", "/api/v1/queues/work/pause")
    call(emulator, "POST", "/api/v1/tasks/work/a/run")
    (attempt,) = emulator.engine.begin_ready()
    emulator.engine.end_attempt(attempt.id, status=500)
    call(emulator, "POST", "/api/v1/queues/work/resume")

    assert attempt.kind == "forced"
    call(emulator, "POST", "/api/v1/tasks/work/a/retry")
    assert len(emulator.engine.due()) == 1
    _, deleted = call(emulator, "POST", "/api/v1/tasks/work/a/delete")
    assert deleted["state"] == "deleted"
    assert call(emulator, "POST", "/api/v1/tasks/work/a/delete")[0] == 404
    assert call(emulator, "POST", "/api/v1/tasks/work/a/retry")[0] == 409


# --- faults, reset, clock, idle -------------------------------------------


def test_faults_are_added_counted_removed(emulator):
    """Fault rules are kept with how often each fired."""
    status, rule = call(emulator, "POST", "/api/v1/faults", {"kind": "error", "queue": "work"})
    add(emulator)
    emulator.engine.begin_ready()
    _, listed = call(emulator, "GET", "/api/v1/faults")

    assert status == 201
    assert [(r["id"], r["fired"]) for r in listed["faults"]] == [(rule["id"], 1)]
    assert call(emulator, "DELETE", f"/api/v1/faults/{rule['id']}")[0] == 200
    assert call(emulator, "DELETE", f"/api/v1/faults/{rule['id']}")[0] == 404
    call(emulator, "POST", "/api/v1/faults", {"kind": "error"})
    call(emulator, "DELETE", "/api/v1/faults")
    assert call(emulator, "GET", "/api/v1/faults")[1] == {"faults": []}


@pytest.mark.parametrize("body", [{"kind": "x"}, {}, [], {"kind": "kill_worker"}, {"rate": 1}])
def test_wrong_fault(emulator, body):
    """A rule with a wrong value is 400; so is one that nobody here can carry out."""
    assert call(emulator, "POST", "/api/v1/faults", body)[0] == 400


def test_clock_is_advanced(emulator):
    """POST clock/advance moves the clock; backwards is 400."""
    _, answer = call(emulator, "POST", "/api/v1/clock/advance", {"seconds": 60})

    assert answer["clock_offset_s"] == 60
    assert call(emulator, "POST", "/api/v1/clock/advance", {"seconds": -1})[0] == 400
    assert call(emulator, "POST", "/api/v1/clock/advance", {})[0] == 400


def test_reset(emulator):
    """POST reset forgets all tasks."""
    add(emulator, "a")

    assert call(emulator, "POST", "/api/v1/reset")[0] == 200

    assert call(emulator, "GET", "/api/v1/tasks")[1]["tasks"] == []
    assert call(emulator, "POST", "/api/v1/reset", {"queue": "missing"})[0] == 404


def test_wait_idle_tells_what_is_left(emulator):
    """POST wait-idle answers at once when idle, and 408 with the counts when not."""
    assert call(emulator, "POST", "/api/v1/wait-idle", {"timeout_s": 0})[1] == {"idle": True}
    add(emulator)

    status, answer = call(emulator, "POST", "/api/v1/wait-idle", {"timeout_s": 0})

    assert status == 408
    assert answer["queues"]["work"]["queued"] == 1
    assert call(emulator, "POST", "/api/v1/wait-idle", {"queue": "missing"})[0] == 404
    assert call(emulator, "POST", "/api/v1/wait-idle", {"nonsense": 1})[0] == 400


def test_wait_idle_times_out_in_words(emulator):
    """wait_idle raises TimeoutError and counts what is left."""
    add(emulator)

    with pytest.raises(TimeoutError, match="queued"):
        emulator.wait_idle(0)


# --- who may --------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "text/plain"},
        {},
        JSON | {"Origin": "http://evil.example"},
        JSON | {"Origin": "null"},
        JSON | {"Origin": "http://127.0.0.1:1"},
        JSON | {"Host": "evil.example"},
    ],
)
def test_strangers_change_nothing(emulator, headers):
    """A request of another site, or one that is not JSON, is 403 and changes nothing."""
    add(emulator)

    status, _ = call(emulator, "POST", "/api/v1/reset", {}, headers)

    assert status == 403
    assert len(emulator.engine.due()) == 1


def test_own_page_may(emulator):
    """A page of the same origin may change things."""
    origin = JSON | {"Origin": emulator.control_url}

    assert call(emulator, "POST", "/api/v1/reset", {}, origin)[0] == 200


def test_reading_through_a_foreign_name(emulator):
    """Reading, too, needs this machine's name: a foreign one may have been rebound to it."""
    assert call(emulator, "GET", "/api/v1/tasks", headers={"Host": "evil.example"})[0] == 403


@pytest.mark.parametrize(
    ("host", "is_ours"),
    [
        ("127.0.0.1:80", True),
        ("localhost", True),
        ("app.localhost:1", True),
        ("[::1]:80", True),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example", False),
        ("10.0.0.1", False),
        ("[::1", False),
        ("", False),
    ],
)
def test_loopback_hosts(host, is_ours):
    """Only loopback names and addresses are this machine's."""
    assert is_loopback_host(host) is is_ours


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "example.com", "::"])
def test_emulator_listens_on_loopback_only(host):
    """The emulator refuses to listen where others could reach it."""
    with pytest.raises(ValueError, match="loopback"):
        Emulator(EmulatorSettings(host=host))


def test_taken_port():
    """A taken port is an error, not a second server on it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(RuntimeError, match=str(port)), running(port=port):
            pass


# --- faults at a handler --------------------------------------------------


class SlowHandler(BaseHTTPRequestHandler):
    """Answers at once; only /slow waits until its client hangs up."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.seen.append(self.path)  # type: ignore[attr-defined]
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
    """TransactionalInserts silent about connections that are dropped."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Stay silent."""


@pytest.fixture
def server():
    """A handler process that can be slow."""
    with SlowServer(("127.0.0.1", 0), SlowHandler) as made:
        made.seen, made.entered, made.hung_up = [], threading.Event(), threading.Event()
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


@pytest.mark.parametrize("path", ["/api/v1/clock/advance", "/api/v1/wait-idle"])
@pytest.mark.parametrize("seconds", ["NaN", "Infinity", "-Infinity", "1e999", "-1", "9" * 400])
def test_a_time_that_is_none_moves_no_clock(emulator, path, seconds):
    """A clock that is no number any more would never be one again."""
    before = emulator.engine.clock.now()
    field = "seconds" if path.endswith("advance") else "timeout_s"
    request = urllib.request.Request(
        emulator.control_url + path, f'{{"{field}": {seconds}}}'.encode(), JSON
    )

    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request)

    refused.value.close()
    assert refused.value.code == 400
    assert emulator.engine.clock.now() - before < 60
