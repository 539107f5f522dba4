"""Each answer that was recorded from the real Cloud Tasks, given again.

"Recorded" means: recorded from the real service by the conformance suite of
aertje/cloud-tasks-emulator (2026). Those of another recorder name it.
"""

from typing import Any

import grpc
import pytest
from google.api_core import exceptions
from google.cloud import tasks_v2
from google.cloud.tasks_v2.services.cloud_tasks.transports import CloudTasksGrpcTransport
from google.rpc import error_details_pb2

from rollforward.local.cloudtasks.emulator import running
from tests.contracts.conftest import PARENT, Cloud

pytestmark = pytest.mark.fast

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


REFERENCE = "https://cloud.google.com/tasks/docs/reference/rest/v2/projects.locations.queues"


def help_links(error: exceptions.GoogleAPICallError) -> list[tuple[str, str]]:
    """Return the links of an error's Help details, with their descriptions."""
    return [
        (link.description, link.url)
        for detail in error.details
        if isinstance(detail, error_details_pb2.Help)
        for link in detail.links
    ]


# --- errors ----------------------------------------------------------------


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
    links = [("Definition of queue name", f"{REFERENCE}#Queue.FIELDS.name")]
    assert help_links(caught.value) == links


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

    message = "Permission denied on resource project not-a-valid-parent."
    assert caught.value.message == message
    info, localized, _ = caught.value.details
    assert (info.reason, info.domain) == ("CONSUMER_INVALID", "googleapis.com")
    assert dict(info.metadata) == {
        "consumer": "projects/not-a-valid-parent",
        "containerInfo": "not-a-valid-parent",
        "service": "cloudtasks.googleapis.com",
    }
    assert (localized.locale, localized.message) == ("en-US", message)
    links = [("Google developers console", "https://console.developers.google.com")]
    assert help_links(caught.value) == links


def test_create_queue_named_for_other_location(cloud: Cloud):
    """Recorded: a queue's name in another location than its parent is INVALID_ARGUMENT."""
    name = "projects/demo-local/locations/europe-west1/queues/q"

    with pytest.raises(exceptions.InvalidArgument) as caught:
        cloud.client.create_queue(parent=PARENT, queue={"name": name})

    assert caught.value.message == f"{name} must begin with {PARENT}."
    assert [queue.name for queue in cloud.client.list_queues(parent=PARENT)] == [cloud.queue]


RATE, CONCURRENT = "max_dispatches_per_second", "max_concurrent_dispatches"
QUEUE_REFUSALS = [
    ("rate_limits", {RATE: -1}, "RateLimits.maxDispatchesPerSecond cannot be negative."),
    (
        "rate_limits",
        {RATE: 501},
        "RateLimits.maxDispatchesPerSecond must be less than or equal to 500.",
    ),
    ("rate_limits", {CONCURRENT: -1}, "RateLimits.maxConcurrentDispatches cannot be negative."),
    (
        "rate_limits",
        {CONCURRENT: 5001},
        "RateLimits.maxConcurrentDispatches must be less than or equal to 5000.",
    ),
    (
        "retry_config",
        {"max_attempts": -2},
        "RetryConfig.maxAttempts must be greater or equal to -1.",
    ),
    ("retry_config", {"max_doublings": -1}, "RetryConfig.maxDoublings cannot be negative."),
    (
        "retry_config",
        {"min_backoff": {"seconds": -1}},
        "RetryConfig.minBackoff cannot be negative.",
    ),
    (
        "retry_config",
        {"min_backoff": {"seconds": 10}, "max_backoff": {"seconds": 5}},
        "RetryConfig.minBackoff must be less than or equal to RetryConfig.maxBackoff.",
    ),
]


@pytest.mark.parametrize(("field", "settings", "message"), QUEUE_REFUSALS)
def test_queue_settings_that_are_refused(cloud: Cloud, field: str, settings: Any, message: str):
    """Recorded: settings out of their range are INVALID_ARGUMENT, in these words."""
    queue = {"name": f"{PARENT}/queues/new", field: settings}

    with pytest.raises(exceptions.InvalidArgument) as caught:
        cloud.client.create_queue(parent=PARENT, queue=queue)

    assert caught.value.message == message


def test_negative_burst_size_is_ignored(cloud: Cloud):
    """Recorded: max_burst_size is the service's own, and what a caller sends does not matter."""
    queue = {"name": f"{PARENT}/queues/new", "rate_limits": {"max_burst_size": -1}}

    assert cloud.client.create_queue(parent=PARENT, queue=queue).rate_limits.max_burst_size > 0


HTTP_DEADLINES = "Task.dispatchDeadline must be between [15s, 30m]."
URL_BEGINS = "HttpTarget.url must start with 'http://' or 'https://'."
TASK_REFUSALS = [
    ({"http_request": {"url": ""}}, "HttpRequest.url is required."),
    ({"http_request": {"url": "example.com/path"}}, URL_BEGINS),
    ({"http_request": {"url": "ftp://example.com/"}}, URL_BEGINS),
    ({"dispatch_deadline": {"seconds": 1}}, HTTP_DEADLINES),
    ({"dispatch_deadline": {"seconds": 31 * 60}}, HTTP_DEADLINES),
    (
        {"dispatch_deadline": {"seconds": 25 * 3600}, "app_engine_http_request": {}},
        "Task.dispatchDeadline must be between [15s, 24h15s].",
    ),
    (
        {"schedule_time": {"seconds": 4102444800}},  # The first second of 2100.
        "The Task.scheduleTime, 2099-12-31T16:00:00-08:00, is too far in the future. "
        "Schedule time must be no more than 720h in the future.",
    ),
]


@pytest.mark.parametrize(("task", "message"), TASK_REFUSALS)
def test_task_that_is_refused(cloud: Cloud, task: Any, message: str):
    """Recorded: a task with such a field is INVALID_ARGUMENT, in these words."""
    with pytest.raises(exceptions.InvalidArgument) as caught:
        cloud.create(**task)

    assert caught.value.message == message


@pytest.mark.parametrize(
    "task",
    [
        {"http_request": {"url": "http://example.com/%zz"}},
        {"dispatch_deadline": {"seconds": 3600}, "app_engine_http_request": {}},
    ],
)
def test_task_that_is_accepted(cloud: Cloud, task: Any):
    """Recorded: a broken escape in a URL is taken, and an hour's deadline for App Engine."""
    assert cloud.create(**task).name


# --- the largest task ------------------------------------------------------


MEASURED_PARENT = "projects/cloudtasksemu/locations/us-central1"
MEASURED = "cte-probe-1234567890"
DEADLINE = {"dispatch_deadline": {"seconds": 900}}
SERVICE = {"app_engine_routing": {"service": "size-probe-service"}}
PUT = {"http_method": "PUT"}


@pytest.mark.parametrize(
    ("target", "request_fields", "task_fields", "most_bytes"),
    [
        ("http", {}, {}, 1_048_368),
        ("http", PUT, {}, 1_048_368),
        ("http", {}, DEADLINE, 1_048_368),
        ("app_engine_http", {}, {}, 1_048_256),
        ("app_engine_http", PUT, {}, 1_048_256),
        ("app_engine_http", {}, DEADLINE, 1_048_256 - 5),
        ("app_engine_http", SERVICE, {}, 1_048_256 - 19),
    ],
)
def test_largest_task(target: str, request_fields: Any, task_fields: Any, most_bytes: int):
    """Recorded: the stored form of a task has at most 1,048,569 bytes, whatever its target.

    Names, address and times have the lengths of those in the recording, so a body of the same
    length must be the last that is taken.
    """
    kind = target.removesuffix("_engine_http").replace("app", "ae")
    queue = f"{MEASURED_PARENT}/queues/{MEASURED}-{kind}"
    address = {"url": "https://example.com/"} if target == "http" else {}

    def create(number: int, body: bytes) -> None:
        request = {**address, **request_fields, "body": body}
        name = f"{queue}/tasks/{MEASURED}-t{number:06}"
        times = {"schedule_time": {"seconds": 1_771_000_000}}
        task = {"name": name, f"{target}_request": request, **times, **task_fields}
        client.create_task(parent=queue, task=task)

    with (
        running(project="cloudtasksemu", dispatching=False, clock=lambda: 1.771e9) as emulator,
        grpc.insecure_channel(emulator.grpc_address) as channel,
    ):
        client = tasks_v2.CloudTasksClient(transport=CloudTasksGrpcTransport(channel=channel))
        client.create_queue(parent=MEASURED_PARENT, queue={"name": queue})

        create(1, b"a" * most_bytes)
        with pytest.raises(exceptions.InvalidArgument) as caught:
            create(2, b"a" * (most_bytes + 1))

    assert caught.value.message == "Task size too large"


def test_a_pause_and_its_end(cloud: Cloud):
    """Recorded: both return the queue, with its defaults; a paused one sends nothing.

    Recorded by mwpryer/cloud-tasks-emulator 0.1.1, in `pause_queue_stops_dispatch.txt`.
    """
    paused = cloud.client.pause_queue(name=cloud.queue)
    cloud.create()
    sent = cloud.begin()
    resumed = cloud.client.resume_queue(name=cloud.queue)

    defaults = tasks_v2.Queue(
        name=cloud.queue,
        rate_limits={
            "max_dispatches_per_second": 500,
            "max_burst_size": 100,
            "max_concurrent_dispatches": 1000,
        },
        retry_config={
            "max_attempts": 100,
            "min_backoff": {"nanos": 100_000_000},
            "max_backoff": {"seconds": 3600},
            "max_doublings": 16,
        },
    )
    assert sent == []
    for queue, state in ((paused, "PAUSED"), (resumed, "RUNNING")):
        defaults.state = state
        assert queue == defaults
    assert "max_retry_duration" not in paused.retry_config
    assert len(cloud.begin()) == 1


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
    """Recorded: Get, Pause, Purge and ResumeQueue of a just deleted queue are NOT_FOUND.

    Of GetQueue also by mwpryer/cloud-tasks-emulator 0.1.2, in `delete_queue_removes_queue.txt`.
    """
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
    links = [("Definition of task ID", f"{REFERENCE}.tasks#Task.FIELDS.name")]
    assert help_links(caught.value) == links


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
