"""An app with one task, which does what the test says."""

from __future__ import annotations

import pytest
from flask import Flask

from rollforward.tasks.declaration import Task
from tests.handlers.conftest import Queue, app_with, browser, snapshot, world
from tests.infra.world import World
from tests.rollforward.flask.acts import PATH, Act, Work

# The demo app is the app that these endpoints are tried in.
__all__ = ["app", "browser", "queue", "snapshot", "work", "world"]


@pytest.fixture
def work() -> Work:
    return Work()


@pytest.fixture
def app(world: World, work: Work) -> Flask:
    return app_with(world, Task(PATH, "default", Act, work, max_attempts=3))


@pytest.fixture
def queue(world: World, app: Flask) -> Queue:
    return Queue(world, app)
