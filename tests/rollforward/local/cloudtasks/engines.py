"""Engines without a network, whose clock stands still, and what a test does with one."""

import contextlib
import random
import sqlite3
from typing import Any

from rollforward.local.cloudtasks.clock import Clock
from rollforward.local.cloudtasks.delivery.app_engine import AppEngineApp
from rollforward.local.cloudtasks.engine.engine import Engine
from rollforward.local.cloudtasks.protocol import messages
from rollforward.local.cloudtasks.protocol.names import Place
from rollforward.local.cloudtasks.store.store import Store

NOW = 1_800_000_000.0
PLACE = Place("demo-local", "us-central1")
QUEUE = PLACE.queue_name("work")
DAY_S = 86400
_OPEN: list[Engine] = []


def make_engine(path: Any = None, **arguments: Any) -> Engine:
    """Return an engine whose clock stands still until it is advanced."""
    arguments.setdefault("rng", random.Random(1))
    arguments.setdefault("clock", Clock(lambda: NOW))
    app = AppEngineApp("http://app.invalid")
    engine = Engine(Store(path), PLACE, app, in_memory=True, **arguments)
    _OPEN.append(engine)
    return engine


def close_engines() -> None:
    """Close what a test has opened: from Python 3.13 on a lost connection fails a later test."""
    while _OPEN:
        with contextlib.suppress(sqlite3.Error):  # The test has closed it.
            _OPEN.pop().close()


def make_ticking_engine(**arguments: Any) -> tuple[Engine, Clock]:
    """Return an engine with one queue, and the clock that its own follows without a sweep."""
    real = Clock(lambda: NOW)
    made = make_engine(clock=Clock(real.now), **arguments)
    made.create_queue(PLACE.parent, messages.Queue(name=QUEUE))
    return made, real


def add(engine: Engine, task_id: str = "", path: str = "/ok", **fields: Any) -> str:
    """Create a task and return its name."""
    task = messages.Task(name=f"{QUEUE}/tasks/{task_id}" if task_id else "", **fields)
    task.http_request.url = f"http://handler.invalid{path}"
    return engine.tasks.create(QUEUE, task).name


def ids(attempts: list[Any]) -> list[str]:
    """Return the short task ids of attempts."""
    return [attempt.task.name.rpartition("/")[2] for attempt in attempts]


def finish(engine: Engine, status: int = 200) -> list[Any]:
    """Begin and end what is ready, once."""
    begun = engine.begin_ready()
    for attempt in begun:
        engine.end_attempt(attempt.id, status=status)
    return begun


def history(engine: Engine, task_id: str) -> list[Any]:
    """Return the attempts of a task."""
    return engine.history.of_task(f"{QUEUE}/tasks/{task_id}")[1]
