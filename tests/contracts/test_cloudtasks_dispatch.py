"""What reaches a handler over HTTP, and what becomes of its answer.

REF is cloud.google.com/tasks/docs/reference/rpc/google.cloud.tasks.v2
"""

import json
import socket
import threading
import urllib.request
from typing import Any

import grpc
import pytest
from google.auth import exceptions as auth_exceptions
from google.auth import jwt
from google.cloud import tasks_v2
from google.cloud.tasks_v2.services.cloud_tasks.transports import CloudTasksGrpcTransport

from devserver.cloudtasks import dispatcher
from devserver.cloudtasks.emulator import running
from tests.contracts.conftest import PARENT, Cloud, Handler, Received
from tests.stack import until

ACCOUNT = "worker@demo-local.iam.gserviceaccount.com"


def received(cloud: Cloud, handler: Handler, path: str = "/ok", **task: Any) -> Received:
    """Create a task and return the one request that the handler got for it."""
    cloud.create(**task)
    cloud.settle()
    (request,) = handler.received[path]
    return request


def get_json(url: str) -> Any:
    """Return the JSON at an address."""
    with urllib.request.urlopen(url) as response:
        return json.load(response)


# --- requests -------------------------------------------------------------


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


# --- the queue's HTTP target ----------------------------------------------


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


# --- tokens ---------------------------------------------------------------


def bearer(request: Received) -> str:
    """Return the token of a request."""
    scheme, _, token = request.headers["authorization"].partition(" ")
    assert scheme == "Bearer"
    return token


def test_oidc_token_verifies(live_cloud, handler):
    """An OIDC token is signed, and tells account and audience (docs/creating-http-target-tasks)."""
    oidc = {"service_account_email": ACCOUNT, "audience": "https://app.example"}
    request = received(live_cloud, handler, http_request=live_cloud.http(oidc_token=oidc))
    certs = get_json(f"{live_cloud.emulator.control_url}/oauth2/v1/certs")

    claims = jwt.decode(bearer(request), certs=certs, audience="https://app.example")

    assert claims["email"] == ACCOUNT
    assert claims["email_verified"] is True
    assert claims["iss"] == "https://accounts.google.com"
    assert claims["exp"] - claims["iat"] == 3600
    assert claims["sub"].isdecimal()


def test_oidc_token_for_another_audience_is_refused(live_cloud, handler):
    """A token is good for its audience only (docs/creating-http-target-tasks#token)."""
    oidc = {"service_account_email": ACCOUNT, "audience": "https://app.example"}
    request = received(live_cloud, handler, http_request=live_cloud.http(oidc_token=oidc))
    certs = get_json(f"{live_cloud.emulator.control_url}/oauth2/v1/certs")

    with pytest.raises(auth_exceptions.InvalidValue):
        jwt.decode(bearer(request), certs=certs, audience="https://other.example")


def test_oidc_audience_defaults_to_the_address(live_cloud, handler):
    """Without an audience the target's URI is used (REF#oidctoken)."""
    oidc = {"service_account_email": ACCOUNT}
    request = received(live_cloud, handler, http_request=live_cloud.http(oidc_token=oidc))

    claims = jwt.decode(bearer(request), verify=False)

    assert claims["aud"] == f"{handler.url}/ok"


def test_oidc_token_is_of_the_real_time(live_cloud, handler):
    """A token must not come from the future, though the emulator's clock was advanced.

    Handlers check iat against their own clock (docs/creating-http-target-tasks#token).
    """
    live_cloud.advance(30 * 86400)
    oidc = {"service_account_email": ACCOUNT, "audience": "a"}
    request = received(live_cloud, handler, http_request=live_cloud.http(oidc_token=oidc))
    certs = get_json(f"{live_cloud.emulator.control_url}/oauth2/v1/certs")

    assert jwt.decode(bearer(request), certs=certs, audience="a")


def test_keys_in_both_forms(live_cloud):
    """The keys are published as certificates and as a key set (openid.net, Discovery 1.0)."""
    base = live_cloud.emulator.control_url
    certs = get_json(f"{base}/oauth2/v1/certs")
    configuration = get_json(f"{base}/.well-known/openid-configuration")
    (key,) = get_json(configuration["jwks_uri"])["keys"]

    assert [key["kid"]] == list(certs)
    assert (key["kty"], key["alg"]) == ("RSA", "RS256")
    assert configuration["issuer"] == "https://accounts.google.com"


def test_oidc_token_of_the_queue(cloud):
    """A queue's token goes before the task's (REF#httptarget)."""
    cloud.configure(http_target={"oidc_token": {"service_account_email": "q@x", "audience": "q"}})
    oidc = {"service_account_email": "t@x", "audience": "t"}
    cloud.create(http_request=cloud.http(oidc_token=oidc))

    token = cloud.begin()[0].headers["Authorization"].partition(" ")[2]

    assert jwt.decode(token, verify=False)["email"] == "q@x"


def test_oauth_token(live_cloud, handler):
    """An OAuth token comes as a bearer token (REF#oauthtoken)."""
    oauth = {"service_account_email": ACCOUNT}
    request = received(live_cloud, handler, http_request=live_cloud.http(oauth_token=oauth))

    assert bearer(request)


# --- answers --------------------------------------------------------------


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


def test_a_token_is_for_the_address_it_was_made_for(live_cloud, handler):
    """A redirect to another server does not get the token (rfc9110#section-15.4)."""
    elsewhere = handler.url.replace("127.0.0.1", "localhost")
    handler.script("/old", 307)
    handler.headers["/old"] = {"Location": f"{elsewhere}/new"}
    oidc = {"service_account_email": ACCOUNT}
    live_cloud.create(http_request=live_cloud.http("/old", oidc_token=oidc))
    live_cloud.settle()

    assert "authorization" in handler.received["/old"][0].headers
    assert "authorization" not in handler.received["/new"][0].headers


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
    """Before its deadline an attempt is left alone, however the clock moves (REF#task)."""
    released = handler.block("/slow")
    task = live_cloud.create(http_request=live_cloud.http("/slow"))
    assert handler.entered["/slow"].wait(20)

    live_cloud.advance(590)
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
    handler.hang_up("/dies")
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
    assert live_cloud.emulator.emulator.under_way == 1
    released.set()
    until(lambda: live_cloud.emulator.emulator.under_way == 0, 20, every_s=0.02)

    _, attempts = live_cloud.engine.history.of_task(slow.name)
    assert [attempt["status"] for attempt in attempts] == [200]
    assert live_cloud.client.get_task(name=waiting.name).dispatch_count == 0


def test_a_held_emulator_takes_a_dead_worker_for_no_failure(live_cloud, handler):
    """The worker ended because all is being stopped: its task begins again at the next start."""
    released = handler.block("/dies")
    handler.hang_up("/dies")
    task = live_cloud.create(http_request=live_cloud.http("/dies"))
    assert handler.entered["/dies"].wait(20)

    live_cloud.emulator.emulator.hold()
    released.set()
    until(lambda: live_cloud.emulator.emulator.under_way == 0, 20, every_s=0.02)

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
