"""Each answer that was recorded from the real Cloud Tasks, given again.

"Recorded" means: recorded from the real service by the conformance suite of
aertje/cloud-tasks-emulator (2026).
"""

import grpc
import pytest
from google.api_core import exceptions
from google.rpc import error_details_pb2

from tests.contracts.conftest import PARENT, Cloud, Handler

QUEUE_UNKNOWN = (
    "Queue does not exist. If you just created the queue, "
    "wait at least a minute for the queue to initialize."
)
ENTITY_UNKNOWN = "Requested entity was not found."
TASK_ENDED = (
    "The task no longer exists, though a task with this name existed recently. "
    "The task either successfully completed or was deleted."
)
MISSING = f"{PARENT}/queues/missing"

QUEUE_CALLS = ["get_queue", "pause_queue", "purge_queue", "resume_queue"]


def help_links(error: exceptions.GoogleAPICallError) -> list[str]:
    """Return the links of an error's Help details."""
    return [
        link.url
        for detail in error.details
        if isinstance(detail, error_details_pb2.Help)
        for link in detail.links
    ]


# --- errors ---------------------------------------------------------------


def test_create_queue_that_exists(cloud: Cloud):
    """Recorded: CreateQueue of an existing queue is ALREADY_EXISTS."""
    with pytest.raises(exceptions.AlreadyExists) as caught:
        cloud.client.create_queue(parent=PARENT, queue={"name": cloud.queue})

    assert caught.value.message == "Queue already exists"
    assert caught.value.grpc_status_code is grpc.StatusCode.ALREADY_EXISTS


@pytest.mark.parametrize("name", ["not a queue", f"{PARENT}/queues/under_score", f"{PARENT}/x/y"])
def test_create_queue_with_malformed_name(cloud: Cloud, name: str):
    """Recorded: a malformed queue name is INVALID_ARGUMENT, with a Help link."""
    with pytest.raises(exceptions.InvalidArgument) as caught:
        cloud.client.create_queue(parent=PARENT, queue={"name": name})

    assert caught.value.message == (
        "Queue name must be formatted: "
        '"projects/<PROJECT_ID>/locations/<LOCATION_ID>/queues/<QUEUE_ID>".'
    )
    assert help_links(caught.value)


def test_create_queue_deleted_a_short_while_ago(cloud: Cloud):
    """Recorded: a queue deleted a short while ago cannot be made again: FAILED_PRECONDITION."""
    cloud.client.delete_queue(name=cloud.queue)

    with pytest.raises(exceptions.FailedPrecondition) as caught:
        cloud.client.create_queue(parent=PARENT, queue={"name": cloud.queue})

    assert caught.value.message == (
        "The queue cannot be created because a queue with this name existed too recently."
    )


@pytest.mark.parametrize(
    "parent", ["not-a-valid-parent", "projects/not-a-valid-parent/locations/us-central1"]
)
def test_create_queue_under_foreign_parent(cloud: Cloud, parent: str):
    """Recorded: a parent that is no project of ours is PERMISSION_DENIED."""
    with pytest.raises(exceptions.PermissionDenied) as caught:
        cloud.client.create_queue(parent=parent, queue={"name": f"{parent}/queues/q"})

    assert caught.value.message == "Permission denied on resource project not-a-valid-parent."


def test_delete_unknown_queue(cloud: Cloud):
    """Recorded: DeleteQueue of an unknown queue is NOT_FOUND."""
    with pytest.raises(exceptions.NotFound) as caught:
        cloud.client.delete_queue(name=MISSING)

    assert caught.value.message == ENTITY_UNKNOWN


@pytest.mark.parametrize("call", QUEUE_CALLS)
def test_call_on_unknown_queue(cloud: Cloud, call: str):
    """Recorded: Get, Pause, Purge and ResumeQueue of an unknown queue are NOT_FOUND."""
    with pytest.raises(exceptions.NotFound) as caught:
        getattr(cloud.client, call)(name=MISSING)

    assert caught.value.message == QUEUE_UNKNOWN


@pytest.mark.parametrize("call", QUEUE_CALLS)
def test_call_on_deleted_queue(cloud: Cloud, call: str):
    """Recorded: Get, Pause, Purge and ResumeQueue of a just deleted queue are NOT_FOUND."""
    cloud.client.delete_queue(name=cloud.queue)

    with pytest.raises(exceptions.NotFound) as caught:
        getattr(cloud.client, call)(name=cloud.queue)

    assert caught.value.message == QUEUE_UNKNOWN


@pytest.mark.parametrize("was_there", [True, False])
def test_create_task_without_queue(cloud: Cloud, was_there: bool):
    """Recorded: CreateTask in an unknown or just deleted queue is NOT_FOUND."""
    queue = cloud.queue if was_there else MISSING
    if was_there:
        cloud.client.delete_queue(name=queue)

    with pytest.raises(exceptions.NotFound) as caught:
        cloud.client.create_task(parent=queue, task={"http_request": cloud.http()})

    assert caught.value.message == QUEUE_UNKNOWN


@pytest.mark.parametrize("end", ["live", "done", "deleted"])
def test_create_task_with_used_name(cloud: Cloud, end: str):
    """Recorded: the name of a live or recent task is ALREADY_EXISTS."""
    task = cloud.create("a")
    if end == "done":
        cloud.deliver(200)
    if end == "deleted":
        cloud.client.delete_task(name=task.name)

    with pytest.raises(exceptions.AlreadyExists) as caught:
        cloud.create("a")

    assert caught.value.message == "Requested entity already exists"


@pytest.mark.parametrize("task_id", ["not a valid id", "a/b", "x" * 501, "ümlaut"])
def test_create_task_with_malformed_id(cloud: Cloud, task_id: str):
    """Recorded: a malformed task id is INVALID_ARGUMENT, with a Help link."""
    with pytest.raises(exceptions.InvalidArgument) as caught:
        cloud.create(task_id)

    assert caught.value.message == (
        f'Task ID "{task_id}" can contain only letters ([A-Za-z]), numbers ([0-9]), '
        "hyphens (-), or underscores (_). Task ID must between 1 and 500 characters."
    )
    assert help_links(caught.value)


def test_create_task_named_for_other_queue(cloud: Cloud):
    """Recorded: a task name of another queue is INVALID_ARGUMENT."""
    task = {"name": f"{cloud.queue}-other/tasks/a", "http_request": cloud.http()}

    with pytest.raises(exceptions.InvalidArgument) as caught:
        cloud.client.create_task(parent=cloud.queue, task=task)

    assert caught.value.message == (
        f"The queue name from request ('{cloud.queue}') must be the same as "
        f"the queue name in the named task ('{cloud.queue}-other')."
    )


@pytest.mark.parametrize("call", ["get_task", "delete_task", "run_task"])
def test_call_on_unknown_task(cloud: Cloud, call: str):
    """Recorded: Get, Delete and RunTask of an unknown task are NOT_FOUND."""
    with pytest.raises(exceptions.NotFound) as caught:
        getattr(cloud.client, call)(name=f"{cloud.queue}/tasks/unknown")

    assert caught.value.message == ENTITY_UNKNOWN


@pytest.mark.parametrize("task_id", ["named", ""])
@pytest.mark.parametrize("end", ["done", "deleted"])
def test_get_task_that_ended_recently(cloud: Cloud, task_id: str, end: str):
    """Recorded: GetTask of a task that ended a short while ago is NOT_FOUND, in its own words."""
    task = cloud.create(task_id)
    if end == "done":
        cloud.deliver(200)
    else:
        cloud.client.delete_task(name=task.name)

    with pytest.raises(exceptions.NotFound) as caught:
        cloud.client.get_task(name=task.name)

    assert caught.value.message == TASK_ENDED


# --- headers at the handler, over three attempts --------------------------

HTTP = ("x-cloudtasks-", "Google-Cloud-Tasks")
APP_ENGINE = ("x-appengine-", "AppEngine-Google; (+http://code.google.com/appengine)")


def three_attempts(cloud: Cloud, handler: Handler, target: str) -> list[dict[str, str]]:
    """Let a task fail with 503 and 404, then succeed; return the headers of each attempt."""
    handler.script("/three", 503, 404, 200)
    if target == "http":
        cloud.create("three", http_request=cloud.http("/three"))
    else:
        cloud.create("three", app_engine_http_request={"relative_uri": "/three"})
    for _ in range(3):
        cloud.settle()
        cloud.advance(3600)
    cloud.settle()
    return [request.headers for request in handler.received["/three"]]


@pytest.mark.parametrize(("target", "expected"), [("http", HTTP), ("app_engine", APP_ENGINE)])
def test_headers_that_are_always_there(live_cloud, handler, target, expected):
    """Recorded: each attempt tells agent, queue, task and ETA."""
    prefix, agent = expected

    attempts = three_attempts(live_cloud, handler, target)

    assert [headers["user-agent"] for headers in attempts] == [agent] * 3
    assert [headers[f"{prefix}queuename"] for headers in attempts] == ["work"] * 3
    assert [headers[f"{prefix}taskname"] for headers in attempts] == ["three"] * 3
    etas = [float(headers[f"{prefix}tasketa"]) for headers in attempts]
    assert etas == sorted(set(etas))


@pytest.mark.parametrize(
    ("target", "prefix", "executions", "reasons"),
    [
        ("http", "x-cloudtasks-", ["0", "0", "1"], [None, "", ""]),
        ("app_engine", "x-appengine-", ["0", "1", "2"], [None, "App Error", "App Error"]),
    ],
)
def test_headers_that_count(live_cloud, handler, target, prefix, executions, reasons):
    """Recorded: retry and execution counts, previous response and retry reason."""
    attempts = three_attempts(live_cloud, handler, target)

    assert [headers[f"{prefix}taskretrycount"] for headers in attempts] == ["0", "1", "2"]
    assert [headers[f"{prefix}taskexecutioncount"] for headers in attempts] == executions
    previous = [headers.get(f"{prefix}taskpreviousresponse") for headers in attempts]
    assert previous == [None, "503", "404"]
    assert [headers.get(f"{prefix}taskretryreason") for headers in attempts] == reasons


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


# --- headers as stored in the task ----------------------------------------


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
