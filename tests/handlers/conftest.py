"""Fixtures for tests of the handlers: a browser, a queue, and a snapshot of the store."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from flask import Flask
from jinja2 import Undefined
from jinja2.bccache import Bucket, BytecodeCache
from jinja2.utils import missing
from werkzeug.datastructures import FileStorage
from werkzeug.test import TestResponse, encode_multipart

import main
from handlers.settings import DemoSettings
from models.blog import BlogIndex, Comment, Commenter, CommentReceipt, Post, PostReceipt
from models.counters import ClickLoads, ClickSwitch, ClickWriter
from models.grades import Comparison, School, Student, Teacher
from models.invitations import Guest, GuestImport, Party
from models.numbers import NumbersRun
from models.orders import OrderCard, OrderCharge, OrderSale, OrderShelf
from models.quilt import Quilt, QuiltPiece, QuiltSquare
from models.quotas import DemoUsage
from models.sums import LoadWriter, Sum, SumAddition, SumDirectory, SumLoads, SumTally
from models.tenants import TenantRush, TenantTally
from models.weblog import AccessLogs
from models.zeitgeist import ZeitgeistPlayback
from rollforward.batches.entities import BatchPage, BatchState, BatchWork
from rollforward.continuations.entities import (
    ContinuationPage,
    ContinuationRun,
    ContinuationTotals,
)
from rollforward.continuations.upload_entities import UploadChunk
from rollforward.counters.entities import CounterConfig, CounterReceipt, CounterShard
from rollforward.flask.settings import APP_ENGINE, CLOUD_RUN
from rollforward.flows.rows.entities import FlowRun
from rollforward.fork_join.entities import WorkPack, WorkReceipt
from rollforward.lanes.rows.entities import LaneState, LaneTask
from rollforward.materialized_views.entities import ViewCatalog
from rollforward.outbox.entities import OutboxTask
from rollforward.registry import Registry
from rollforward.streams.entities import (
    StreamChunk,
    StreamDead,
    StreamHead,
    StreamInterval,
    StreamSource,
)
from rollforward.tasks import AppEngineTarget, Task
from rollforward.tasks.attempt_entities import TaskAttempts
from rollforward.tasks.dead_task_entities import DeadTask
from rollforward.testing.services import ACCOUNT, BASE_URL
from tests.handlers.invitations.party import ID, PAGE, invite
from tests.infra.world import World

KINDS = (
    *(Party, Guest, GuestImport, UploadChunk, DeadTask),
    *(ContinuationRun, ContinuationPage, ContinuationTotals),
    TaskAttempts,
    *(Quilt, QuiltPiece, QuiltSquare, BatchPage, BatchState, BatchWork),
    *(OrderSale, OrderCard, OrderShelf, OrderCharge, FlowRun),
    *(TenantRush, TenantTally, LaneState, LaneTask),
    *(BlogIndex, Comment, Commenter, CommentReceipt, Post, PostReceipt),
    *(School, Student, Teacher, Comparison, OutboxTask, ViewCatalog),
    *(Sum, SumDirectory, SumLoads, SumTally, SumAddition, LoadWriter, WorkPack, WorkReceipt),
    *(CounterConfig, CounterShard, CounterReceipt, ClickLoads, ClickSwitch, ClickWriter),
    *(NumbersRun, AccessLogs),
    *(StreamHead, StreamInterval, StreamSource, StreamChunk, StreamDead),
    *(ZeitgeistPlayback, DemoUsage),
)
PARTY = {
    "title": "Garden party",
    "host": "Brett",
    "place": "Roof",
    "when": "2030-05-01T19:30",
    "note": "",
}


class SharedTemplates(BytecodeCache):
    """Compiled templates, kept for all the apps of a test run."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        if bucket.key in self.kept:
            bucket.bytecode_from_string(self.kept[bucket.key])

    def dump_bytecode(self, bucket: Bucket) -> None:
        self.kept[bucket.key] = bucket.bytecode_to_string()


TEMPLATES = SharedTemplates()


class KnownAttribute(Undefined):
    """An attribute that a template asks for and its object does not have: an error, no gap."""

    def __init__(self, hint: Any = None, obj: Any = missing, *args: Any, **kwargs: Any) -> None:
        super().__init__(hint, obj, *args, **kwargs)
        if obj is not missing and not isinstance(obj, Mapping):
            self._fail_with_undefined_error()


def prepare(app: Flask) -> None:
    """Share compiled templates, and let none of them ask for what is not there."""
    app.jinja_env.bytecode_cache = TEMPLATES
    app.jinja_env.undefined = KnownAttribute


@dataclass
class Browser:
    """Somebody with cookies, who sends the forms that the pages hold."""

    app: Flask

    def __post_init__(self) -> None:
        self.client = self.app.test_client()
        self.known_token = ""

    def get(self, path: str, **kwargs: Any) -> TestResponse:
        return self.client.get(path, buffered=True, **kwargs)

    def token(self) -> str:
        """Return a token out of a page's form; it is good for the whole session."""
        if self.known_token:
            return self.known_token
        match = re.search(r'name="csrf_token" value="([^"]+)"', self.get("/invitations").text)
        assert match is not None
        self.known_token = html.unescape(match[1])
        return self.known_token

    def post(
        self,
        path: str,
        form: dict[str, Any] | None = None,
        *,
        token: str | None = None,
        **rest: Any,
    ) -> TestResponse:
        """Send a form with our token, or with another one."""
        token = self.token() if token is None else token
        values = {"csrf_token": token, **(form or {})}
        if any(isinstance(value, tuple) for value in values.values()):
            files = {
                name: FileStorage(*value) if isinstance(value, tuple) else value
                for name, value in values.items()
            }
            boundary, body = encode_multipart(files)
            kind = f"multipart/form-data; boundary={boundary}"
            return self.client.post(path, data=body, content_type=kind, **rest)
        return self.client.post(path, data=values, **rest)

    def create_party(self, party_id: str = "a" * 32, **details: str) -> str:
        """Create a party and return where its page is."""
        answer = self.post("/invitations", {"id": party_id, **PARTY, **details})
        assert answer.status_code == 303, answer.text
        return f"/invitations/{party_id}"


@dataclass
class Queue:
    """Delivers requests to an app as Cloud Tasks would."""

    world: World
    app: Flask
    headers: dict[str, str] = field(default_factory=dict)

    def deliver(
        self,
        path: str,
        body: bytes | dict[str, Any] = b"{}",
        *,
        task_name: str = "t1",
        retries: int = 0,
        **headers: str,
    ) -> TestResponse:
        sent = {
            "Authorization": f"Bearer {self.world.engine.tokens.oidc_token(ACCOUNT, BASE_URL)}",
            "X-CloudTasks-QueueName": "default",
            "X-CloudTasks-TaskName": task_name,
            "X-CloudTasks-TaskRetryCount": str(retries),
            **{f"X-CloudTasks-{name}": value for name, value in headers.items()},
        }
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.app.test_client().post(path, data=data, headers=sent)

    def dead_tasks(self) -> list[DeadTask]:
        with self.world.context():
            dead_tasks: list[DeadTask] = DeadTask.query().fetch()
            return dead_tasks


@pytest.fixture
def world(world: World) -> World:
    """The app in a namespace of its own; its templates are compiled once for all tests."""
    prepare(world.app)
    return world


@pytest.fixture
def browser(world: World) -> Browser:
    return Browser(world.app)


def app_with(world: World, *tasks: Task[Any], settings: DemoSettings | None = None) -> Flask:
    """Return the app for some more tasks, or other settings."""
    app = main.create_app(
        settings or world.settings,
        world.clients,
        Registry(*world.registry.declared, *tasks),
    )
    app.testing = False
    prepare(app)
    app.extensions["live"].elapsed_s = lambda: world.clock.time_s
    return app


def on_app_engine(world: World) -> DemoSettings:
    """Return settings as on App Engine, on the services of a test."""
    return replace(
        world.settings, platform=APP_ENGINE, project="real-project", target=AppEngineTarget()
    )


def on_cloud_run(world: World) -> DemoSettings:
    """Return settings as on Cloud Run, on the services of a test."""
    return replace(world.settings, platform=CLOUD_RUN, project="real-project")


@pytest.fixture
def snapshot(world: World) -> Callable[[], Any]:
    """Return a function that tells all that is stored: entities, tasks and mails."""

    def look() -> Any:
        with world.context():
            entities = {
                kind.__name__: sorted((row.key.id(), str(row.to_dict())) for row in kind.query())
                for kind in KINDS
            }
        tasks = sorted(due.task_name for due in world.engine.due())
        return entities, tasks, world.services.mail.count()

    return look


@pytest.fixture
def party(browser: Browser, world: World) -> str:
    """A party whose two guests have their mails, and the path of its page."""
    browser.create_party(ID)
    invite(browser, world)
    assert browser.post(f"{PAGE}/send").status_code == 303
    world.settle()
    return PAGE


@pytest.fixture
def bare_party(browser: Browser) -> str:
    """A party without guests, and the place of its page."""
    return browser.create_party(ID)
