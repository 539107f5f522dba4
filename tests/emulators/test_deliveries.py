"""The deliveries of an emulator: when they begin, what they carry, and how they are repeated."""

import base64
import json
import time
import urllib.request
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from google.api_core import exceptions
from google.protobuf import timestamp_pb2

from tests.emulators.conftest import Emulator

pytestmark = pytest.mark.emulators


def in_seconds(seconds: float) -> timestamp_pb2.Timestamp:
    """Return a time from now on."""
    return timestamp_pb2.Timestamp(seconds=int(time.time() + seconds))


def test_a_delivery(emulator: Emulator) -> None:
    """A task reaches its URL with its body and headers, and with those of the service."""
    http = {"body": b"work", "headers": {"X-Mine": "1"}, "http_method": "PUT"}
    emulator.create("/put", "mine", http=http)
    emulator.wait_for("/put")
    request = emulator.handler.received["/put"][0]
    assert (request.method, request.body, request.headers["x-mine"]) == ("PUT", b"work", "1")
    assert request.headers["x-cloudtasks-taskname"] == "mine"
    assert request.headers["x-cloudtasks-queuename"] == emulator.queue.rpartition("/")[2]
    assert request.headers["x-cloudtasks-taskretrycount"] == "0"
    assert request.headers["user-agent"] == "Google-Cloud-Tasks"


def test_a_retry(emulator: Emulator) -> None:
    """A failed task comes again, and says which answer it got before."""
    emulator.handler.script("/retried", 404)
    emulator.create("/retried")
    emulator.wait_until_empty()
    first, second = (request.headers for request in emulator.handler.received["/retried"])
    assert first["x-cloudtasks-taskretrycount"] == "0"
    assert second["x-cloudtasks-taskretrycount"] == "1"
    assert second["x-cloudtasks-taskpreviousresponse"] == "404"


def test_giving_up(emulator: Emulator) -> None:
    """A task is given up after `max_attempts`."""
    emulator.use_queue(retry_config={"max_attempts": 2, "max_backoff": {"seconds": 1}})
    emulator.handler.script("/bad", 500, 500, 500)
    emulator.create("/bad")
    emulator.wait_until_empty()
    assert len(emulator.handler.received["/bad"]) == 2


def test_a_redirect(emulator: Emulator) -> None:
    """A POST that is answered 302 is not sent on as a GET: it failed."""
    emulator.handler.script("/moved", 302)
    emulator.handler.headers["/moved"] = {"Location": "/elsewhere"}
    emulator.create("/moved")
    emulator.wait_until_empty()
    requests = emulator.handler.received["/moved"]
    assert [request.method for request in requests] == ["POST", "POST"]
    assert not emulator.handler.received["/elsewhere"]


def test_a_schedule(emulator: Emulator) -> None:
    """A task waits for its `schedule_time`."""
    at = in_seconds(2)
    emulator.create("/later", schedule_time=at)
    emulator.wait_for("/later")
    assert time.time() >= at.seconds


def test_a_pause(emulator: Emulator) -> None:
    """A paused queue delivers nothing until it is resumed."""
    emulator.client.pause_queue(name=emulator.queue)
    emulator.create("/paused")
    assert not emulator.handler.entered["/paused"].wait(1)
    emulator.client.resume_queue(name=emulator.queue)
    emulator.wait_for("/paused")


def test_a_purge(emulator: Emulator) -> None:
    """A purge deletes the tasks of a queue."""
    emulator.client.pause_queue(name=emulator.queue)
    emulator.create("/purged")
    emulator.client.purge_queue(name=emulator.queue)
    emulator.wait_until_empty()
    emulator.client.resume_queue(name=emulator.queue)
    assert not emulator.handler.entered["/purged"].wait(1)


def test_a_run(emulator: Emulator) -> None:
    """`RunTask` delivers a task before its time."""
    name = emulator.create("/run", schedule_time=in_seconds(3600))
    emulator.client.run_task(name=name)
    emulator.wait_for("/run")


def test_concurrency(emulator: Emulator) -> None:
    """`max_concurrent_dispatches` holds."""
    emulator.use_queue(rate_limits={"max_concurrent_dispatches": 1})
    release = emulator.handler.block("/first")
    emulator.create("/first")
    emulator.wait_for("/first")
    emulator.create("/second")
    assert not emulator.handler.entered["/second"].wait(1)
    release.set()
    emulator.wait_for("/second")


def test_a_name(emulator: Emulator) -> None:
    """The name of a task that has ended stays taken."""
    emulator.create("/named", "once")
    emulator.wait_until_empty()
    with pytest.raises(exceptions.AlreadyExists):
        emulator.create("/named", "once")


def test_a_target_of_the_queue(emulator: Emulator) -> None:
    """`Queue.http_target` overrides the URL of its tasks."""
    override = {"path_override": {"path": "/overridden"}}
    emulator.use_queue(http_target={"uri_override": override})
    emulator.create("/own")
    emulator.wait_for("/overridden")
    assert not emulator.handler.received["/own"]


def test_a_token(emulator: Emulator) -> None:
    """The OIDC token of a task can be checked by the discovery document of its issuer."""
    account = {"service_account_email": "a@b.c", "audience": "us"}
    emulator.create("/token", http={"oidc_token": account})
    emulator.wait_for("/token")
    headers = emulator.handler.received["/token"][0].headers
    scheme, _, token = headers["authorization"].partition(" ")
    head, body, signature = token.split(".")
    claims = json.loads(decoded(body))
    assert (scheme, claims["aud"], claims["email"]) == ("Bearer", "us", "a@b.c")
    document = fetched(f"{claims['iss']}/.well-known/openid-configuration")
    [key] = fetched(document["jwks_uri"])["keys"]
    numbers = [int.from_bytes(decoded(key[part])) for part in ("e", "n")]
    public = rsa.RSAPublicNumbers(*numbers).public_key()
    signed = f"{head}.{body}".encode()
    public.verify(decoded(signature), signed, padding.PKCS1v15(), hashes.SHA256())


def decoded(text: str) -> bytes:
    """Return what base64 of URLs stands for."""
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def fetched(url: str) -> Any:
    """Return the JSON at a URL on this machine."""
    assert url.startswith(("http://127.0.0.1", "http://localhost")), url
    with urllib.request.urlopen(url, timeout=20) as response:
        return json.loads(response.read())


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"dispatch_deadline": {"seconds": 1}},
            "Task.dispatchDeadline must be between [15s, 30m].",
        ),
        ({"schedule_time": in_seconds(3_000_000)}, "is too far in the future."),
        ({"http": {"body": b"x" * 1_100_000}}, "Task size too large"),
        ({"http": {"url": "ftp://a.b"}}, "HttpTarget.url must start with"),
    ],
    ids=["deadline", "schedule", "size", "url"],
)
def test_refusals(emulator: Emulator, fields: dict[str, Any], words: str) -> None:
    """What the service refuses is refused in the words that were recorded from it."""
    with pytest.raises(exceptions.InvalidArgument) as refused:
        emulator.create("/refused", **fields)
    assert words in refused.value.message
