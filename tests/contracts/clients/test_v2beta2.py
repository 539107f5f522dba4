"""v2beta2 by its official client: push queues and tasks, which all versions share."""

import pytest
from google.api_core import exceptions
from google.cloud import tasks_v2beta2
from google.iam.v1 import policy_pb2

from tests.contracts.clients.beta2 import PULL, Client
from tests.contracts.clients.rest import call
from tests.contracts.conftest import PARENT, Cloud

pytestmark = pytest.mark.fast

OTHER = f"{PARENT}/queues/other"


def test_a_queue_of_both_versions(cloud: Cloud, client: Client) -> None:
    """Its target, its limits and its attempts have other names than in v2."""
    routing = {"app_engine_routing_override": {"service": "mails"}}
    created = client.create_queue(
        parent=PARENT,
        queue={
            "name": OTHER,
            "app_engine_http_target": routing,
            "rate_limits": {"max_tasks_dispatched_per_second": 5, "max_concurrent_tasks": 3},
            "retry_config": {"unlimited_attempts": True, "min_backoff": {"seconds": 2}},
        },
    )

    assert created == client.get_queue(name=OTHER)
    assert created.app_engine_http_target.app_engine_routing_override.service == "mails"
    assert created.rate_limits.max_tasks_dispatched_per_second == 5
    assert (created.retry_config.unlimited_attempts, created.task_ttl.days) == (True, 31)
    queue = cloud.client.get_queue(name=OTHER)
    assert queue.app_engine_routing_override.service == "mails"
    assert (queue.rate_limits.max_concurrent_dispatches, queue.retry_config.max_attempts) == (3, -1)
    assert queue.retry_config.min_backoff.seconds == 2
    cloud.configure(retry_config__max_attempts=7)
    assert client.get_queue(name=cloud.queue).retry_config.max_attempts == 7


def test_http_targets(cloud: Cloud, client: Client) -> None:
    """A queue has one target: of a queue of v2 with two, the HTTP target is shown."""
    target = {"uri_override": {"host": "a.b"}, "http_method": "PUT"}
    created = client.create_queue(parent=PARENT, queue={"name": OTHER, "http_target": target})
    queue = {"name": cloud.queue, "http_target": target, "app_engine_routing_override": {}}
    cloud.client.update_queue(queue=queue)

    assert created.http_target.uri_override.host == "a.b"
    assert cloud.client.get_queue(name=OTHER).http_target.uri_override.host == "a.b"
    assert client.get_queue(name=cloud.queue).http_target == created.http_target


def test_a_mask_of_an_update(cloud: Cloud, client: Client) -> None:
    """Paths name fields as v2beta2 calls them; output-only ones are passed over."""
    client.create_queue(parent=PARENT, queue={"name": OTHER})
    changed = {
        "name": OTHER,
        "app_engine_http_target": {"app_engine_routing_override": {"service": "news"}},
        "rate_limits": {"max_tasks_dispatched_per_second": 7, "max_concurrent_tasks": 9},
        "retry_config": {"unlimited_attempts": True, "max_doublings": 3},
    }
    paths = [
        "app_engine_http_target.app_engine_routing_override.service",
        "rate_limits.max_tasks_dispatched_per_second",
        "retry_config.unlimited_attempts",
        "state",
        "stats.tasks_count",
    ]
    client.update_queue(queue=changed, update_mask={"paths": paths})

    queue = cloud.client.get_queue(name=OTHER)
    assert queue.app_engine_routing_override.service == "news"
    assert queue.rate_limits.max_dispatches_per_second == 7
    assert queue.rate_limits.max_concurrent_dispatches == 1000
    assert (queue.retry_config.max_attempts, queue.retry_config.max_doublings) == (-1, 16)
    client.update_queue(queue={"name": OTHER}, update_mask={"paths": ["app_engine_http_target"]})
    assert not cloud.client.get_queue(name=OTHER).app_engine_routing_override.service
    with pytest.raises(exceptions.BadRequest):
        client.update_queue(queue=changed, update_mask={"paths": ["colour"]})
    client.update_queue(queue={"name": PULL, "pull_target": {}})
    assert client.get_queue(name=PULL).retry_config.unlimited_attempts


def test_queues_by_filter_and_mask(cloud: Cloud, client: Client) -> None:
    """A filter has the names of the version, and a mask shows the statistics."""
    client.create_queue(parent=PARENT, queue={"name": OTHER, "app_engine_http_target": {}})
    cloud.create()

    def names(text: str) -> list[str]:
        request = {"parent": PARENT, "filter": text}
        return [queue.name for queue in client.list_queues(request=request)]

    assert names("app_engine_http_target: *") == [OTHER]
    assert names("rate_limits.max_concurrent_tasks > 9") == [OTHER, cloud.queue]
    with pytest.raises(exceptions.BadRequest):
        names("rate_limits.max_concurrent_dispatches > 9")
    mask = {"paths": ["name", "stats"]}
    queue = client.get_queue(request={"name": cloud.queue, "read_mask": mask})
    assert (queue.name, queue.stats.tasks_count, queue.state.value) == (cloud.queue, 1, 0)
    listed = client.list_queues(request={"parent": PARENT, "read_mask": mask})
    assert [queue.stats.tasks_count for queue in listed] == [0, 1]
    with pytest.raises(exceptions.BadRequest):
        client.get_queue(request={"name": OTHER, "read_mask": {"paths": ["colour"]}})


def test_tasks_of_both_versions(cloud: Cloud, client: Client) -> None:
    """A request is the other version's, too; counts are in a message of their own."""
    app_engine = {"relative_url": "/work", "payload": b"x", "http_method": "PUT"}
    http = {"url": "http://a.b/", "body": b"y", "headers": {"A": "b"}}
    names = [
        client.create_task(parent=cloud.queue, task=task).name
        for task in ({"app_engine_http_request": app_engine}, {"http_request": http})
    ]
    cloud.deliver(503)
    full = tasks_v2beta2.Task.View.FULL
    mine = [client.get_task(request={"name": name, "response_view": full}) for name in names]

    request = cloud.client.get_task(name=names[0]).app_engine_http_request
    assert (request.relative_uri, request.http_method.name) == ("/work", "PUT")
    assert mine[0].app_engine_http_request.payload == b"x"
    assert (mine[1].http_request.body, mine[1].http_request.headers["A"]) == (b"y", "b")
    assert [task.status.attempt_dispatch_count for task in mine] == [1, 1]
    assert mine[0].status.last_attempt_status.response_status.code == 14
    assert mine[0].status.first_attempt_status.dispatch_time.timestamp() == cloud.now()
    assert [task.view.name for task in client.list_tasks(parent=cloud.queue)] == ["BASIC"] * 2
    assert client.run_task(name=names[0]).status.attempt_response_count == 1
    client.delete_task(name=names[1])
    pages = client.list_tasks(request={"parent": cloud.queue, "page_size": 1}).pages
    assert [len(page.tasks) for page in pages] == [1]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"retry_config": {"max_attempts": -1}}, "maxAttempts must be greater than 0"),
        ({"task_ttl": {"seconds": 60}}, "task_ttl cannot be set"),
        ({"rate_limits": {"max_tasks_dispatched_per_second": 501}}, "less than or equal to 500"),
    ],
)
def test_queues_that_are_refused(
    cloud: Cloud, client: Client, fields: dict[str, object], words: str
) -> None:
    """What the service or the emulator does not take is refused, and makes no queue."""
    with pytest.raises(exceptions.BadRequest, match=words):
        client.create_queue(parent=PARENT, queue={"name": OTHER} | fields)
    with pytest.raises(exceptions.BadRequest, match="Task must have"):
        client.create_task(parent=cloud.queue, task={})
    assert [queue.name for queue in client.list_queues(parent=PARENT)] == [cloud.queue]


def test_policies(cloud: Cloud, client: Client) -> None:
    """A policy is the queue's in every version."""
    policy = policy_pb2.Policy(version=1)
    policy.bindings.add(role="roles/cloudtasks.enqueuer", members=["user:a@example.com"])
    stored = client.set_iam_policy(request={"resource": cloud.queue, "policy": policy})

    assert stored.bindings == policy.bindings
    assert cloud.client.get_iam_policy(request={"resource": cloud.queue}) == stored
    assert client.get_iam_policy(request={"resource": cloud.queue}) == stored
    wish = {"resource": cloud.queue, "permissions": ["cloudtasks.tasks.create"]}
    assert client.test_iam_permissions(request=wish).permissions == wish["permissions"]
    assert client.get_location(request={"name": PARENT}).location_id == "us-central1"


def test_buffer_task(cloud: Cloud) -> None:
    """BufferTask has messages of its own in each version."""
    address = cloud.emulator.grpc_address
    target = {"uriOverride": {"host": "a.b"}}
    call(address, "POST", f"/v2beta2/{PARENT}/queues", {"name": OTHER, "httpTarget": target})
    status, content = call(address, "POST", f"/v2beta2/{OTHER}/tasks/one:buffer")

    assert (status, content["task"]["name"]) == (200, f"{OTHER}/tasks/one")
    assert content["task"]["httpRequest"]["url"] == "https://a.b/"
    assert "dispatchDeadline" not in content["task"]


def test_a_refusal_s_code(cloud: Cloud) -> None:
    """REST says by name which of the refusals with 400 it is."""
    address = cloud.emulator.grpc_address
    body = {"maxTasks": 1, "leaseDuration": "9s"}
    status, content = call(address, "POST", f"/v2beta2/{cloud.queue}/tasks:lease", body)

    assert (status, content["error"]["status"]) == (400, "FAILED_PRECONDITION")
    assert call(address, "POST", f"/v2/{cloud.queue}/tasks:lease", body)[0] == 404
