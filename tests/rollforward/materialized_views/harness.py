"""What the tests of views share: worlds of their own, numbers as sources, what a reader sees."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from google.cloud import ndb

import main
from pipelines.registry import APP
from rollforward.materialized_views import Contributions, View, ViewGroup, ViewMaintenance
from rollforward.materialized_views.entities import RowMarker, ViewRow, row_key, row_marker_key
from rollforward.materialized_views.updates import Update
from rollforward.materialized_views.updating import transport
from rollforward.materialized_views.updating.transport import QueuedUpdate, UpdateTransport
from rollforward.outbox.entities import OutboxTask
from rollforward.registry import Registry
from rollforward.runtime import naive_utc
from tests.infra.neighbour_rows import elsewhere, untouched
from tests.infra.world import Services, World
from tests.rollforward.materialized_views.student_views import BUILDS, SCHOOL, ByGrade

NOON = datetime.datetime(2030, 5, 1, 12)  # noqa: DTZ001  Datastore's are naive.


one_emulator = pytest.mark.parametrize("services", ["datastore"], indirect=True)


# Tables beside those of the school's views: their names begin alike.
BESIDE = ("by_grade.1.10", "by_grade.1.20", "by_grade_2.1.1", "by_house.1.10", "by.1.1")


@contextmanager
def neighbours(world: World) -> Iterator[None]:
    """Put tables beside those of the school; in the end they are as they were.

    One of the same name is in another namespace.
    """
    with world.context():
        rows = [row for table in BESIDE for row in _rows(table)]
        for row in _rows("by_grade.1.1"):
            row.key = elsewhere(row.key)
            rows.append(row)
    with untouched(world, rows):
        yield


def _rows(table: str) -> list[Any]:
    """Return two rows of a table, each with the marker of its only source."""
    source = ndb.Key("Pupil", "p0")
    rows = [
        ViewRow(
            key=row_key(table, name), counts={"Pupil": 1}, sums={}, fingerprint="7", applied=NOON
        )
        for name in ("1", "2")
    ]
    name = f"Pupil:{source.urlsafe().decode()}"
    markers = [
        RowMarker(key=row_marker_key(row.key, name), sequence=1, measures={}, ranks=[])
        for row in rows
    ]
    return [*rows, *markers]


def rows_here(kind: type[ndb.Model]) -> list[Any]:
    """Return the entities of a kind, those of the tables beside the school's left out."""
    return [
        entity
        for entity in kind.query()
        if str(entity.key.flat()[1]).partition(":")[0] not in BESIDE
    ]


class ThreadedWorld(World):
    """A world whose app answers on a thread of its own, so that a test may look meanwhile."""

    def answer(self, attempt: Any) -> int | None:
        return in_a_thread(lambda: super(ThreadedWorld, self).answer(attempt))

    def sweep(self, *paths: str) -> None:
        in_a_thread(lambda: super(ThreadedWorld, self).sweep(*paths))


def in_a_thread(body: Callable[[], Any]) -> Any:
    """Return what a function returns on a thread of its own."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(body).result()


def tasks_here() -> int:
    """Return how many updates wait."""
    return len(OutboxTask.query().fetch(keys_only=True))


def counts(world: World, view: type[View] = ByGrade, views: ViewGroup = SCHOOL) -> dict[Any, Any]:
    """Return what a reader sees: each row and its count."""
    return {row.name: row.count for row in views.read(world.clients, view).rows}


def by_own_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each update a task of its own, as updates have that a fold cannot take."""
    monkeypatch.setattr(transport, "accepts", lambda table, view: False)


def as_work_items(monkeypatch: pytest.MonkeyPatch, views: Iterable[type[View]]) -> None:
    """Send updates of views as an earlier version of this code does, with `fan_in`."""
    sound = UpdateTransport.send

    def send(
        self: UpdateTransport, clients: Any, view: Any, tag: str, part: Sequence[Update]
    ) -> str:
        if view is None or not view.fan_in:
            return sound(self, clients, view, tag, part)
        saved = naive_utc(clients.clock.now())
        items = [QueuedUpdate(update, saved) for update in part]
        return self.fan_in.insert_in_transaction(clients, tag, *items, tag=tag)

    for view in views:
        monkeypatch.setattr(view, "fan_in", True)
    monkeypatch.setattr(UpdateTransport, "send", send)


def row_markers(table: str) -> dict[str, set[str]]:
    """Return the sources that each row of a table has a marker of."""
    found: dict[str, set[str]] = {}
    for marker in RowMarker.query().fetch():
        own, _, row = marker.key.parent().id().partition(":")
        if own == table:
            name = ndb.Key(urlsafe=marker.key.id().partition(":")[2].encode()).id()
            found.setdefault(row, set()).add(name)
    return found


def deploy(world: World, *builds: ViewMaintenance) -> None:
    """Let another version of the code answer from now on."""
    registry = Registry(*APP.declared, *builds)
    world.app = main.create_app(world.settings, world.clients, registry)
    world.app.testing = False


def busy(views: ViewGroup, view: type[View]) -> bool:
    catalog = views.catalog()
    return bool(catalog.building(view) or catalog.dropping(view.name))


def heal(world: World, builds: ViewMaintenance) -> None:
    """Let time pass until nothing is built or dropped any more."""
    views = builds.views
    world.heal(lambda: not any(busy(views, view) for view in views.views.values()))


def rebuild(world: World, view: type[View] = ByGrade, builds: ViewMaintenance = BUILDS) -> str:
    """Rebuild a view to the end; return its table."""
    with world.context():
        table = builds.rebuild(world.clients, view)
    heal(world, builds)
    return table


def verified(world: World, builds: ViewMaintenance, view: type[View], run: str) -> list[str]:
    """Verify a view to the end; return what was found."""
    with world.context():
        builds.verify(world.clients, view, run)
    world.settle()
    with world.context():
        found = builds.verification(world.clients, view, run)
    assert found.state == "finished"
    return [f"{difference.where}: {difference.message}" for difference in found.differences]


@dataclass(frozen=True)
class WrongClock:
    """A clock that is off by some seconds."""

    clock: Any
    ahead_s: float

    def now(self) -> datetime.datetime:
        return self.clock.now() + datetime.timedelta(seconds=self.ahead_s)


class Number(ndb.Model):
    """A source that contributes what it says."""

    row = ndb.JsonProperty()
    said = ndb.JsonProperty()


class Numbers(View):
    """Numbers in one row, or where they say."""

    source = Number
    ranked = ("n",)
    row_rate = None

    @staticmethod
    def contributions(number: Number) -> Contributions:
        row = tuple(number.row) if isinstance(number.row, list) else number.row
        return {row: number.said}


def number(name: str, n: Any = None, row: Any = "all", **said: Any) -> Number:
    return Number(id=name, row=row, said=said if n is None else {"n": n, **said})


class Wide(View):
    """A source in many rows, with long measures."""

    name = "wide"
    source = Number
    row_rate = None

    @staticmethod
    def contributions(number: Number) -> Contributions:
        return {row: {"m0": "x" * size, **number.said} for row, size in number.row.items()}


class played:
    """A world with a group of its own, in a context that is open."""

    def __init__(self, services: Services, views: Sequence[type[View]], **how: Any) -> None:
        self.views = ViewGroup("played", *views, queue="default", **how)
        self.builds = ViewMaintenance(self.views, queue="default")
        self.world = ThreadedWorld(services, builds=[self.builds])

    def __enter__(self) -> tuple[World, ViewGroup]:
        self._context = self.world.context()
        self._context.__enter__()
        return self.world, self.views

    def __exit__(self, *error: Any) -> None:
        self._context.__exit__(*error)
