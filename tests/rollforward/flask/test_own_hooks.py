"""Hooks of an app around deliveries and sweeps: they may look, and are named if they answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from flask import Flask, Response, abort, redirect, request

from rollforward import flask as endpoints
from rollforward.flask.guards import own_hooks
from rollforward.registry import Registry
from rollforward.tasks import Task
from tests.handlers.conftest import Queue
from tests.infra.world import World
from tests.rollforward.flask.acts import PATH, Act, Work, one_emulator

pytestmark = [one_emulator, pytest.mark.fast]

Hook = Callable[[], Any]


def app_with_hook(
    world: World, work: Work, hook: Hook, after: Any = lambda response: response
) -> Flask:
    """Return an app that has hooks of its own from before."""
    app = Flask("old_shop")
    app.before_request(hook)
    app.after_request(after)
    registry = Registry(Task(PATH, "default", Act, work))
    endpoints.mount(app, world.settings, world.clients, registry, guards_pages=False)
    return app


@pytest.mark.parametrize("read", [lambda: request.get_data(), lambda: request.get_json(force=True)])
def test_a_hook_that_reads_the_body_leaves_it_to_the_task(
    world: World, work: Work, read: Hook
) -> None:
    """H1: a log of bodies made each task one without arguments, or with its defaults."""

    def log_body() -> None:
        read()

    answer = Queue(world, app_with_hook(world, work, log_body)).deliver(PATH, {"word": "x"})

    assert answer.status_code == 204
    assert work.done == [Act("x")]


@pytest.mark.parametrize(
    ("answer", "status", "level"),
    [
        (lambda: redirect("/login"), 422, "ERROR"),
        (lambda: "Log in, please.", 422, "ERROR"),
        (lambda: abort(401), 401, "WARNING"),
    ],
)
def test_a_hook_that_answers_for_an_endpoint_ends_no_task_and_is_named(
    world: World,
    work: Work,
    caplog: pytest.LogCaptureFixture,
    answer: Hook,
    status: int,
    level: str,
) -> None:
    """H1: the queue takes 200 for the end of a task; of a login nobody would have learned."""
    app = app_with_hook(world, work, answer)

    answers = [
        Queue(world, app).deliver(PATH),
        app.test_client().get("/cron/sweep", headers=world.cron_headers()),
    ]

    assert [refused.status_code for refused in answers] == [status, status]
    assert work.done == []
    named = [record for record in caplog.records if record.name == own_hooks.__name__]
    assert [record.levelname for record in named] == [level, level]
    assert f"POST '{PATH}' was answered by a hook" in named[0].getMessage()


def test_a_hook_that_hides_a_failure_ends_no_task(
    world: World, work: Work, caplog: pytest.LogCaptureFixture
) -> None:
    """H1: an API that answers 200 always, with the error in its body: each failed task was lost."""

    def hide(response: Response) -> Response:
        response.status_code = 200
        return response

    app = app_with_hook(world, work, lambda: None, hide)
    statuses = []
    for work.raises in (KeyError("bug"), None):
        statuses.append(Queue(world, app).deliver(PATH).status_code)

    assert statuses == [422, 200]
    assert [record.levelname for record in caplog.records if record.name == own_hooks.__name__] == [
        "ERROR"
    ]


def test_a_hook_that_lets_the_library_pass_is_not_named(
    world: World, work: Work, caplog: pytest.LogCaptureFixture
) -> None:
    """As docs/howto/install.md has it; nor is a stranger's delivery, which our endpoint refuses."""

    def login() -> Any:
        is_ours = (request.blueprint or "").startswith("rollforward_")
        return None if is_ours else redirect("/login")

    app = app_with_hook(world, work, login)

    assert Queue(world, app).deliver(PATH, {"word": "x"}).status_code == 204
    assert app.test_client().post(PATH).status_code == 403
    assert app.test_client().get("/").status_code == 302
    assert [record for record in caplog.records if record.name == own_hooks.__name__] == []
