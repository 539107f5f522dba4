"""The control API: what the service hides, and who may use it."""

import socket
import urllib.error
import urllib.request

import pytest

from rollforward.local.cloudtasks.emulator import Emulator, EmulatorSettings, running
from rollforward.local.cloudtasks.server.callers import is_loopback_host
from tests.rollforward.local.cloudtasks.control_calls import JSON, add, call, with_queue


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


# --- queues and tasks ------------------------------------------------------


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


# --- faults, reset, clock, idle --------------------------------------------


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


# --- who may ---------------------------------------------------------------


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
