"""Callers of tasks and cron are proved. S1 to S7 of the security checklist."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from flask import Flask

from rollforward.flask.guards.fields import MAX_HEADER_CHARS
from rollforward.testing.services import ACCOUNT, BASE_URL
from tests.handlers.conftest import Queue, app_with, on_app_engine, on_cloud_run
from tests.infra.world import World

pytestmark = [pytest.mark.parametrize("services", ["datastore"], indirect=True), pytest.mark.fast]

KNOWN = "/tasks/continuations/tell-guests"
LET_IN = 409  # To a task without a name that no version knows yet. A stranger gets 403.
PATHS = [
    KNOWN,
    "/tasks/dead/replay",
    "/tasks/nothing",
    "/cron/continuations/sweep",
    "/cron/nothing",
]
METHODS = ["POST", "GET", "PUT", "HEAD", "OPTIONS", "PATCH", "DELETE"]
Claims = dict[str, Any]


def answer_to(app: Flask, path: str, method: str = "POST", **headers: Any) -> tuple[Any, ...]:
    """Return all that a caller can see of an answer."""
    answer = app.test_client().open(path, method=method, **headers)
    return answer.status_code, answer.data, sorted(answer.headers)


@pytest.mark.parametrize("method", METHODS)
def test_a_stranger_gets_the_same_empty_403_everywhere(
    world: World, snapshot: Callable[[], Any], method: str
) -> None:
    """S1, S7: known or unknown, task or cron, any method: no answer tells one from another."""
    before = snapshot()

    answers = [answer_to(world.app, path, method, data=b"{}") for path in PATHS]

    assert answers[0][:2] == (403, b"")
    assert all(answer == answers[0] for answer in answers), answers
    assert snapshot() == before


HEADERS = [
    [("X-AppEngine-QueueName", "default"), ("X-AppEngine-TaskName", "t")],
    [("x-appengine-queuename", "default"), ("X-APPENGINE-TASKNAME", "t")],
    [("X-AppEngine-QueueName", "default"), ("X-AppEngine-QueueName", "default")],
    [("X_AppEngine_QueueName", "default")],
    [("X-CloudTasks-QueueName", "default"), ("X-CloudTasks-TaskName", "t")],
    [("X-Google-Cloud-Tasks", "1"), ("X-Forwarded-For", "0.1.0.2")],
    [("X-Appengine-Cron", "true")],
    [("User-Agent", "Google-Cloud-Tasks")],
]


@pytest.mark.parametrize("headers", HEADERS, ids=lambda headers: headers[0][0])
@pytest.mark.parametrize("path", [KNOWN, "/cron/continuations/sweep"])
def test_headers_of_a_stranger_prove_nothing(
    world: World, headers: list[tuple[str, str]], path: str
) -> None:
    """S2, S3: what anybody can write counts neither on a laptop nor on Cloud Run."""
    method = "GET" if path.startswith("/cron") else "POST"

    for app in (world.app, app_with(world, settings=on_cloud_run(world))):
        assert answer_to(app, path, method, headers=headers)[:2] == (403, b"")


def test_app_engine_mode_takes_the_header_of_its_front_end(world: World) -> None:
    """S2: on App Engine, and only there, the queue's header lets a task in."""
    app = app_with(world, settings=on_app_engine(world))

    task = answer_to(app, "/tasks/nothing", headers={"X-AppEngine-QueueName": "default"})
    cron = answer_to(app, "/cron/continuations/sweep", "GET", headers={"X-Appengine-Cron": "true"})

    assert task[0] == LET_IN
    assert cron[0] == 200


def test_app_engine_mode_wants_the_header_that_fits(world: World) -> None:
    """S2: cron's header opens no task, the queue's no cron, and an empty one nothing."""
    app = app_with(world, settings=on_app_engine(world))

    assert answer_to(app, KNOWN, headers={"X-Appengine-Cron": "true"})[0] == 403
    assert answer_to(app, KNOWN, headers={"X-AppEngine-QueueName": ""})[0] == 403
    queue = {"X-AppEngine-QueueName": "default"}
    assert answer_to(app, "/cron/continuations/sweep", "GET", headers=queue)[0] == 403


def test_app_engine_mode_without_a_url_takes_no_token(world: World) -> None:
    """S5: a good token for another audience of ours opens nothing where none is expected."""
    app = app_with(world, settings=on_app_engine(world))

    assert Queue(world, app).deliver(KNOWN).status_code == 403


def test_the_queue_and_the_scheduler_get_in(world: World) -> None:
    """The tokens of our account are taken, so the refusals of the other tests mean something."""
    assert Queue(world, world.app).deliver("/tasks/nothing", task_name="").status_code == LET_IN
    sweep = world.app.test_client().get("/cron/continuations/sweep", headers=world.cron_headers())
    assert sweep.status_code == 200
    unknown = world.app.test_client().get("/cron/nothing", headers=world.cron_headers())
    assert unknown.status_code == 404


@pytest.mark.parametrize("method", [method for method in METHODS if method != "POST"])
def test_a_task_is_posted(world: World, method: str) -> None:
    """S1: the queue itself is told that another method does nothing."""
    answer = world.app.test_client().open(KNOWN, method=method, headers=world.cron_headers())

    assert answer.status_code == 405


def encoded(part: bytes) -> str:
    return base64.urlsafe_b64encode(part).rstrip(b"=").decode()


def token(world: World, *, head: Claims | None = None, **changes: Any) -> str:
    """Return a token like the queue's with some claims changed; None takes a claim out."""
    issuer = world.engine.tokens
    now = int(time.time())
    claims = {
        "iss": issuer.issuer,
        "aud": BASE_URL,
        "email": ACCOUNT,
        "email_verified": True,
        "iat": now,
        "exp": now + 600,
        **changes,
    }
    claims = {name: value for name, value in claims.items() if value is not None}
    header = {"alg": "RS256", "kid": issuer.key_id, "typ": "JWT", **(head or {})}
    header = {name: value for name, value in header.items() if value is not None}
    signed = f"{encoded(json.dumps(header).encode())}.{encoded(json.dumps(claims).encode())}"
    if header["alg"] == "none":
        return f"{signed}."
    if header["alg"] == "HS256":
        pem = issuer.certs()[issuer.key_id].encode()
        return f"{signed}.{encoded(hmac.new(pem, signed.encode(), hashlib.sha256).digest())}"
    return f"{signed}.{encoded(issuer._key.signature(signed.encode()))}"


def status_with(world: World, authorization: str) -> int:
    headers = {"Authorization": authorization}
    status: int = answer_to(world.app, "/tasks/nothing", headers=headers)[0]
    return status


def test_the_forger_of_these_tests_can_make_a_good_token(world: World) -> None:
    """The tokens below are refused for what was changed in them, and for nothing else."""
    assert status_with(world, f"Bearer {token(world)}") == LET_IN
    assert status_with(world, f"bearer {token(world, nbf=int(time.time()))}") == LET_IN


NOW = int(time.time())
CHANGES: dict[str, Claims] = {
    "S4 unsigned": {"head": {"alg": "none"}},
    "S4 HS256 with the public key": {"head": {"alg": "HS256"}},
    "S4 unknown algorithm": {"head": {"alg": "RS999"}},
    "S4 no algorithm in words": {"head": {"alg": 5}},
    "S4 unknown key": {"head": {"kid": "somebody-elses"}},
    "S4 key that is no text": {"head": {"kid": {"a": 1}}},
    "S4 expired": {"iat": NOW - 7200, "exp": NOW - 3600},
    "S4 never expires": {"exp": None},
    "S4 expires in words": {"exp": "tomorrow"},
    "S4 issued tomorrow": {"iat": NOW + 86400, "exp": NOW + 90000},
    "S4 not issued": {"iat": None},
    "S4 not before tomorrow": {"nbf": NOW + 86400},
    "S4 not before, in words": {"nbf": "tomorrow"},
    "S4 never over": {"exp": float("nan")},
    "S4 over at no time": {"exp": float("inf")},
    "S4 over when nobody lives": {"exp": 10**400},
    "S4 issued at no number": {"iat": float("nan")},
    "S4 not before yes": {"nbf": True},
    "S4 other issuer": {"iss": "https://accounts.example.com"},
    "S4 no issuer": {"iss": None},
    "S5 other audience": {"aud": "https://elsewhere.example"},
    "S5 longer audience": {"aud": BASE_URL + "/"},
    "S5 no audience": {"aud": None},
    "S5 empty audience": {"aud": ""},
    "S6 other account": {"email": "somebody@demo-tests.iam.gserviceaccount.com"},
    "S6 account in capitals": {"email": ACCOUNT.upper()},
    "S6 no account": {"email": None},
    "S6 account is a list": {"email": [ACCOUNT]},
    "S6 not verified": {"email_verified": False},
    "S6 nothing said of verified": {"email_verified": None},
    "S6 verified in words": {"email_verified": "true"},
}


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_a_token_that_is_off_in_one_thing_is_refused(world: World, changes: Claims) -> None:
    """S4, S5, S6: one claim, header or signature that is wrong, and nobody gets in."""
    assert status_with(world, f"Bearer {token(world, **changes)}") == 403


def operators_app(world: World) -> Flask:
    """Return an app whose metrics may be read by an account that is named."""
    reading = {"metrics_accounts": (ACCOUNT,), "metrics_audience": BASE_URL}
    return app_with(world, settings=replace(on_app_engine(world), **reading))


@pytest.mark.parametrize("path", ["/metrics", "/control/runs"])
def test_an_account_that_is_named_reads_what_is_for_operators(world: World, path: str) -> None:
    """The tokens of the next test are refused for what was changed in them."""
    headers = {"Authorization": f"Bearer {token(world)}"}

    assert answer_to(operators_app(world), path, "GET", headers=headers)[0] == 200


@pytest.mark.parametrize(("place", "status"), [(on_cloud_run, 200), (on_app_engine, 403)])
def test_our_own_account_reads_what_is_for_operators_where_it_is_the_queues(
    world: World, place: Any, status: int
) -> None:
    """S6: beside those that are named, which it is not."""
    named = {"metrics_accounts": ("monitor@other.example",), "metrics_audience": BASE_URL}
    app = app_with(world, settings=replace(place(world), **named))
    headers = {"Authorization": f"Bearer {token(world)}"}

    assert answer_to(app, "/metrics", "GET", headers=headers)[0] == status


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_a_token_that_is_off_in_one_thing_reads_nothing(world: World, changes: Claims) -> None:
    """S4, S5, S6: what is for operators has a comparison of its own, which is as strict."""
    headers = {"Authorization": f"Bearer {token(world, **changes)}"}

    assert answer_to(operators_app(world), "/metrics", "GET", headers=headers)[0] == 403


def test_a_token_changed_after_it_was_signed_is_refused(world: World) -> None:
    """S4: claims and signature belong together."""
    header, claims, signature = token(world).split(".")
    _, other, _ = token(world, email="somebody@else.example").split(".")
    flipped = signature[:20] + ("A" if signature[20] != "A" else "B") + signature[21:]

    assert status_with(world, f"Bearer {header}.{other}.{signature}") == 403
    assert status_with(world, f"Bearer {header}.{claims}.{flipped}") == 403
    assert status_with(world, f"Bearer {header}.{claims}.") == 403


def test_a_token_whose_signature_cloud_run_has_removed_is_refused_with_the_reason(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """S4: its claims are as anybody could write them, and the log says whose deed it was."""
    header, claims, _ = token(world).split(".")

    assert status_with(world, f"Bearer {header}.{claims}.SIGNATURE_REMOVED_BY_GOOGLE") == 403
    assert "Cloud Run has removed the signature" in caplog.text


GARBAGE = {
    "nothing": "",
    "no token": "Bearer ",
    "basic": "Basic dXNlcjpwYXNz",
    "no scheme": "a.b.c",
    "dots": "Bearer ..",
    "not base64": "Bearer !.!.!",
    "not ASCII": "Bearer é.é.é",
    "lists for objects": f"Bearer {encoded(b'[]')}.{encoded(b'[]')}.AA",
    "nested deep": f"Bearer {encoded(b'[' * 5_000)}.{encoded(b'{}')}.AA",
    "nested deep inside": f"Bearer {encoded(b'{}')}.{encoded(b'[' * 5_000)}.AA",
    "5,000 digits": f"Bearer {encoded(b'9' * 5000)}.{encoded(b'{}')}.AA",
    "a megabyte": "Bearer " + "A" * 2**20,
    "a thousand segments": "Bearer " + ".".join(["AA"] * 1000),
    "two tokens": "Bearer a.b.c, Bearer d.e.f",
}


@pytest.mark.parametrize("authorization", GARBAGE.values(), ids=GARBAGE)
def test_garbage_is_refused_like_everything_else(world: World, authorization: str) -> None:
    """S4: what is no token at all gets 403 too, or 431 unread, and never an error of ours."""
    is_too_long = len(authorization) > MAX_HEADER_CHARS
    assert status_with(world, authorization) == (431 if is_too_long else 403)


def test_a_refusal_writes_one_line_that_a_stranger_cannot_shape(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """S1: one line in the log, short, without control characters, and without the token."""
    secret = "A" * 5000
    headers = {"Authorization": f"Bearer {secret}"}

    world.app.test_client().post("/tasks/x%0dERROR%1b[2Jforged" + "y" * 500, headers=headers)

    assert len(caplog.messages) == 1
    assert caplog.messages[0].isprintable()
    assert len(caplog.messages[0]) < 400
    assert secret not in caplog.text
    assert "AAAA" not in caplog.text
