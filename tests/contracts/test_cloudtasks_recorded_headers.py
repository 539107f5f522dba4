"""Each header that was recorded from the real Cloud Tasks, at the handler and in the task."""

import pytest

from tests.contracts.conftest import Cloud, Handler

pytestmark = pytest.mark.fast

# --- headers at the handler, over six attempts -----------------------------


HTTP = ("x-cloudtasks-", "Google-Cloud-Tasks")
APP_ENGINE = ("x-appengine-", "AppEngine-Google; (+http://code.google.com/appengine)")


def six_attempts(cloud: Cloud, handler: Handler, target: str) -> list[dict[str, str]]:
    """Let a task fail as in the recording, then succeed; return the headers of each attempt."""
    handler.script("/six", 503, 404, 429, 500, 302, 200)
    if target == "http":
        cloud.create("six", http_request=cloud.http("/six"))
    else:
        cloud.create("six", app_engine_http_request={"relative_uri": "/six"})
    for _ in range(6):
        cloud.settle()
        cloud.advance(3600)
    cloud.settle()
    return [request.headers for request in handler.received["/six"]]


@pytest.mark.parametrize(("target", "expected"), [("http", HTTP), ("app_engine", APP_ENGINE)])
def test_headers_that_are_always_there(live_cloud, handler, target, expected):
    """Recorded: each attempt tells agent, queue, task and ETA."""
    prefix, agent = expected

    attempts = six_attempts(live_cloud, handler, target)

    assert [headers["user-agent"] for headers in attempts] == [agent] * 6
    assert [headers[f"{prefix}queuename"] for headers in attempts] == ["work"] * 6
    assert [headers[f"{prefix}taskname"] for headers in attempts] == ["six"] * 6
    etas = [float(headers[f"{prefix}tasketa"]) for headers in attempts]
    assert etas == sorted(set(etas))


@pytest.mark.parametrize(
    ("target", "prefix", "executions", "reason"),
    [
        ("http", "x-cloudtasks-", "001223", ""),
        ("app_engine", "x-appengine-", "012345", "App Error"),
    ],
)
def test_headers_that_count(live_cloud, handler, target, prefix, executions, reason):
    """Recorded: retry and execution counts, previous response and retry reason.

    No 5xx of an HTTP target counts as an execution.
    """
    attempts = six_attempts(live_cloud, handler, target)

    assert [headers[f"{prefix}taskretrycount"] for headers in attempts] == list("012345")
    assert [headers[f"{prefix}taskexecutioncount"] for headers in attempts] == list(executions)
    previous = [headers.get(f"{prefix}taskpreviousresponse") for headers in attempts]
    assert previous == [None, "503", "404", "429", "500", "302"]
    reasons = [headers.get(f"{prefix}taskretryreason") for headers in attempts]
    assert reasons == [None, *[reason] * 5]


def test_target_kinds_do_not_mix_headers(live_cloud, handler):
    """Recorded: an HTTP target gets no X-AppEngine header, an App Engine target no other."""
    live_cloud.create(http_request=live_cloud.http("/http"))
    live_cloud.create(app_engine_http_request={"relative_uri": "/app"})
    live_cloud.settle()

    (http,), (app,) = handler.received["/http"], handler.received["/app"]

    assert not [name for name in http.headers if name.startswith("x-appengine-")]
    assert not [name for name in app.headers if name.startswith("x-cloudtasks-")]


@pytest.mark.parametrize(
    ("target", "previous", "reason"),
    [("http", "504", ""), ("app_engine", "0", "Instance Unavailable")],
)
def test_headers_after_deadline(live_cloud, handler, target, previous, reason):
    """Recorded: after an attempt that outran its deadline, and none of them was an answer."""
    cloud = live_cloud
    released = handler.block("/slow")
    if target == "http":
        cloud.create("slow", http_request=cloud.http("/slow"))
    else:
        cloud.create("slow", app_engine_http_request={"relative_uri": "/slow"})
    assert handler.entered["/slow"].wait(20)

    cloud.advance(601)  # Past the default deadline of ten minutes.
    cloud.settle()
    released.set()
    cloud.advance(3600)
    cloud.settle()

    prefix = "x-cloudtasks-" if target == "http" else "x-appengine-"
    second = handler.received["/slow"][1]
    assert second.headers[f"{prefix}taskretryreason"] == reason
    assert second.headers[f"{prefix}taskpreviousresponse"] == previous
    assert second.headers[f"{prefix}taskexecutioncount"] == "0"


# --- headers as stored in the task -----------------------------------------


@pytest.mark.parametrize("view", ["BASIC", "FULL"])
def test_stored_headers_of_http_task(cloud: Cloud, view: str):
    """Recorded: an HTTP task keeps the casing of its headers and gains User-Agent only."""
    task = cloud.create(http_request=cloud.http(headers={"x-MiXed": "1"}, body=b"body"))

    stored = cloud.client.get_task(request={"name": task.name, "response_view": view})

    assert dict(stored.http_request.headers) == {
        "x-MiXed": "1",
        "User-Agent": "Google-Cloud-Tasks",
    }


@pytest.mark.parametrize("view", ["BASIC", "FULL"])
def test_stored_headers_of_app_engine_task(cloud: Cloud, view: str):
    """Recorded: an App Engine task with a body gains length, agent and a default type."""
    request = {"relative_uri": "/", "headers": {"x-MiXed": "1"}, "body": b"body"}
    task = cloud.create(app_engine_http_request=request)

    stored = cloud.client.get_task(request={"name": task.name, "response_view": view})

    assert dict(stored.app_engine_http_request.headers) == {
        "x-MiXed": "1",
        "Content-Length": "4",
        "Content-Type": "application/octet-stream",
        "User-Agent": "AppEngine-Google; (+http://code.google.com/appengine)",
    }


def test_stored_content_type_of_app_engine_task(cloud: Cloud):
    """Recorded: a Content-Type that was sent stays, in its casing."""
    request = {"headers": {"content-TYPE": "text/plain"}, "body": b"body"}

    stored = cloud.create(app_engine_http_request=request).app_engine_http_request

    types = {k: v for k, v in stored.headers.items() if k.lower() == "content-type"}
    assert types == {"content-TYPE": "text/plain"}


@pytest.mark.parametrize("target", ["http_request", "app_engine_http_request"])
def test_body_in_full_view_only(cloud: Cloud, target: str):
    """Recorded: the body is returned in the FULL view only."""
    request = {"body": b"body"} | ({"url": "http://a.invalid"} if "app" not in target else {})
    task = cloud.create(**{target: request})

    views = [
        cloud.client.get_task(request={"name": task.name, "response_view": view})
        for view in ("BASIC", "FULL")
    ]

    assert [getattr(view, target).body for view in views] == [b"", b"body"]
    assert getattr(task, target).body == b""
