"""The store in memory, against both emulators: the searches lean on it."""

from __future__ import annotations

import datetime
import random
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from google.cloud import ndb

from rollforward.materialized_views.entities import RowMarker, SourceMarker, ViewRow
from rollforward.runtime.cache import NoCache
from rollforward.runtime.process.process_state import ProcessState
from rollforward.runtime.process.processes import NoProcesses
from tests.infra.memory_datastore import Memory, offline
from tests.infra.world import World
from tests.rollforward.materialized_views.harness import by_own_tasks, rows_here
from tests.rollforward.materialized_views.student_views import SCHOOL, Pupil, Tutor, pupil

HISTORY: Sequence[Mapping[str, Any]] = (
    {"save": [("ada", 1, 1.5, "x"), ("bob", 1, 2, "y"), ("eve", 2, 0.1, "")]},
    {"tutor": 1},
    {"save": [("ada", 2, 1.5, "x")]},
    {"delete": "bob"},
    {"save": [("bob", 3, 7, "y"), ("eve", 2, 0.1, "")]},
    {"tutor": 3},
)


def play(clients: Any, deliver: Any) -> None:
    """Play the history; deliver what waits after every second step."""
    for n, step in enumerate(HISTORY):
        if "save" in step:
            SCHOOL.save(clients, *[pupil(*each) for each in step["save"]])
        elif "delete" in step:
            SCHOOL.delete(clients, ndb.Key(Pupil, step["delete"]))
        else:
            SCHOOL.save(clients, Tutor(id="t", grade=step["tutor"]))
        if n % 2:
            deliver()


def path(key: Any) -> tuple[Any, ...]:
    """Return a key without its project and namespace, also of those in its text."""
    parts = []
    for part in key.flat():
        kind, colon, text = part.partition(":") if isinstance(part, str) else ("", "", "")
        is_name = kind in ("Pupil", "Tutor", "by_grade") and colon
        parts.append(path(ndb.Key(urlsafe=text.encode())) if is_name else part)
    return tuple(parts)


def stored(entities: Sequence[Any]) -> dict[Any, Any]:
    """Return everything that the views keep, but for what depends on project and time."""
    found: dict[Any, Any] = {}
    for entity in entities:
        match entity:
            case ViewRow():
                found[path(entity.key)] = (entity.counts, entity.sums)
            case RowMarker():
                found[path(entity.key)] = (entity.sequence, entity.measures)
            case SourceMarker():
                found[path(entity.key)] = (entity.sequence, entity.contributions)
    return found


def played_in_memory(now: datetime.datetime) -> dict[Any, Any]:
    clock = SimpleNamespace(now=lambda: now)
    with offline():
        clients = SimpleNamespace(
            clock=clock,
            random=random.Random(1),
            cache=NoCache(),
            task_paths=None,
            new_id=lambda: "0",
            process_state=ProcessState(),
            processes=NoProcesses(),
        )
        with Memory() as memory:

            def deliver() -> None:
                while tasks := memory.tasks(SCHOOL):
                    for task in tasks:
                        SCHOOL.apply(clients, task)  # type: ignore[arg-type]

            play(clients, deliver)
            deliver()
            return stored([memory.get(key) for key in memory.facts])


def test_memory_and_both_emulators_agree(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the search in memory proves holds where the entities are stored, too."""
    by_own_tasks(monkeypatch)  # A fold would change a row less often.
    expected = played_in_memory(world.clients.clock.now())  # Sequences begin at the time.

    with world.context():
        play(world.clients, world.settle)
        world.settle()
        kinds = (ViewRow, RowMarker, SourceMarker)
        found = stored([entity for kind in kinds for entity in rows_here(kind)])

    assert found == expected
    assert len(found) > 10
