"""The REST API beside gRPC: the official client in its REST mode, and calls by hand."""

import base64
from collections.abc import Iterator
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import tasks_v2
from google.iam.v1 import iam_policy_pb2, policy_pb2
from google.protobuf import field_mask_pb2

from tests.contracts.clients.rest import call, rest_client
from tests.contracts.conftest import PARENT, Cloud, Handler

pytestmark = pytest.mark.fast

OTHER = f"{PARENT}/queues/other"
DEFINITION = "https://cloud.google.com/tasks/docs/reference/rest/v2/projects.locations.queues"


@pytest.fixture
def client(cloud: Cloud) -> Iterator[tasks_v2.CloudTasksClient]:
    """The official client in its REST mode, on the emulator of `cloud`."""
    with rest_client(cloud.emulator.grpc_address) as client:
        yield client


def ask(cloud: Cloud, verb: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    """Call an address below the version's prefix."""
    return call(cloud.emulator.grpc_address, verb, f"/v2/{path}", body, headers)


def error_of(answer: tuple[int, Any]) -> tuple[int, str, str]:
    """Return code, status and message of an error, and check that its parts agree."""
    status, content = answer
    assert content["error"]["code"] == status
    return status, content["error"]["status"], content["error"]["message"]


# --- the official client ----------------------------------------------------


def test_a_queue_s_life(cloud: Cloud, client: tasks_v2.CloudTasksClient) -> None:
    """Each call on queues does over REST what it does over gRPC."""
    client.create_queue(parent=PARENT, queue={"name": OTHER})
    client.update_queue(
        queue={"name": OTHER, "retry_config": {"max_attempts": 7}, "rate_limits": {}},
        update_mask={"paths": ["retry_config.max_attempts"]},
    )

    assert client.get_queue(name=OTHER) == cloud.client.get_queue(name=OTHER)
    assert client.get_queue(name=OTHER).retry_config.max_attempts == 7
    assert client.pause_queue(name=OTHER).state is tasks_v2.Queue.State.PAUSED
    paused = client.list_queues(request={"parent": PARENT, "filter": "state: PAUSED"})
    assert [queue.name for queue in paused] == [OTHER]
    assert client.resume_queue(name=OTHER).state is tasks_v2.Queue.State.RUNNING
    assert client.purge_queue(name=OTHER).purge_time is not None
    client.delete_queue(name=OTHER)
    assert [queue.name for queue in client.list_queues(parent=PARENT)] == [cloud.queue]


def test_a_task_s_life(cloud: Cloud, client: tasks_v2.CloudTasksClient) -> None:
    """Each call on tasks does over REST what it does over gRPC, bytes and times included."""
    body = bytes(range(256))
    http = cloud.http(body=body, headers={"X-One": "ä"}, http_method=tasks_v2.HttpMethod.PUT)
    name = f"{cloud.queue}/tasks/one"
    client.create_task(parent=cloud.queue, task={"name": name, "http_request": http})

    full = client.get_task(request={"name": name, "response_view": "FULL"})
    assert full == cloud.client.get_task(request={"name": name, "response_view": "FULL"})
    assert full.http_request.body == body
    assert list(client.list_tasks(parent=cloud.queue)) == [cloud.client.get_task(name=name)]
    client.run_task(name=name)
    assert [attempt.task.name for attempt in cloud.deliver(500)] == [name]
    assert client.get_task(name=name).last_attempt.response_status.code == 13
    client.delete_task(name=name)
    assert list(client.list_tasks(parent=cloud.queue)) == []


def test_pages(cloud: Cloud, client: tasks_v2.CloudTasksClient) -> None:
    """A token continues a list."""
    for number in range(5):
        cloud.create(f"t{number}")

    pages = client.list_tasks(request={"parent": cloud.queue, "page_size": 2}).pages

    assert [len(page.tasks) for page in pages] == [2, 2, 1]


def test_batches(cloud: Cloud, client: tasks_v2.CloudTasksClient) -> None:
    """An operation carries messages of any type, as JSON with their types."""
    members = [
        {"parent": cloud.queue, "task": {"http_request": {"url": url}}}
        for url in ("http://a.b/", "ftp://a.b/")
    ]
    request = {"parent": cloud.queue, "requests": members}
    operation = client.batch_create_tasks(request=request)

    metadata, tasks = operation.metadata, operation.result().tasks
    assert [task.http_request.url for task in tasks] == ["http://a.b/"]
    assert "HttpTarget.url" in metadata.failed_requests[1].message
    name = operation.operation.name
    assert ask(cloud, "GET", name)[1]["response"]["@type"].endswith(".BatchCreateTasksResponse")
    assert ask(cloud, "DELETE", name) == (200, {})
    assert error_of(ask(cloud, "GET", name))[:2] == (404, "NOT_FOUND")


def test_locations(client: tasks_v2.CloudTasksClient) -> None:
    """The one location is listed and found."""
    project = PARENT.partition("/locations/")[0]
    locations = client.list_locations(request={"name": project}).locations

    assert [location.name for location in locations] == [PARENT]
    assert client.get_location(request={"name": PARENT}).location_id == "us-central1"


def test_policies(cloud: Cloud, client: tasks_v2.CloudTasksClient) -> None:
    """A policy is stored and answered; one that was read before a change is refused."""
    policy = policy_pb2.Policy(version=1)
    policy.bindings.add(role="roles/cloudtasks.enqueuer", members=["user:a@example.com"])
    first = client.get_iam_policy(request=iam_policy_pb2.GetIamPolicyRequest(resource=cloud.queue))
    policy.etag = first.etag

    stored = client.set_iam_policy(request={"resource": cloud.queue, "policy": policy})

    assert stored.bindings == policy.bindings
    assert cloud.client.get_iam_policy(request={"resource": cloud.queue}) == stored
    with pytest.raises(exceptions.Conflict, match="concurrent policy changes"):
        client.set_iam_policy(request={"resource": cloud.queue, "policy": policy})
    mask = field_mask_pb2.FieldMask(paths=["version"])
    request = {"resource": cloud.queue, "policy": policy_pb2.Policy(), "update_mask": mask}
    unversioned = client.set_iam_policy(request=request)
    assert (unversioned.version, unversioned.bindings) == (0, policy.bindings)
    wish = {"resource": cloud.queue, "permissions": ["cloudtasks.tasks.create"]}
    assert client.test_iam_permissions(request=wish).permissions == wish["permissions"]
    assert not client.test_iam_permissions(request=wish | {"resource": OTHER}).permissions


def test_a_policy_goes_with_its_queue(cloud: Cloud) -> None:
    """Two queues of one name, one after the other, share nothing."""
    policy = policy_pb2.Policy(version=3)
    cloud.client.set_iam_policy(request={"resource": cloud.queue, "policy": policy})
    cloud.client.delete_queue(name=cloud.queue)
    with pytest.raises(exceptions.NotFound):
        cloud.client.get_iam_policy(request={"resource": cloud.queue})
    cloud.advance(4 * 86400)
    cloud.client.create_queue(parent=PARENT, queue={"name": cloud.queue})

    assert cloud.client.get_iam_policy(request={"resource": cloud.queue}).version == 0


def test_a_configuration_of_keys(cloud: Cloud, client: tasks_v2.CloudTasksClient) -> None:
    """The name of a key is stored and answered."""
    name = f"{PARENT}/cmekConfig"
    assert client.get_cmek_config(name=name).kms_key == ""
    client.update_cmek_config(cmek_config={"name": name, "kms_key": "projects/p/keys/k"})

    assert client.get_cmek_config(name=name).kms_key == "projects/p/keys/k"
    with pytest.raises(exceptions.Forbidden):
        client.get_cmek_config(name="projects/p/locations/l/cmekConfig")
    with pytest.raises(exceptions.InvalidArgument):
        cloud.client.get_cmek_config(name=PARENT)


@pytest.mark.parametrize(
    ("verb", "call_path", "error", "message"),
    [
        ("get_queue", OTHER, exceptions.NotFound, "Queue does not exist."),
        ("delete_queue", OTHER, exceptions.NotFound, "Requested entity was not found."),
        ("get_queue", "projects/x/locations/y/queues/z", exceptions.Forbidden, "project x."),
        ("get_task", f"{OTHER}/tasks/a b", exceptions.BadRequest, 'Task ID "a b" can contain'),
    ],
)
def test_refusals(
    client: tasks_v2.CloudTasksClient,
    verb: str,
    call_path: str,
    error: type[exceptions.GoogleAPICallError],
    message: str,
) -> None:
    """A refusal has the code and the words that it has over gRPC."""
    with pytest.raises(error) as caught:
        getattr(client, verb)(name=call_path)

    assert message in caught.value.message


# --- JSON by hand -----------------------------------------------------------


def test_json_as_the_service_writes_it(cloud: Cloud) -> None:
    """Names are camelCase, times are texts, bytes are base64, defaults are left out."""
    body = base64.b64encode(b"hello").decode()
    task = {"httpRequest": {"url": "http://a.b/", "body": body}, "dispatchDeadline": "20s"}
    fields = {"task": task, "responseView": "FULL"}

    assert ask(cloud, "POST", f"{cloud.queue}/tasks", fields) == (
        200,
        {
            "name": cloud.client.list_tasks(parent=cloud.queue).tasks[0].name,
            "httpRequest": {
                "url": "http://a.b/",
                "httpMethod": "POST",
                "headers": {"User-Agent": "Google-Cloud-Tasks"},
                "body": "aGVsbG8=",
            },
            "scheduleTime": "2027-01-15T08:00:00Z",
            "createTime": "2027-01-15T08:00:00Z",
            "dispatchDeadline": "20s",
            "view": "FULL",
        },
    )


def test_an_error_s_body(cloud: Cloud) -> None:
    """An error carries its details, each with its type."""
    status, content = ask(cloud, "POST", f"{PARENT}/queues", {"name": "not a queue"})

    assert status == content["error"]["code"] == 400
    assert content["error"]["status"] == "INVALID_ARGUMENT"
    link = {"description": "Definition of queue name", "url": f"{DEFINITION}#Queue.FIELDS.name"}
    assert content["error"]["details"] == [
        {"@type": "type.googleapis.com/google.rpc.Help", "links": [link]}
    ]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"tsk": {}}, 'Unknown name "tsk": Cannot find field.'),
        (
            {"task": {"httpRequest": {"foo": 1}}},
            "Unknown name \"foo\" at 'task.http_request': Cannot find field.",
        ),
        ({"task": {"httpRequest": {"body": "%"}}}, "Base64 decoding failed."),
        ({"task": {"httpRequest": {"url": 7}}}, "Invalid JSON payload received."),
        ({"task": {"scheduleTime": "noon"}}, "Invalid JSON payload received."),
        ({"task": 7}, "Invalid JSON payload received."),
        ([], "The root must be an object."),
        (b'{"task', "Invalid JSON payload received."),
        (b"\xff", "Invalid JSON payload received."),
        (b"[" * 100_000, "Invalid JSON payload received."),
        ({"task": None}, "Task must have an http_request"),
    ],
)
def test_bad_bodies(cloud: Cloud, body: Any, message: str) -> None:
    """A body that is no request is refused with what is wrong, and changes nothing."""
    answer = ask(cloud, "POST", f"{cloud.queue}/tasks", body)

    assert error_of(answer)[:2] == (400, "INVALID_ARGUMENT")
    assert message in error_of(answer)[2]
    assert list(cloud.client.list_tasks(parent=cloud.queue)) == []


@pytest.mark.parametrize(
    ("verb", "path"),
    [
        ("PUT", f"{PARENT}/queues/work"),
        ("POST", f"{PARENT}/queues/work:explode"),
        ("GET", "projects"),
        ("GET", ""),
        ("GET", f"{PARENT}/queues/work/tasks/t/attempts"),
    ],
)
def test_unknown_addresses(cloud: Cloud, verb: str, path: str) -> None:
    """What the API does not have is not found, in JSON."""
    assert error_of(ask(cloud, verb, path)) == (404, "NOT_FOUND", "Method not found.")


def test_query_parameters(cloud: Cloud) -> None:
    """Fields come in the query, in either spelling; parameters of all Google APIs are no fields."""
    cloud.create("one")
    path = f"{cloud.queue}/tasks?alt=json&key=k&$.xgafv=2&prettyPrint=false"

    for query in ("responseView=FULL&pageSize=1", "response_view=FULL&page_size=1"):
        content = ask(cloud, "GET", f"{path}&{query}")[1]
        assert [task["view"] for task in content["tasks"]] == ["FULL"]
    assert ask(cloud, "GET", f"{path}&$alt=json;enum-encoding=int")[1]["tasks"][0]["view"] == 1
    assert error_of(ask(cloud, "GET", f"{path}&pagesize=1"))[:2] == (400, "INVALID_ARGUMENT")


def test_underscores(cloud: Cloud) -> None:
    """A mask may name fields as protobuf does; in a name they stay."""
    fields = {"name": cloud.queue, "retryConfig": {"maxAttempts": 7}}
    path = f"{cloud.queue}?updateMask=retry_config.max_attempts"
    cloud.create("one_two")

    assert ask(cloud, "PATCH", path, fields)[1]["retryConfig"]["maxAttempts"] == 7
    assert ask(cloud, "GET", f"{cloud.queue}/tasks/one_two")[0] == 200


def test_a_path_goes_before_the_body(cloud: Cloud) -> None:
    """A body cannot name another queue than the address does."""
    body = {"parent": OTHER, "task": {"httpRequest": {"url": "http://a.b/"}}}

    assert ask(cloud, "POST", f"{cloud.queue}/tasks", body)[0] == 200
    assert len(list(cloud.client.list_tasks(parent=cloud.queue))) == 1


def test_an_address_without_a_version(cloud: Cloud) -> None:
    """Firebase's Admin SDK sends no version to CLOUD_TASKS_EMULATOR_HOST."""
    body = {"task": {"httpRequest": {"url": "http://a.b/", "oidcToken": None}}}
    address = cloud.emulator.grpc_address

    assert call(address, "POST", f"/{cloud.queue}/tasks", body)[0] == 200

    without_url = {"task": {"httpRequest": {"body": ""}}}
    created = call(address, "POST", f"/{cloud.queue}/tasks", without_url)
    assert created[1]["httpRequest"]["url"] == "http://127.0.0.1:5001/demo-local/us-central1/work"
    assert error_of(ask(cloud, "POST", f"{cloud.queue}/tasks", without_url))[0] == 400
    refused = call(address, "POST", f"/{cloud.queue}%2Fx/tasks", without_url)
    assert error_of(refused)[:2] == (400, "INVALID_ARGUMENT")
    assert "Queue name must be formatted" in error_of(refused)[2]


@pytest.mark.parametrize(
    "headers", [{"Host": "evil.example"}, {"Origin": "http://evil.example"}, {"Origin": "null"}]
)
def test_pages_of_other_sites(cloud: Cloud, headers: dict[str, str]) -> None:
    """A page in a visitor's browser cannot call the API."""
    answer = ask(cloud, "POST", f"{cloud.queue}:pause", {}, **headers)

    assert error_of(answer)[:2] == (403, "PERMISSION_DENIED")
    assert cloud.client.get_queue(name=cloud.queue).state is tasks_v2.Queue.State.RUNNING


# --- BufferTask -------------------------------------------------------------


def test_buffer_task(live_cloud: Cloud, handler: Handler) -> None:
    """A queue's target turns a body into a task, which is delivered."""
    host, _, port = handler.url.removeprefix("http://").partition(":")
    override = {"scheme": "HTTP", "host": host, "port": port, "pathOverride": {"path": "/in"}}
    fields = {"name": OTHER, "httpTarget": {"uriOverride": override, "httpMethod": "PUT"}}
    assert ask(live_cloud, "POST", f"{PARENT}/queues", fields)[0] == 200
    body = {"contentType": "text/plain", "data": base64.b64encode(b"hello").decode()}

    named = ask(live_cloud, "POST", f"{OTHER}/tasks/mine:buffer", {"body": body})
    unnamed = ask(live_cloud, "POST", f"{OTHER}/tasks:buffer")

    assert (named[0], named[1]["task"]["name"]) == (200, f"{OTHER}/tasks/mine")
    assert unnamed[0] == 200
    live_cloud.settle()
    received = sorted(handler.received["/in"], key=lambda request: request.body)
    assert [(request.method, request.body) for request in received] == [
        ("PUT", b""),
        ("PUT", b"hello"),
    ]
    assert received[1].headers["content-type"] == "text/plain"
    again = ask(live_cloud, "POST", f"{OTHER}/tasks/mine:buffer", {"body": body})
    assert error_of(again)[:2] == (409, "ALREADY_EXISTS")


def test_buffer_task_of_a_queue_without_a_target(cloud: Cloud) -> None:
    """A body alone is no task where the queue says nothing of the rest."""
    answer = ask(cloud, "POST", f"{cloud.queue}/tasks/:buffer", {})

    assert error_of(answer)[:2] == (400, "FAILED_PRECONDITION")
