"""A task with large arguments, for the tests of rows beside tasks."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any

from google.cloud import ndb

from rollforward.datastore.transactions import transact
from rollforward.runtime import Clients
from rollforward.tasks import Reject, task
from rollforward.tasks.attempts import current_task
from rollforward.tasks.stored.entities import ArgumentsChunk, StoredArguments


class FilmRun(ndb.Model):
    """That the task ran: how often, and with which arguments."""

    runs = ndb.IntegerProperty(indexed=False, default=0)
    digest = ndb.TextProperty()
    tasks = ndb.TextProperty(repeated=True)  # Their ids, each once.


class Broken(ndb.Model):
    """While this row is there, the task fails for good."""


@task("/tasks/tests/film", queue="default")
def film(clients: Clients, tag: str, frames: str) -> None:
    """Note that it ran."""
    if Broken.get_by_id("now") is not None:
        raise Reject("the camera is broken")

    def note() -> None:
        run = FilmRun.get_by_id(tag) or FilmRun(id=tag)
        run.runs += 1
        run.digest = digest(frames)
        run.tasks = sorted({*run.tasks, current_task()})
        run.put()

    transact(note)


def digest(frames: str) -> str:
    return hashlib.sha256(frames.encode()).hexdigest()


def frames(size: int) -> str:
    """Return arguments of about a size, each part of which differs."""
    return "".join(f"{number:08d}" for number in range(size // 8))


def runs_here() -> dict[str, int]:
    """Return how often the task ran, by its tag."""
    return {run.key.id(): run.runs for run in FilmRun.query().fetch()}


def rows_here() -> Counter[str]:
    """Return how many rows there are beside tasks, by kind."""
    kinds: list[Any] = [StoredArguments, ArgumentsChunk]
    return Counter({kind.__name__: len(kind.query().fetch(keys_only=True)) for kind in kinds})
