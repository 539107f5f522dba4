"""Hooks of an app around deliveries of tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from flask import Flask, request

from rollforward import flask as endpoints
from rollforward.registry import Registry
from rollforward.tasks import Task
from tests.handlers.conftest import Queue
from tests.infra.world import World
from tests.rollforward.flask.acts import PATH, Act, Work, one_emulator

pytestmark = [one_emulator, pytest.mark.fast]

Hook = Callable[[], Any]


def app_with_hook(world: World, work: Work, hook: Hook) -> Flask:
    """Return an app that has a hook of its own from before."""
    app = Flask("old_shop")
    app.before_request(hook)
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
