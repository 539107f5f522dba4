"""The requests that handlers get: method, address, headers, body, and what the queue overrides."""

import grpc
import pytest
from google.cloud import tasks_v2
from google.cloud.tasks_v2.services.cloud_tasks.transports import CloudTasksGrpcTransport

from rollforward.local.cloudtasks.emulator import running
from rollforward.local.cloudtasks.server import dispatcher
from tests.contracts.conftest import PARENT
from tests.contracts.received import received

pytestmark = pytest.mark.fast

# --- requests --------------------------------------------------------------


@pytest.mark.parametrize("method", ["POST", "GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
def test_method_of_the_request(live_cloud, handler, method):
    """The handler sees the task's method (REF#httpmethod)."""
    request = live_cloud.http(http_method=method)

    assert received(live_cloud, handler, http_request=request).method == method


def test_address_arrives_as_given(live_cloud, handler):
    """What is encoded in an address stays so (REF#httprequest)."""
    path = "/a%2Fb/%41?q=%20+%26"

    assert received(live_cloud, handler, path, http_request=live_cloud.http(path)).path == path


def test_address_that_is_not_ascii_is_encoded(live_cloud, handler):
    """Cloud Tasks encodes some characters of an address for safety (REF#httprequest)."""
    request = live_cloud.http("/gar\u00e7on/%zz/%41?q=%20+[\u00fc]")
    sent = "/gar%C3%A7on/%zz/%41?q=%20+[%C3%BC]"

    assert received(live_cloud, handler, sent, http_request=request)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://g\u00fcnther.invalid:81/\u00fc%zz", "http://xn--gnther-3ya.invalid:81/%C3%BC%zz"),
        ("http://a.invalid/%zz/%41?[]", "http://a.invalid/%zz/%41?[]"),
    ],
)
def test_only_what_is_not_ascii_is_encoded(url, address):
    """Host names are encoded as IDNA wants it, the rest by percent signs (REF#httprequest)."""
    assert str(dispatcher.to_address(url)) == address


def test_post_without_body_tells_its_length(live_cloud, handler):
    """A POST without a body says so: some servers insist on it (rfc9110#field.content-length)."""
    assert received(live_cloud, handler).headers["content-length"] == "0"


def test_transfer_encoding_is_not_the_callers(live_cloud, handler):
    """Each request has one length, whatever encoding its task tells (rfc9112#section-6.3)."""
    request = live_cloud.http(headers={"Transfer-Encoding": "chunked"}, body=b"body")

    got = received(live_cloud, handler, http_request=request)

    assert got.body == b"body"
    assert "transfer-encoding" not in got.headers


def test_body_and_headers_of_an_http_target(live_cloud, handler):
    """Body and headers arrive as they were given; no Content-Type is added (REF#httprequest)."""
    body = bytes(range(256))
    request = live_cloud.http("/a?b=c%20d", body=body, headers={"X-Own": "1"})

    got = received(live_cloud, handler, "/a?b=c%20d", http_request=request)

    assert got.body == body
    assert got.headers["x-own"] == "1"
    assert "content-type" not in got.headers


def test_body_and_type_of_an_app_engine_target(live_cloud, handler):
    """An App Engine target gets the body, typed octet-stream by default (REF)."""
    request = {"relative_uri": "/app?x=1", "body": b"body"}

    got = received(live_cloud, handler, "/app?x=1", app_engine_http_request=request)

    assert got.body == b"body"
    assert got.headers["content-type"] == "application/octet-stream"
    assert got.headers["content-length"] == "4"


def test_app_engine_service_has_its_own_address(handler):
    """A task for a service goes to that service (REF#appenginerouting)."""
    with (
        running(app_url="http://127.0.0.1:9", service_urls={"worker": handler.url}) as emulator,
        grpc.insecure_channel(emulator.grpc_address) as channel,
    ):
        client = tasks_v2.CloudTasksClient(transport=CloudTasksGrpcTransport(channel=channel))
        queue = client.create_queue(parent=PARENT, queue={"name": f"{PARENT}/queues/q"})
        request = {"relative_uri": "/w", "app_engine_routing": {"service": "worker"}}
        client.create_task(parent=queue.name, task={"app_engine_http_request": request})
        emulator.wait_idle(20)

    assert len(handler.received["/w"]) == 1


def test_routing_override_of_the_queue(cloud):
    """The queue's routing override goes before the task's routing (REF#queue)."""
    cloud.engine.app.service_urls.update(a="http://a.invalid", b="http://b.invalid")
    cloud.configure(app_engine_routing_override={"service": "b"})
    cloud.create(app_engine_http_request={"app_engine_routing": {"service": "a"}})

    assert cloud.begin()[0].url == "http://b.invalid/"


# --- the queue's HTTP target -----------------------------------------------


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ({"scheme": "HTTP"}, "http://a.invalid:81/p?q=1"),
        ({"host": "b.invalid"}, "https://b.invalid:81/p?q=1"),
        ({"port": 90}, "https://a.invalid:90/p?q=1"),
        ({"port": 0}, "https://a.invalid/p?q=1"),
        ({"path_override": {"path": "/new"}}, "https://a.invalid:81/new?q=1"),
        ({"query_override": {"query_params": "x=y"}}, "https://a.invalid:81/p?x=y"),
        ({"query_override": {}}, "https://a.invalid:81/p"),
        (
            {"path_override": {"path": "/n"}, "uri_override_enforce_mode": "IF_NOT_EXISTS"},
            "https://a.invalid:81/p?q=1",
        ),
    ],
)
def test_uri_override(cloud, override, expected):
    """A queue may override parts of its tasks' address (REF#urioverride)."""
    cloud.configure(http_target={"uri_override": override})
    cloud.create(http_request={"url": "https://a.invalid:81/p?q=1"})

    assert cloud.begin()[0].url == expected


def test_uri_override_fills_what_is_missing(cloud):
    """IF_NOT_EXISTS applies where the task has nothing of its own (REF#urioverride)."""
    override = {
        "path_override": {"path": "/new"},
        "query_override": {"query_params": "x=y"},
        "uri_override_enforce_mode": "IF_NOT_EXISTS",
    }
    cloud.configure(http_target={"uri_override": override})
    cloud.create(http_request={"url": "https://a.invalid"})

    assert cloud.begin()[0].url == "https://a.invalid/new?x=y"


def test_method_and_header_overrides(cloud):
    """A queue may override method and headers; with GET the body is left out (REF#httptarget)."""
    target = {
        "http_method": "GET",
        "header_overrides": [{"header": {"key": "x-own", "value": "queue"}}],
    }
    cloud.configure(http_target=target)
    cloud.create(http_request=cloud.http(body=b"x", headers={"X-Own": "task"}))

    (attempt,) = cloud.begin()

    assert (attempt.method, attempt.body) == ("GET", b"")
    assert [v for k, v in attempt.headers.items() if k.lower() == "x-own"] == ["queue"]


def test_header_overrides_that_are_the_services(cloud):
    """A queue's headers are ignored where only the service may set one (REF#httptarget)."""
    names = ["host", "content-length", "transfer-encoding", "user-agent", "x-cloudtasks-taskname"]
    overrides = [{"header": {"key": name, "value": "forged"}} for name in names]
    cloud.configure(http_target={"header_overrides": overrides})
    cloud.create()

    (attempt,) = cloud.begin()

    assert "forged" not in attempt.headers.values()
