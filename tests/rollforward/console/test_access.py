"""Access: nobody learns that there is a console, and READ changes nothing on any route."""

from __future__ import annotations

import datetime
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from flask import Flask, Request
from werkzeug.exceptions import HTTPException

from rollforward import flask as endpoints
from rollforward.console import Console, Role, local
from rollforward.flows.rows.entities import FlowRun, run_key
from rollforward.flows.rows.records import StepRecord
from rollforward.lanes.rows.entities import LaneState, LaneTask
from rollforward.operations.entities import AuditEntry
from rollforward.operations.waiting import list_waiting, queue_states
from rollforward.pull_queues.entities import PullItem
from rollforward.registry import Registry
from rollforward.runtime.messages import Message
from rollforward.tasks.dead_task_entities import DeadTask
from tests.infra.world import Services, World
from tests.rollforward.console.conftest import API, PATH, Desk, access, desk_with
from tests.rollforward.console.test_letters import kill_items
from tests.rollforward.console.test_pages import Browser
from tests.rollforward.flows.shop import mail, order
from tests.rollforward.lanes.office import IN_ORDER, send, write
from tests.rollforward.pull_queues.harness import WORK

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
# A router would redirect to the address without, or with, a slash.
NEAR = (
    "/rollforward",
    "/rollforward/",
    "/rollforward//",
    API,
    f"{API}/",
    f"{API}//runs",
    f"{API}/runs/",
    f"{API}//",
)
FLOW = "test-orders|A1"
CHANGES = ("POST", "PUT", "PATCH", "DELETE")


def addresses(app: Flask, dead_id: str) -> Iterator[str]:
    """Yield an address for each route of the console."""
    values = {
        "dead_id": dead_id,
        "verb": "replay",
        "pattern": "continuations",
        "run_id": "run",
        "rest": "anything",
        "part": "work",
        "letter_id": "letter",
        "ping_id": "ping",
        "key": "ada",
    }
    targets = [f"{dead_id}:{verb}" for verb in ("replay", "delete")]
    targets += [f"{FLOW}:{verb}" for verb in ("retry", "cancel")]
    targets += [f"default:{verb}" for verb in ("pause", "resume", "purge", "rate")]
    targets += [f"ada:{verb}" for verb in ("pause", "resume", "drain")]
    for rule in app.url_map.iter_rules():
        if rule.rule.startswith("/rollforward"):
            values["name"] = IN_ORDER.name if "/lanes/" in rule.rule else "console.css"
            values["pattern"] = "flows" if "/runs/" in rule.rule else "continuations"
            for target in targets if "<target>" in rule.rule.replace("path:", "") else targets[:1]:
                yield rule.build({**values, "target": target})[1]  # type: ignore[index]


def fail_flow(desk: Desk) -> None:
    """Write a flow that has failed at its second step."""
    now_utc = desk.world.clock.now().replace(tzinfo=None)
    done, failed = StepRecord("commit", "done", value="1"), StepRecord("outside", "failed")
    with desk.world.context():
        FlowRun(
            key=run_key(FLOW),
            state="failed",
            failed_step="charge",
            failure="StepFailedError: x",
            args='{"item": "boots"}',
            steps={"reserve": done.body, "charge": failed.body},
            started_by="test",
            created=now_utc,
            failed=now_utc,
        ).put()


def stored(desk: Desk) -> list[Any]:
    """Return the rows that a change would touch, the queues and what waits in them."""
    with desk.world.context():
        rows = [*DeadTask.query().fetch(), *AuditEntry.query().fetch(), *PullItem.query().fetch()]
        rows += [*FlowRun.query().fetch(), *LaneTask.query().fetch(), *LaneState.query().fetch()]
        queues = sorted(queue_states(desk.world.clients), key=lambda queue: queue.name)
        waiting = [task.name for task in list_waiting(desk.world.clients, "default").tasks]
    return [*sorted(str(row.to_dict()) for row in rows), *queues, waiting]


def audited(desk: Desk) -> int:
    with desk.world.context():
        return len(AuditEntry.query().fetch(keys_only=True))


def test_a_caller_without_a_role_gets_what_an_unknown_address_gets(desk: Desk) -> None:
    """By every method on every route: the same status, body and headers."""
    dead_id = desk.give_up("x")

    for method in METHODS:
        unknown = desk.ask("/nothing/here", method=method, role=None)
        for path in {*addresses(desk.app, dead_id), *NEAR}:
            answer = desk.ask(path, method=method, role=None)
            assert (path, answer.status_code, answer.data) == (
                path,
                unknown.status_code,
                unknown.data,
            )
            assert dict(answer.headers) == dict(unknown.headers), path


@pytest.mark.parametrize("services", ["firestore"], indirect=True)
@pytest.mark.parametrize("error_class", [None, HTTPException])
def test_an_app_that_guards_its_pages_itself_shows_no_console_either(
    services: Services, error_class: type[HTTPException] | None
) -> None:
    """Its own page for what does not exist, and none of the library's words and headers."""
    desk = desk_with(services)
    world, app = desk.world, Flask("old shop")
    if error_class is not None:
        app.register_error_handler(error_class, lambda error: (f"sorry: {error.code}", error.code))
    console = Console(access=access)
    endpoints.mount(
        *(app, world.settings, world.clients, world.registry), console=console, guards_pages=False
    )
    desk.app = app

    for method in METHODS:
        unknown = desk.ask("/nothing/here", method=method, role=None)
        for path in {*addresses(app, "x"), *NEAR, f"/rollforward/{'x' * 5_000}"}:
            answer = desk.ask(path, method=method, role=None)
            assert (answer.status_code, answer.data) == (unknown.status_code, unknown.data), path
            assert dict(answer.headers) == dict(unknown.headers), path
    assert desk.ask("/rollforward/").status_code == 200


def busy_desk(services: Services) -> tuple[Desk, str, str]:
    """Return a desk with something to change of each kind; ids of a dead task and a letter."""
    desk = desk_with(services, WORK, order, mail, IN_ORDER, write)
    fail_flow(desk)
    with desk.world.context():
        IN_ORDER("ada").pause(desk.world.clients)
        send(desk.world.clients, IN_ORDER, "ada", 0)
    dead_id = desk.give_up("x")
    [letter_id] = kill_items(desk, "poison")
    later = desk.world.clock.now() + datetime.timedelta(hours=1)
    with desk.world.context():
        desk.world.clients.tasks.create(Message(PATH, "default", b'{"tag": "later"}', "l", later))
    return desk, dead_id, letter_id


def forms_of(dead_id: str, letter_id: str) -> Sequence[dict[str, str]]:
    """Return what the forms of the pages send."""
    return (
        {"queue": "default", "verb": "pause"},
        {"queue": "default", "typed": "default"},
        {"lane": IN_ORDER.name, "key": "ada", "verb": "resume"},
        {"lane": IN_ORDER.name, "key": "ada", "verb": "drain", "typed": "ada"},
        {"pattern": "pull-queues", "part": "work", "id": letter_id, "verb": "delete"},
        {"pattern": "flows", "id": FLOW, "verb": "retry", "step": "reserve"},
        {"path": PATH, "value": "x", "key": "once"},
        {"id": dead_id, "value": "edited"},
        {"target": f"{dead_id}:replay"},
        {"id": dead_id, "verb": "replay"},
    )


def test_a_reader_changes_nothing_by_any_method_on_any_route(services: Services) -> None:
    """Nor leaves an entry in the audit trail; an operator does change something there."""
    desk, dead_id, letter_id = busy_desk(services)
    before = stored(desk)
    paths = sorted({*addresses(desk.app, dead_id)})
    paths += [f"{API}/dead-letters/pull-queues/work/{letter_id}:delete"]
    forms = forms_of(dead_id, letter_id)
    contents: tuple[Any, ...] = ({}, {"filter": {}}, {"max_per_s": 1}, {"from_step": "reserve"})
    bodies = ({"json": content} for content in contents)
    options_of: tuple[dict[str, Any], ...] = (*bodies, *({"data": form} for form in forms))

    for path in paths:
        for method in CHANGES:
            for options in options_of if method == "POST" else options_of[:1]:
                answer = desk.ask(path, method=method, role="read", **options)
                assert answer.status_code in (403, 404, 405, 415), (method, path)
        desk.ask(path, role="read")

    assert stored(desk) == before
    assert desk.done == {}
    assert len(paths) > 12
    assert desk.change("/queues/default:purge").status_code == 200
    assert desk.change(f"/dead-letters/pull-queues/work/{letter_id}:delete").status_code == 200
    assert stored(desk) != before
    drained = desk.change(f"/lanes/{IN_ORDER.name}/ada:drain")
    assert (drained.status_code, drained.json["deleted"]) == (200, 1)  # type: ignore[index]
    retry = f"/runs/flows/{FLOW}:retry"
    assert desk.change(retry, {"from_step": "reserve"}).status_code == 200


def test_a_reader_with_a_token_of_an_operator_changes_nothing_by_any_form(
    services: Services,
) -> None:
    """A page is left open by somebody who loses the role: the role refuses, not the token."""
    desk, dead_id, letter_id = busy_desk(services)
    browser, before = Browser(desk), stored(desk)
    [token, *_] = re.findall(r'name="csrf_token" value="([^"]+)"', browser.read("/dead"))
    paths = {
        rule.build({"verb": "replay"})[1]  # type: ignore[index]
        for rule in desk.app.url_map.iter_rules()
        if rule.rule.startswith("/rollforward")
        and "api" not in rule.rule
        and "POST" in (rule.methods or ())
        and rule.arguments <= {"verb"}
    }

    def status(role: str, path: str, form: dict[str, str]) -> int:
        data, headers = {"csrf_token": token, **form}, {"X-Role": role}
        return browser.client.post(path, data=data, headers=headers).status_code

    assert len(paths) > 10
    sent = list(itertools.product(sorted(paths), forms_of(dead_id, letter_id)))
    assert {status("read", path, form) for path, form in sent} == {403}
    assert stored(desk) == before
    # The same forms, by an operator: other reasons to refuse them, or a change that is on record.
    changed = set()
    for path, form in sent:
        entries = audited(desk)
        answer = status("operate", path, form)
        assert answer != 403, (path, form)
        if answer == 303:
            changed.add(path)
            assert audited(desk) == entries + 1, (path, form)
    assert len(changed) >= 5, changed


def test_a_reader_reads(desk: Desk) -> None:
    """All lists."""
    desk.give_up("x")

    for path in ("/dead-tasks", "/runs", "/audit", "/queues", "/outbox", "/tasks"):
        assert desk.ask(API + path, role="read").status_code == 200, path


def test_a_change_by_the_api_takes_no_cookies_and_json_only(desk: Desk) -> None:
    """A page of another site can send neither."""
    dead_id = desk.give_up("x")
    path = f"{API}/dead-tasks/{dead_id}:replay"

    with_cookie = desk.ask(path, method="POST", json={}, headers={"Cookie": "session=x"})
    as_form = desk.ask(path, method="POST", data={"x": "y"})
    elsewhere = desk.ask(path, method="POST", json={}, headers={"Sec-Fetch-Site": "cross-site"})

    assert (with_cookie.status_code, as_form.status_code, elsewhere.status_code) == (403, 415, 403)
    assert json.loads(with_cookie.data)["status"] == 403
    desk.world.settle()
    assert desk.done == {}


def test_a_hook_that_raises_lets_nobody_in(services: Services) -> None:
    """Its bug is a 500, and no console."""

    def access(request: Request) -> Role:
        raise ZeroDivisionError

    app = app_with(services, Console(access=access))

    assert app.test_client().get(f"{API}/dead-tasks").status_code == 500


def test_the_local_hook_lets_in_on_a_laptop_only(services: Services) -> None:
    """Deployed there is no console until the app mounts one."""
    app = app_with(services, Console(access=local))
    asked = app.test_client().get(f"{API}/dead-tasks")

    app.extensions["wiring"].settings.__dict__["platform"] = "cloudrun"

    assert asked.status_code == 200
    assert app.test_client().get(f"{API}/dead-tasks").status_code == 404


@pytest.mark.parametrize("prefix", ["", "/", "rollforward", "/a b", "/x/", "/<x>"])
def test_a_prefix_that_is_none_is_refused(prefix: str) -> None:
    """The error says how one looks."""
    with pytest.raises(ValueError, match="prefix must be like '/rollforward'"):
        Console(access=local, prefix=prefix)


def app_with(services: Services, console: Console) -> Flask:
    world = World(services)
    app = Flask("shop")
    endpoints.mount(app, world.settings, world.clients, Registry(), console=console)
    return app
