"""Responses and the lack of one: redirects, deadlines, dead workers, a held emulator."""

import socket
import threading

import pytest
from google.cloud import tasks_v2

from tests.contracts.conftest import Cloud, serving
from tests.contracts.received import ACCOUNT
from tests.infra.stack import until

pytestmark = pytest.mark.fast


def statuses_of(cloud: Cloud, task: tasks_v2.Task) -> list[int | None]:
    """Return the answers to a task's attempts."""
    _, attempts = cloud.engine.history.of_task(task.name)
    return [attempt["status"] for attempt in attempts]


@pytest.mark.parametrize(
    ("status", "method", "body"),
    [(307, "POST", b"x"), (308, "PUT", b"x"), (301, "GET", b""), (302, "HEAD", b"")],
)
def test_http_target_follows_redirects_of_the_same_request(
    live_cloud, handler, status, method, body
):
    """A redirect may be followed; it is no attempt of its own (REF#httprequest)."""
    handler.script("/old", status)
    handler.headers["/old"] = {"Location": "/new?a=%zz"}
    request = live_cloud.http("/old", http_method=method, body=body, headers={"Authorization": "a"})
    task = live_cloud.create(http_request=request)
    live_cloud.settle()

    (got,) = handler.received["/new?a=%zz"]

    assert (got.method, got.body, got.headers["authorization"]) == (method, body, "a")
    assert statuses_of(live_cloud, task) == [200]


@pytest.mark.parametrize("status", [301, 302, 303])
def test_a_redirect_that_would_lose_the_body_is_a_failure(live_cloud, handler, status):
    """A POST that goes on as a GET would end the task with nothing done (rfc9110#section-15.4).

    The service does not document which request it makes after such a redirect, if it follows it.
    """
    handler.script("/old", status)
    handler.headers["/old"] = {"Location": "/new"}
    request = live_cloud.http("/old", body=b"x")
    task = live_cloud.create(http_request=request, retry_config={"max_attempts": 1})
    live_cloud.settle()

    assert handler.received["/new"] == []
    assert statuses_of(live_cloud, task) == [status]


def test_redirects_in_a_circle_are_a_failure(live_cloud, handler):
    """After five redirects the sixth is the answer."""
    handler.script("/old", *[307] * 20)
    handler.headers["/old"] = {"Location": "/old"}
    request = live_cloud.http("/old")
    task = live_cloud.create(http_request=request, retry_config={"max_attempts": 1})
    live_cloud.settle()

    assert len(handler.received["/old"]) == 6
    assert statuses_of(live_cloud, task) == [307]


@pytest.mark.parametrize("differs_in", ["name", "port"])
def test_a_token_is_for_the_address_it_was_made_for(live_cloud, handler, differs_in):
    """A redirect to another server does not get the token (rfc9110#section-15.4)."""
    handler.script("/old", 307)
    oidc = {"service_account_email": ACCOUNT}
    with serving() as neighbour:
        is_other_name = differs_in == "name"
        elsewhere = handler.url.replace("127.0.0.1", "localhost")
        handler.headers["/old"] = {
            "Location": f"{elsewhere if is_other_name else neighbour.url}/new"
        }
        live_cloud.create(http_request=live_cloud.http("/old", oidc_token=oidc))
        live_cloud.settle()

    (got,) = (handler if is_other_name else neighbour).received["/new"]
    assert "authorization" in handler.received["/old"][0].headers
    assert "authorization" not in got.headers


def test_app_engine_target_does_not_follow_redirects(live_cloud, handler):
    """App Engine targets do not follow redirects: 302 is a failure (REF#appenginehttprequest)."""
    handler.script("/old", 302)
    handler.headers["/old"] = {"Location": "/new"}
    task = live_cloud.create(app_engine_http_request={"relative_uri": "/old"})
    live_cloud.settle()

    assert handler.received["/new"] == []
    _, attempts = live_cloud.engine.history.of_task(task.name)
    assert attempts[0]["status"] == 302


def test_deadline_hangs_up(live_cloud, handler):
    """At the deadline the attempt is DEADLINE_EXCEEDED and the task is retried (REF#task)."""
    released = handler.block("/slow")
    task = live_cloud.create(
        dispatch_deadline={"seconds": 15}, http_request=live_cloud.http("/slow")
    )
    assert handler.entered["/slow"].wait(20)

    live_cloud.advance(15)
    live_cloud.settle()
    released.set()
    shown = live_cloud.client.get_task(name=task.name)

    assert shown.dispatch_count >= 1
    _, attempts = live_cloud.engine.history.of_task(task.name)
    assert attempts[0]["error"] == "DEADLINE_EXCEEDED"
    assert attempts[0]["status"] is None


def test_a_deadline_comes_nearer_with_every_step_of_the_clock(live_cloud, handler):
    """Two steps of the clock count together: neither of them alone is the whole deadline."""
    released = handler.block("/slow")
    task = live_cloud.create(
        dispatch_deadline={"seconds": 1000}, http_request=live_cloud.http("/slow")
    )
    assert handler.entered["/slow"].wait(20)

    live_cloud.advance(600)
    live_cloud.create()  # Its delivery begins after the dispatcher has seen the step.
    assert handler.entered["/ok"].wait(20)
    live_cloud.advance(600)
    live_cloud.settle()
    released.set()

    _, attempts = live_cloud.engine.history.of_task(task.name)
    assert attempts[0]["error"] == "DEADLINE_EXCEEDED"


def test_attempt_within_its_deadline_goes_on(live_cloud, handler):
    """Before its deadline an attempt is left alone, however the clock moves (REF#task).

    Each step of the clock counts once, however often the dispatcher wakes after it.
    """
    released = handler.block("/slow")
    task = live_cloud.create(http_request=live_cloud.http("/slow"))
    assert handler.entered["/slow"].wait(20)

    live_cloud.advance(590)
    for path in ("/one", "/two", "/three"):
        live_cloud.create(http_request=live_cloud.http(path))
        assert handler.entered[path].wait(20)
    released.set()
    live_cloud.settle()

    _, attempts = live_cloud.engine.history.of_task(task.name)
    assert [attempt["status"] for attempt in attempts] == [200]


@pytest.mark.parametrize(
    ("target", "previous", "reason"),
    [("http", "503", ""), ("app_engine", "0", "Instance Unavailable")],
)
def test_headers_after_a_dead_worker(live_cloud, handler, target, previous, reason):
    """A worker that dies says nothing: Cloud Run answers 503 for it, App Engine has no answer.

    Not recorded. Cloud Run documents the 503 of an instance whose connection broke; App Engine's
    is what was recorded of the other attempt that no worker answered, the one that timed out.
    """
    handler.reload("/dies")
    if target == "http":
        live_cloud.create(http_request=live_cloud.http("/dies"))
    else:
        live_cloud.create(app_engine_http_request={"relative_uri": "/dies"})
    live_cloud.settle()

    live_cloud.advance(3600)
    live_cloud.settle()

    prefix = "x-cloudtasks-" if target == "http" else "x-appengine-"
    second = handler.received["/dies"][1]
    assert second.headers[f"{prefix}taskpreviousresponse"] == previous
    assert second.headers[f"{prefix}taskretryreason"] == reason
    assert second.headers[f"{prefix}taskexecutioncount"] == "0"


def test_a_held_emulator_lets_deliveries_end_and_begins_none(live_cloud, handler):
    """Calls are taken, what runs ends with its answer; what is new waits."""
    released = handler.block("/slow")
    slow = live_cloud.create(http_request=live_cloud.http("/slow"))
    assert handler.entered["/slow"].wait(20)

    live_cloud.emulator.emulator.hold()
    waiting = live_cloud.create()
    assert live_cloud.emulator.emulator.in_progress == 1
    released.set()
    until(lambda: live_cloud.emulator.emulator.in_progress == 0, 20, every_s=0.02)

    _, attempts = live_cloud.engine.history.of_task(slow.name)
    assert [attempt["status"] for attempt in attempts] == [200]
    assert live_cloud.client.get_task(name=waiting.name).dispatch_count == 0


def test_a_held_emulator_takes_a_dead_worker_for_no_failure(live_cloud, handler):
    """The worker ended because all is being stopped: its task begins again at the next start."""
    released = handler.block("/dies")
    handler.reload("/dies")
    task = live_cloud.create(http_request=live_cloud.http("/dies"))
    assert handler.entered["/dies"].wait(20)

    live_cloud.emulator.emulator.hold()
    released.set()
    until(lambda: live_cloud.emulator.emulator.in_progress == 0, 20, every_s=0.02)

    history = live_cloud.engine.history
    record, attempts = history.of_task(task.name)
    assert [attempt["error"] for attempt in attempts] == [None]
    assert history.state_of(record) == "running"


def test_nobody_listens(live_cloud):
    """Without anybody at the address the attempt fails and is retried (REF#httprequest)."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/"
        task = live_cloud.create(http_request={"url": url}, retry_config={"max_attempts": 1})
        live_cloud.settle()

    _, attempts = live_cloud.engine.history.of_task(task.name)
    assert attempts[0]["error"].startswith("UNAVAILABLE")


def test_answer_that_breaks_off(live_cloud):
    """A connection closed in the middle of the answer is a failed attempt (REF#httprequest)."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        breaking = threading.Thread(target=_break_off, args=(server,))
        breaking.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
        task = live_cloud.create(http_request={"url": url}, retry_config={"max_attempts": 1})
        live_cloud.settle()
        breaking.join()

    _, attempts = live_cloud.engine.history.of_task(task.name)
    assert attempts[0]["error"].startswith("UNAVAILABLE")


def _break_off(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")


def test_tasks_run_side_by_side(live_cloud, handler):
    """Tasks of one queue run at the same time, up to its concurrency (REF#ratelimits)."""
    released = handler.block("/slow")
    live_cloud.create("slow", http_request=live_cloud.http("/slow"))
    assert handler.entered["/slow"].wait(20)

    live_cloud.create("quick")
    assert handler.entered["/ok"].wait(20)

    released.set()
    live_cloud.settle()
    assert len(handler.received["/slow"]) == 1


def test_an_end_that_fails_holds_up_no_other(live_cloud, handler, monkeypatch):
    """Responses that came together share a commit, and not the failure of one of them."""
    attempts, failed = live_cloud.engine.attempts, threading.Event()
    end = attempts.end

    def end_or_fail(attempt_id, response):
        if response.status == 418:
            failed.set()
            raise RuntimeError("planted")
        return end(attempt_id, response)

    monkeypatch.setattr(attempts, "end", end_or_fail)
    handler.script("/odd", 418)
    live_cloud.create("odd", http_request=live_cloud.http("/odd"))
    others = [live_cloud.create(f"even-{number}").name for number in range(20)]

    assert failed.wait(20)
    until(lambda: all(not is_live(live_cloud, name) for name in others), timeout_s=20)
    assert is_live(live_cloud, f"{live_cloud.queue}/tasks/odd")


def is_live(cloud: Cloud, name: str) -> bool:
    """Return whether a task has not ended."""
    task, _ = cloud.engine.history.of_task(name)
    return bool(task.state == "live")
