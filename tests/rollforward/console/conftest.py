"""An app that mounts the console for callers whose roles a header names."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from flask import Flask, Request
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from rollforward import flask as endpoints
from rollforward.console import Caller, Console, Role
from rollforward.registry import Registry
from rollforward.runtime import Clients
from rollforward.tasks import Task
from rollforward.tasks.attempts import current_task
from rollforward.tasks.dead_tasks import dead_letter
from tests.infra.world import Services, World

PATH = "/tasks/tests/act"
API = "/rollforward/api/v1"


@dataclass(frozen=True)
class Act:
    """Arguments of the task that was given up."""

    tag: str


def access(request: Request) -> Caller | None:
    """Give the role that the header names, as a front end that authenticates would."""
    role = request.headers.get("X-Role")
    return None if role is None else Caller(Role(role), f"{role}@example.com")


@dataclass
class Desk:
    """The console of an app, and the work that its tasks have done."""

    world: World
    done: Counter[str]
    app: Flask
    # The names of the tasks that did it, by tag: a task that is delivered again keeps its name.
    names: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def ask(
        self, path: str, *, method: str = "GET", role: str | None = "operate", **options: Any
    ) -> TestResponse:
        """Send a request to the API, as a program without cookies."""
        headers = {**({} if role is None else {"X-Role": role}), **options.pop("headers", {})}
        client: FlaskClient = self.app.test_client(use_cookies=False)
        return client.open(path, method=method, headers=headers, **options)

    def change(self, path: str, body: Any = None, **options: Any) -> TestResponse:
        """Send a change to the API."""
        return self.ask(API + path, method="POST", json={} if body is None else body, **options)

    def give_up(self, tag: str, **changes: Any) -> str:
        """Keep a task as a dead task; return its id."""
        with self.world.context():
            return self.keep(tag, **changes)

    def keep(self, tag: str, **changes: Any) -> str:
        """Keep a task as a dead task, in an open context; return its id."""
        fields = {
            "path": PATH,
            "queue": "default",
            "task_name": f"t-{tag}",
            "body": b'{"tag": "%s"}' % tag.encode(),
            "reason": "ValueError: no such party",
            **changes,
        }
        return dead_letter(self.world.clients, **fields)


def desk_with(services: Services, *parts: object) -> Desk:
    """Return a desk whose app knows one task, and some other parts."""
    done: Counter[str] = Counter()
    names: dict[str, set[str]] = defaultdict(set)

    def act(clients: Clients, args: Act) -> None:
        done[args.tag] += 1
        names[args.tag].add(current_task())

    world = World(services)
    registry = Registry(Task(PATH, "default", Act, act), *parts)
    world.clients = replace(world.clients, task_paths=registry.tasks)
    world.registry = registry
    world.app = Flask("shop")
    endpoints.mount(
        world.app, world.settings, world.clients, registry, console=Console(access=access)
    )
    return Desk(world, done, world.app, names)


@pytest.fixture
def desk(services: Services) -> Desk:
    """A desk whose app knows one task."""
    return desk_with(services)
