"""Callers that do everything wrong: each is told so, nothing is logged as a fault of ours, and the
emulator goes on."""

import contextlib
import http.client
import json
import logging
import socket
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.cloud import tasks_v2

from rollforward.local.cloudtasks.emulator import RunningEmulator, running
from rollforward.local.cloudtasks.protocol import messages
from rollforward.local.cloudtasks.server.front import MAX_MESSAGE_BYTES
from tests.rollforward.local.cloudtasks.control_calls import call, queue_name, with_queue

pytestmark = pytest.mark.fast

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HOST = b"Host: localhost\r\n"
SERVICE = "/google.cloud.tasks.v2.CloudTasks"
QUEUE = "projects/demo-local/locations/us-central1/queues/work"
URL = "http://handler.invalid/"
TOO_LONG = "n" * 100_000


@pytest.fixture
def emulator(caplog: pytest.LogCaptureFixture) -> Iterator[RunningEmulator]:
    """An emulator with one queue, which must answer in the end, and have logged no error."""
    with running(dispatching=False) as emulator:
        yield with_queue(emulator)
        assert call(emulator, "GET", "/api/v1/queues")[0] == 200
        with grpc.insecure_channel(emulator.grpc_address) as channel:
            assert ask(channel, "GetQueue", messages.request("GetQueueRequest")(name=QUEUE))
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def ask(channel: grpc.Channel, method: str, message: Any) -> bytes:
    """Call a method of gRPC with a message, or with bytes that are none."""
    raw = message if isinstance(message, bytes) else message.SerializeToString()
    answer: bytes = channel.unary_unary(f"{SERVICE}/{method}")(raw, timeout=20)
    return answer


def refusal(emulator: RunningEmulator, method: str, message: Any) -> tuple[str, str]:
    """Return the code and the words with which gRPC refuses a call."""
    with (
        grpc.insecure_channel(emulator.grpc_address) as channel,
        pytest.raises(grpc.RpcError) as raised,
    ):
        ask(channel, method, message)
    return raised.value.code().name, raised.value.details()


def connect(emulator: RunningEmulator) -> socket.socket:
    """Return a connection to the one port."""
    host, _, port = emulator.grpc_address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=20)


def answer_to(emulator: RunningEmulator, data: bytes, *, leaves: bool = False) -> bytes:
    """Return all that comes back for some bytes, until the connection ends.

    Args:
        leaves: The caller sends no more.
    """
    answer = b""
    with connect(emulator) as connection, contextlib.suppress(ConnectionResetError):
        connection.sendall(data)
        if leaves:
            connection.shutdown(socket.SHUT_WR)
        while part := connection.recv(65536):
            answer += part
    return answer


def post(
    emulator: RunningEmulator, path: str, body: bytes, headers: dict[str, str]
) -> tuple[int, Any]:
    """Send a body as it is; return status and JSON."""
    connection = http.client.HTTPConnection(emulator.grpc_address, timeout=20)
    with contextlib.closing(connection):
        connection.request("POST", path, body, headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())


# --- connections ------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
        b"hello\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /v2/x HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /v2/x HTTP/1.1\r\n" + HOST + b"X: " + b"a" * 100_000 + b"\r\n\r\n",
        b"POST /v2/x HTTP/1.1\r\n" + HOST + b"Content-Length: -1\r\n\r\n",
        b"POST /v2/x HTTP/1.1\r\n" + HOST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST /v2/x HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /api/v1/queues HTTP/1.1\r\n" + HOST + b"\r\n" + b"\0" * 99,
    ],
)
def test_what_is_no_http(emulator: RunningEmulator, data: bytes) -> None:
    """It is answered with a status of 4xx, and the connection ends."""
    *_, last = answer_to(emulator, data).split(b"HTTP/1.")

    assert last[1:3] == b" 4"


@pytest.mark.parametrize("rest", [b"", b"\0" * 9, b"\xff" * 10_000, b"GET / HTTP/1.1\r\n\r\n"])
def test_garbage_after_the_preface_of_http_2(emulator: RunningEmulator, rest: bytes) -> None:
    """The connection ends, and no other one."""
    with grpc.insecure_channel(emulator.grpc_address) as channel:
        request = messages.request("GetQueueRequest")(name=QUEUE)
        assert ask(channel, "GetQueue", request)
        answer_to(emulator, PREFACE + rest, leaves=True)
        answer_to(emulator, PREFACE[:-8] + rest, leaves=True)
        assert ask(channel, "GetQueue", request)


@pytest.mark.parametrize("start", [b"", b"PRI", PREFACE, b"POST /v2/x HTTP/1.1\r\n" + HOST])
def test_connections_that_are_half_open(emulator: RunningEmulator, start: bytes) -> None:
    """Two hundred of them keep nobody from calling."""
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(connect(emulator)).sendall(start)

        assert call(emulator, "GET", "/api/v1/queues")[0] == 200


@pytest.mark.parametrize("path", [f"/v2/{QUEUE}/tasks", "/v2/unknown", "/api/v1/reset"])
@pytest.mark.parametrize(
    "sent",
    [b"Content-Length: 99\r\n\r\n{", b"Transfer-Encoding: chunked\r\n\r\n5\r\n{"],
)
def test_a_body_that_breaks_off(emulator: RunningEmulator, path: str, sent: bytes) -> None:
    """Nothing of it is done."""
    head = f"POST {path} HTTP/1.1\r\nContent-Type: application/json\r\n".encode()
    for is_reset in (False, True):
        with connect(emulator) as connection:
            connection.sendall(head + HOST + sent)
            if is_reset:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    assert call(emulator, "GET", "/api/v1/tasks")[1]["tasks"] == []


# --- REST -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b'{"\\ud800": 1}', {}, 400),
        (b'{"task": {"\\ud800": 1}}', {}, 400),
        (b'{"task": {"name": "\\ud800"}}', {}, 400),
        (b'{"task": {"httpRequest": {"url": "http://a.b/", "httpMethod": 99}}}', {}, 400),
        (b'{"task": {"httpRequest": {"url": "http://a.b/", "httpMethod": "FETCH"}}}', {}, 400),
        (b'{"task": {"httpRequest": {"url": "http://a.b/", "headers": []}}}', {}, 400),
        (b'{"task": {"httpRequest": {"url": "http://a.b/", "headers": {"A": {}}}}}', {}, 400),
        (b'{"task": {"scheduleTime": 1e999}}', {}, 400),
        (b'{"task": {"scheduleTime": "9999-12-31T23:59:59Z"}}', {}, 400),
        (b'{"task": {"dispatchDeadline": "1e9s"}}', {}, 400),
        (b'{"task": ' + b"9" * 5000 + b"}", {}, 400),
        (b'{"task": ' + b'{"httpRequest": ' * 900 + b"{}" + b"}" * 901, {}, 400),
        (b"a=b&c=d", {"Content-Type": "application/x-www-form-urlencoded"}, 400),
        (b"\0" * 99, {"Content-Type": "multipart/form-data"}, 400),
        (b"no gzip", {"Content-Encoding": "gzip"}, 400),
        (b"[" * (MAX_MESSAGE_BYTES + 1), {}, 413),
    ],
)
def test_bodies_of_rest(
    emulator: RunningEmulator, body: bytes, headers: dict[str, str], status: int
) -> None:
    """The error has the form of the API's."""
    answer, content = post(emulator, f"/v2/{QUEUE}/tasks", body, headers)

    assert (answer, content["error"]["code"]) == (status, status)
    assert content["error"]["status"] == "INVALID_ARGUMENT"


@pytest.mark.parametrize("coding", ["deflate", "br", "zstd", "gzip"])
def test_codings_of_bodies(emulator: RunningEmulator, coding: str) -> None:
    """A body that is not of the coding that it names is no request."""
    head = f"POST /v2/{QUEUE}/tasks HTTP/1.1\r\nContent-Encoding: {coding}\r\nContent-Length: 2\r\n"

    answer = answer_to(emulator, head.encode() + HOST + b"Connection: close\r\n\r\n{}")

    assert answer[8:12] == b" 400"


@pytest.mark.parametrize(
    "query", ["a..b=1", "=1", "%ff=%ff", "name.x=1", "responseView=%00", "pageSize=x", "a[]=1"]
)
def test_queries_of_rest(emulator: RunningEmulator, query: str) -> None:
    """A parameter that is no field is refused."""
    status, content = call(emulator, "GET", f"/v2/{QUEUE}/tasks?{query}")

    assert (status, content["error"]["status"]) == (400, "INVALID_ARGUMENT")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/v1/reset", b'{"queue": 5}'),
        ("/api/v1/reset", b'{"queue": "a:b:c:d/e"}'),
        ("/api/v1/wait-idle", b'{"queue": []}'),
        ("/api/v1/wait-idle", b'{"timeout_s": "x"}'),
        ("/api/v1/faults", b'{"self": 1}'),
        ("/api/v1/clock/advance", b'{"seconds": NaN}'),
        ("/api/v1/clock/advance", b"\xff"),
        ("/api/v1/marks", b"[" * 100_000),
        ("/api/v1/queues/::/pause", b"{}"),
    ],
)
def test_bodies_of_the_control_api(emulator: RunningEmulator, path: str, body: bytes) -> None:
    """A value of another kind is refused, and changes nothing."""
    status, content = post(emulator, path, body, {"Content-Type": "application/json"})

    assert status == 400
    assert content["error"]


def test_a_body_of_brackets_is_shown(emulator: RunningEmulator) -> None:
    """What looks like JSON, and nests too deep for a parser, is text."""
    task = messages.Task(name=f"{QUEUE}/tasks/deep")
    task.http_request.url, task.http_request.body = URL, b"[" * 100_000
    emulator.engine.tasks.create(QUEUE, task)

    status, shown = call(emulator, "GET", "/api/v1/tasks/work/deep")

    assert (status, [*shown["request"]["body"]]) == (200, ["size_bytes", "text"])


def test_a_caller_that_names_no_host() -> None:
    """HTTP/1.0 needs none, and the keys are at the address by which they are asked for."""
    with (
        running(dispatching=False, host="0.0.0.0", beyond_loopback=True) as emulator,
        socket.create_connection(("127.0.0.1", emulator.emulator.port), 20) as connection,
    ):
        connection.sendall(b"GET /.well-known/openid-configuration HTTP/1.0\r\n\r\n")

        assert connection.recv(65536).startswith(b"HTTP/1.0 403 Forbidden")


# --- gRPC -------------------------------------------------------------------


def test_bytes_that_are_no_message(emulator: RunningEmulator) -> None:
    """The answer names the message."""
    words = "The request is no message of type CreateTaskRequest."

    assert refusal(emulator, "CreateTask", b"\xff\xff") == ("INTERNAL", words)


def create_task(**fields: Any) -> Any:
    """Return a request for a task."""
    target = fields.pop("http", {"url": URL})
    task = messages.Task(http_request=target, **fields)
    return messages.request("CreateTaskRequest")(parent=QUEUE, task=task)


@pytest.mark.parametrize(
    "request_message",
    [
        create_task(http={"url": URL, "http_method": 99}),
        create_task(schedule_time={"seconds": 2**62}),
        create_task(dispatch_deadline={"seconds": 2**62}),
        create_task(retry_config={"max_backoff": {"seconds": 2**62}}),
        create_task(retry_config={"max_backoff": {"seconds": 5, "nanos": -1}}),
        create_task(retry_config={"max_retry_duration": {"nanos": 2_000_000_000}}),
        create_task(name=f"{QUEUE}/tasks/{TOO_LONG}"),
        create_task(name=TOO_LONG),
        create_task(http={"url": f"http://{TOO_LONG}/"}),
    ],
)
def test_tasks_that_only_grpc_can_carry(emulator: RunningEmulator, request_message: Any) -> None:
    """Numbers that JSON has no form for, and words too long to be repeated, are refused."""
    assert refusal(emulator, "CreateTask", request_message)[0] == "INVALID_ARGUMENT"


def queue_request(**fields: Any) -> Any:
    """Return a request to create a queue."""
    queue = messages.Queue(name=QUEUE.replace("work", "new"), **fields)
    parent = QUEUE.partition("/queues/")[0]
    return messages.request("CreateQueueRequest")(parent=parent, queue=queue)


@pytest.mark.parametrize(
    "request_message",
    [
        queue_request(rate_limits={"max_dispatches_per_second": float("nan")}),
        queue_request(retry_config={"min_backoff": {"seconds": -(2**62)}}),
        queue_request(retry_config={"max_retry_duration": {"seconds": 2**62}}),
        queue_request(http_target={"http_method": 99}),
    ],
)
def test_queues_that_only_grpc_can_carry(emulator: RunningEmulator, request_message: Any) -> None:
    """A queue whose numbers nothing could be done with is refused."""
    assert refusal(emulator, "CreateQueue", request_message)[0] == "INVALID_ARGUMENT"


@pytest.mark.parametrize("parent", [TOO_LONG, f"projects/{'ü' * 9_000}/locations/x"])
def test_a_long_name_in_a_refusal(emulator: RunningEmulator, parent: str) -> None:
    """The beginning is enough: gRPC takes 8 KB of words."""
    request = messages.request("ListQueuesRequest")(parent=parent)

    assert refusal(emulator, "ListQueues", request)[0] == "PERMISSION_DENIED"


@pytest.mark.parametrize(
    "text", ["rate_limits < 5", "http_target.header_overrides > 1", "x" * 100_000, '"' * 9]
)
def test_filters(emulator: RunningEmulator, text: str) -> None:
    """A comparison that means nothing is refused."""
    parent = QUEUE.partition("/queues/")[0]
    request = messages.request("ListQueuesRequest")(parent=parent, filter=text)

    assert refusal(emulator, "ListQueues", request)[0] == "INVALID_ARGUMENT"


def test_a_page_of_large_tasks(emulator: RunningEmulator) -> None:
    """It has as many as a response holds, and the next page has the rest."""
    task = messages.Task(http_request={"url": URL, "body": b"x" * 1_000_000})
    for _ in range(40):
        emulator.engine.tasks.create(queue_name(emulator), task)
    options = [("grpc.max_receive_message_length", -1)]
    listed, token = [], ""
    with grpc.insecure_channel(emulator.grpc_address, options) as channel:
        while token or not listed:
            request = {"parent": QUEUE, "response_view": "FULL", "page_token": token}
            raw = ask(channel, "ListTasks", tasks_v2.ListTasksRequest.serialize(request))
            page = tasks_v2.ListTasksResponse.deserialize(raw)
            token = page.next_page_token
            listed.append([task.name for task in page.tasks])

    assert [len(names) for names in listed] == [33, 7]
    assert len({name for names in listed for name in names}) == 40
