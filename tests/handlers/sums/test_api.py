"""The API of sums: its promises, to the status, and its refusals."""

from __future__ import annotations

import io
import json
import re
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
from google.api_core import exceptions as rpc_errors
from werkzeug.test import TestResponse

from handlers.sums import api as sums_api
from handlers.sums.openapi import DESCRIPTION
from pipelines.sums import sums
from rollforward.fork_join import queue
from rollforward.fork_join.entities import WorkOutcome
from rollforward.fork_join.queue import ItemStatus, OutcomeUnknownError
from rollforward.testing.world import in_threads
from tests.handlers.conftest import Browser, app_with
from tests.infra.world import World

pytestmark = pytest.mark.parametrize("services", ["datastore"], indirect=True)

PATH = "/api/v1/sums/visitors"
JSON = {"Content-Type": "application/json"}


@pytest.fixture
def api(world: World) -> Any:
    """A client without cookies, and a sum."""
    with world.context():
        sums.create("visitors")
    return world.app.test_client(use_cookies=False)


def add(api: Any, amount: Any = 1, key: str | None = None, query: str = "") -> TestResponse:
    headers = {"Idempotency-Key": key} if key is not None else {}
    response: TestResponse = api.post(PATH + query, json={"amount": amount}, headers=headers)
    return response


def check_problem(response: TestResponse, status: int) -> str:
    """Check that a response is problem details of a status; return its detail."""
    assert response.status_code == status, response.text
    assert response.content_type == "application/problem+json"
    details = json.loads(response.text)
    assert details["status"] == status
    assert details["title"]
    assert not re.search(r"Traceback|\.py\b", details["detail"])
    assert response.headers["Cache-Control"] == "no-store"
    return str(details["detail"])


# Adding


def test_an_addition_is_accepted_and_then_in_the_sum(world: World, api: Any) -> None:
    """202 at once; the sum reports pending items first, and then the total."""
    response = add(api, 5)
    assert response.status_code == 202
    assert response.json is not None
    assert response.json | {"ref": ""} == {
        "sum": "visitors",
        "accepted": True,
        "repeat": False,
        "ref": "",
    }
    early = {"sum": "visitors", "total": 0, "items": 0, "batches": 0, "waiting": 1}
    assert api.get(PATH).json == early
    world.settle()

    late = {"sum": "visitors", "total": 5, "items": 1, "batches": 1, "waiting": 0}
    assert api.get(PATH).json == late


def test_the_same_key_counts_once(world: World, api: Any) -> None:
    """Before the fold and after; any printable key; no key counts each time."""
    for key in ("k", "x" * 200, "7 / ~ !"):
        assert [add(api, 5, key).json["repeat"] for _ in range(2)] == [False, True]  # type: ignore[index]
    world.settle()
    assert add(api, 5, "k").json["repeat"] is True  # type: ignore[index]
    add(api, 5)
    add(api, 5)
    world.settle()

    assert api.get(PATH).json["total"] == 25


def test_the_same_key_with_another_body_is_refused(world: World, api: Any) -> None:
    """422, and nothing is added."""
    add(api, 5, "k")
    assert "another body" in check_problem(add(api, 6, "k"), 422)
    world.settle()

    assert api.get(PATH).json["total"] == 5
    check_problem(add(api, 6, "k"), 422)


def test_keys_are_of_a_sum_and_of_the_api(world: World, api: Any) -> None:
    """The same key for another sum is another request, and no form's or load's id can be taken."""
    with world.context():
        sums.create("other")
        sums.add_once(world.clients, "visitors", "a" * 32, 1)
    add(api, 1, "k")
    other = api.post("/api/v1/sums/other", json={"amount": 1}, headers={"Idempotency-Key": "k"})
    same_as_form = add(api, 1, "a" * 32)
    world.settle()

    assert other.json["repeat"] is False
    assert same_as_form.json["repeat"] is False  # type: ignore[index]
    assert api.get(PATH).json["total"] == 3


def test_who_waits_gets_the_total(world: World, api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """200 with the sum after this very addition; the queue works while the caller waits."""
    monkeypatch.setattr(queue, "LOOK_AGAIN_S", 0.2)
    sound: Callable[[Any, Any, float], Any] = sums.add_up.wait

    def wait(clients: Any, accepted: Any, timeout_s: float) -> Any:
        in_threads(world.settle)
        return sound(clients, accepted, timeout_s)

    monkeypatch.setattr(sums.add_up, "wait", wait)
    first, second = add(api, 5, "k", "?wait_ms=1000"), add(api, 7, None, "?wait_ms=1000")
    repeated = add(api, 5, "k", "?wait_ms=1000")

    assert [response.status_code for response in (first, second, repeated)] == [200] * 3
    totals = [response.json["total"] for response in (first, second, repeated)]  # type: ignore[index]
    assert totals == [5, 12, 5]
    assert repeated.json["repeat"] is True  # type: ignore[index]


@pytest.mark.parametrize("query", ["", "?wait_ms=0"])
def test_no_result_is_kept_for_whoever_does_not_wait(world: World, api: Any, query: str) -> None:
    """202 at once, and the fold writes nothing but the sum."""
    assert add(api, 5, query=query).status_code == 202
    world.settle()

    with world.context():
        assert WorkOutcome.query().fetch() == []


def test_who_waits_too_short_is_told_that_it_is_safe(world: World, api: Any) -> None:
    """202 without a total; nor does 0 wait."""
    for query in ("?wait_ms=50", "?wait_ms=0"):
        response = add(api, 5, None, query)
        assert response.status_code == 202
        assert "total" not in (response.json or {})


def test_whoever_waits_beside_too_many_is_not_kept(world: World, api: Any) -> None:
    """A few waiting callers never hold all threads of a process."""
    world.clients.process_state.get_or_create("sums:waiting", lambda: threading.Semaphore(0))
    started_s = world.clock.time_s

    assert add(api, 5, None, "?wait_ms=5000").status_code == 202
    assert world.clock.time_s == started_s


def test_a_wait_that_fails_gives_its_place_back(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As often as there are places; the next caller is kept, and gets the total."""

    def away(*args: Any) -> Any:
        raise rpc_errors.ServiceUnavailable("made by a test")

    monkeypatch.setattr(sums, "outcome", away)
    for _ in range(sums_api.MAX_WAITING):
        check_problem(add(api, 5, None, "?wait_ms=10"), 503)
    monkeypatch.setattr(sums, "outcome", lambda *args: (ItemStatus(True, 5), 5))

    response = add(api, 5, None, "?wait_ms=10")

    assert (response.status_code, (response.json or {}).get("total")) == (200, 5)


def test_a_repeat_of_one_that_did_not_wait_gets_the_total_of_now(world: World, api: Any) -> None:
    """Its own was not kept."""
    add(api, 5, "k")
    add(api, 7)
    world.settle()

    response = add(api, 5, "k", "?wait_ms=100")

    assert (response.status_code, response.json["total"]) == (200, 12)  # type: ignore[index]


def test_a_sum_that_is_known_is_not_looked_up(world: World, api: Any) -> None:
    """An insert makes one call of Datastore: its commit."""
    add(api)
    cost_before = world.clients.meter.total()
    add(api)

    spent = world.clients.meter.total() - cost_before
    assert (spent.reads, spent.writes, spent.tasks) == (0, 1, 0)


# What is refused

BAD_BODIES: dict[str, bytes] = {
    "nothing": b"",
    "no JSON": b"amount=5",
    "cut off": b'{"amount": 5',
    "a list": b"[5]",
    "a number": b"5",
    "null": b"null",
    "no amount": b"{}",
    "more than it": b'{"amount": 5, "sum": "other"}',
    "a bool": b'{"amount": true}',
    "a float": b'{"amount": 5.0}',
    "an exponent": b'{"amount": 5e0}',
    "a text": b'{"amount": "5"}',
    "no value": b'{"amount": null}',
    "an object": b'{"amount": {"amount": 5}}',
    "NaN": b'{"amount": NaN}',
    "infinite": b'{"amount": -Infinity}',
    "too much": b'{"amount": 1000000001}',
    "too little": b'{"amount": -1000000001}',
    "very much": b'{"amount": ' + b"9" * 4000 + b"}",
    "very much, said shortly": b'{"amount": 1e999}',
    "twice": b'{"amount": 5, "amount": 6}',
    "deep": b"[" * 4000,
    "not UTF-8": b'{"amount": 5, "\xff": 1}',
    "UTF-16": '{"amount": 5}'.encode("utf-16"),
    "with a mark": b'\xef\xbb\xbf{"amount": 5}',
    "wide digits": '{"amount": ５}'.encode(),
    "a lone surrogate": b'{"\\ud800": 5}',
}


@pytest.mark.parametrize("body", BAD_BODIES.values(), ids=BAD_BODIES)
def test_a_body_that_is_no_addition_is_400(
    api: Any, snapshot: Callable[[], Any], body: bytes
) -> None:
    """S23: a sentence, never a 5xx, and nothing is stored."""
    stored = snapshot()

    check_problem(api.post(PATH, data=body, headers=JSON), 400)

    assert snapshot() == stored


def test_a_body_that_is_too_large_is_413(api: Any, snapshot: Callable[[], Any]) -> None:
    """S23: with a length or without."""
    stored = snapshot()
    for size in (4097, 10**6, 20 * 2**20):
        check_problem(api.post(PATH, data=b" " * size, headers=JSON), 413)
        body = io.BytesIO(b'{"amount": 1}'.ljust(size))
        chunked = {"wsgi.input_terminated": True, "HTTP_TRANSFER_ENCODING": "chunked"}
        response = api.post(PATH, input_stream=body, headers=JSON, environ_overrides=chunked)
        check_problem(response, 413)
    assert snapshot() == stored

    assert api.post(PATH, data=b'{"amount": 1}'.ljust(4096), headers=JSON).status_code == 202
    assert snapshot() != stored


@pytest.mark.parametrize(
    "kind",
    [
        "",
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/jsonx",
        "text/json",
        "application/problem+json",
    ],
)
def test_what_is_not_declared_as_json_is_415(
    api: Any, snapshot: Callable[[], Any], kind: str
) -> None:
    """S19: what a page elsewhere can make a browser send is never taken."""
    stored = snapshot()

    check_problem(api.post(PATH, data=b'{"amount": 5}', headers={"Content-Type": kind}), 415)
    compressed = {**JSON, "Content-Encoding": "gzip"}
    check_problem(api.post(PATH, data=b'{"amount": 5}', headers=compressed), 415)

    assert snapshot() == stored


def test_json_from_another_site_is_403(api: Any, snapshot: Callable[[], Any]) -> None:
    """S19: a browser names the site, and gets no CORS header."""
    stored = snapshot()
    for site in ("cross-site", "same-site"):
        response = api.post(PATH, json={"amount": 5}, headers={"Sec-Fetch-Site": site})
        check_problem(response, 403)
    asked = api.options(PATH, headers={"Origin": "https://e.example"})

    assert snapshot() == stored
    assert not [name for name in asked.headers.keys() if name.startswith("Access-Control")]  # noqa: SIM118


@pytest.mark.parametrize("name", ["x", "Visitors", "é", "a" * 3_000, "..%2f..", "visitors%0a"])
def test_a_sum_that_is_not_there_is_404(api: Any, snapshot: Callable[[], Any], name: str) -> None:
    """S28: asking makes none; an unknown address of the API does the same."""
    stored = snapshot()

    check_problem(api.get(f"/api/v1/sums/{name}"), 404)
    check_problem(api.post(f"/api/v1/sums/{name}", json={"amount": 5}), 404)
    check_problem(api.get("/api/v1/nothing"), 404)
    check_problem(api.delete(PATH), 405)

    assert snapshot() == stored


@pytest.mark.parametrize("key", ["", " ", "x" * 201, "é", "a\tb", "\x7f"])
def test_a_key_that_is_no_key_is_400(api: Any, snapshot: Callable[[], Any], key: str) -> None:
    """1 to 200 printable characters."""
    stored = snapshot()

    check_problem(add(api, 5, key), 400)

    assert snapshot() == stored


@pytest.mark.parametrize("wait", ["", "x", "-1", "5001", "1.5", "1e3", "٣", "99999", "1%00"])
def test_a_wait_that_is_no_wait_is_400(api: Any, snapshot: Callable[[], Any], wait: str) -> None:
    """0 to 5000 milliseconds."""
    stored = snapshot()

    check_problem(add(api, 5, None, f"?wait_ms={wait}"), 400)

    assert snapshot() == stored


@pytest.mark.parametrize(("key", "message"), [("k", "counts once"), (None, "may count or not")])
def test_what_datastore_did_not_take_is_503(
    api: Any, monkeypatch: pytest.MonkeyPatch, key: str | None, message: str
) -> None:
    """With Retry-After, and the truth about sending it again."""

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OutcomeUnknownError("it did not answer")

    monkeypatch.setattr(sums.add_up, "insert", refuse)

    response = add(api, 5, key)

    assert message in check_problem(response, 503)
    assert int(response.headers["Retry-After"]) >= 1


def test_a_datastore_that_is_away_is_503(world: World, api: Any) -> None:
    """Every read and insert says so, in the same form."""
    # Not for longer: what the addition left in memory is tried again until it is stored.
    with mock.patch.object(world.clients.datastore, "stub", _Away()):
        for response in (api.get(PATH), add(api)):
            check_problem(response, 503)
            assert int(response.headers["Retry-After"]) >= 1


class _Away:
    def __getattr__(self, name: str) -> Any:
        raise rpc_errors.ServiceUnavailable("away")


# The description


# Mounted for any app that has such parts, and described in their howtos.
OF_PATTERNS = ("/api/v1/streams/", "/api/v1/pull/")


def test_the_description_names_every_route_and_every_status(
    world: World, api: Any, browser: Browser
) -> None:
    """S29: each route of the API is described, and the description describes no other."""
    assert api.get("/api/v1/openapi.json").json == DESCRIPTION
    described = {
        (path, method.upper())
        for path, item in DESCRIPTION["paths"].items()
        for method in item
        if method != "parameters"
    }
    routes = {
        (re.sub(r"<(\w+)>", r"{\1}", rule.rule), method)
        for rule in world.app.url_map.iter_rules()
        if rule.rule.startswith("/api/") and not rule.rule.startswith(OF_PATTERNS)
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    }
    assert described == routes


def test_every_status_that_is_described_is_answered(
    world: World, api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S29: each response has the described shape."""
    add(api, 1, "k")
    world.settle()
    seen = {
        ("post", "200"): add(api, 1, "k", "?wait_ms=10"),
        ("post", "202"): add(api),
        ("post", "400"): add(api, "x"),
        ("post", "404"): api.post("/api/v1/sums/nobody", json={"amount": 1}),
        ("post", "413"): api.post(PATH, data=b" " * 5000, headers=JSON),
        ("post", "415"): api.post(PATH, data=b"{}"),
        ("post", "422"): add(api, 2, "k"),
        ("get", "200"): api.get(PATH),
        ("get", "404"): api.get("/api/v1/sums/nobody"),
    }
    strict = app_with(world, settings=replace(world.settings, requests_per_minute=1)).test_client()
    strict.get(PATH)
    seen |= {("post", "429"): add(strict), ("get", "429"): strict.get(PATH)}
    with mock.patch.object(world.clients.datastore, "stub", _Away()):
        seen |= {("post", "503"): add(api), ("get", "503"): api.get(PATH)}
    operations = DESCRIPTION["paths"]["/api/v1/sums/{name}"]

    described = {
        (method, status) for method in ("get", "post") for status in operations[method]["responses"]
    }

    assert described == set(seen)
    for (method, status), response in seen.items():
        assert response.status_code == int(status)
        ((kind, content),) = operations[method]["responses"][status]["content"].items()
        assert response.content_type == kind
        schema = DESCRIPTION["components"]["schemas"][content["schema"]["$ref"].split("/")[-1]]
        assert (
            set(json.loads(response.text)) == set(schema["properties"]) == set(schema["required"])
        )
