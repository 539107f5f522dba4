"""Consistency tokens while the table is replaced that a reader waits for."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from rollforward.datastore.transactions import transact
from rollforward.local.cloudtasks.protocol import messages
from rollforward.materialized_views import View, ViewMaintenance
from rollforward.materialized_views import catalog_changes as changes
from rollforward.materialized_views.catalog import Catalog
from rollforward.materialized_views.maintenance.tables import Tables
from rollforward.materialized_views.maintenance.walks import CATCH_UP, CONFIRM
from rollforward.materialized_views.reader import ViewReader
from rollforward.outbox.entities import OutboxTask
from rollforward.testing.world import SWEPT_EVERY_S
from tests.infra.world import World
from tests.rollforward.materialized_views.harness import in_a_thread, one_emulator
from tests.rollforward.materialized_views.student_views import BUILDS, SCHOOL, ByGrade, pupil


@one_emulator
def test_a_token_holds_for_the_table_that_is_swapped_in_behind_it(
    here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader of the new table waits for the new table's update, and one of the old does not."""
    SCHOOL.save(here.clients, pupil("bob", 1))
    here.settle()
    BUILDS.rebuild(here.clients, ByGrade)
    token = SCHOOL.save(here.clients, pupil("ada", 2))
    of_table = {
        row.tag.partition(":")[0]: SCHOOL.task.read(row.body.encode())
        for row in OutboxTask.query().fetch()
    }

    swapped_at_once(monkeypatch)
    SCHOOL.apply(here.clients, of_table["by_grade.1.1"])
    before = SCHOOL.wait(here.clients, token, 0)
    transact(lambda: BUILDS._tables.swap(ByGrade, "by_grade.1.2"))
    after = SCHOOL.wait(here.clients, token, 0)
    SCHOOL.apply(here.clients, of_table["by_grade.1.2"])

    assert [before, after, SCHOOL.wait(here.clients, token, 0)] == [True, False, True]


def swapped_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a swap not wait for anything."""
    monkeypatch.setattr(Tables, "has_ended", lambda *args: True)


@one_emulator
def test_a_token_is_met_when_the_table_that_is_about_to_be_read_holds_it_too(
    here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token that was met stays so: the swap behind it waits for what the new table lacks."""
    SCHOOL.save(here.clients, pupil("bob", 1))
    here.settle()
    table = BUILDS.rebuild(here.clients, ByGrade)
    with monkeypatch.context() as patch:
        sound = ViewMaintenance._is_done
        patch.setattr(
            ViewMaintenance,
            "_is_done",
            lambda self, clients, walks, step: (
                step != CONFIRM and sound(self, clients, walks, step)
            ),
        )
        here.settle()
    token = SCHOOL.save(here.clients, pupil("ada", 1))
    late = []
    for due in list(here.engine.due()):
        if table.encode() in body_of(here, due.task_name):
            late.append(due)
        else:
            here.deliver(due.task_name)

    before = SCHOOL.read(here.clients, ByGrade, at_least=token, timeout_s=0)
    in_a_thread(lambda: advanced(here))
    live_meanwhile = SCHOOL.catalog().live(ByGrade)
    here.settle()
    after = SCHOOL.read(here.clients, ByGrade, at_least=token, timeout_s=0)

    assert len(late) == 1
    assert (before.is_satisfied, [row.count for row in before.rows]) == (False, [2])
    assert live_meanwhile == "by_grade.1.1"
    assert SCHOOL.catalog().live(ByGrade) == table
    assert (after.is_satisfied, [row.count for row in after.rows]) == (True, [2])


@one_emulator
@pytest.mark.parametrize("moves", [True, False], ids=["moves", "is deleted"])
def test_a_token_stays_met_when_a_source_leaves_a_row_during_the_catch_up(
    here: World, monkeypatch: pytest.MonkeyPatch, moves: bool
) -> None:
    """C5: the swap waits until the new table's row has let the source go, too."""
    SCHOOL.save(here.clients, pupil("bob", 1), pupil("ada", 1))
    here.settle()
    table = BUILDS.rebuild(here.clients, ByGrade)
    with monkeypatch.context() as patch:
        sound = ViewMaintenance._is_done
        patch.setattr(
            ViewMaintenance,
            "_is_done",
            lambda self, clients, walks, step: (
                sound(self, clients, walks, step) and step != CATCH_UP
            ),
        )
        here.settle()
    if moves:
        token = SCHOOL.save(here.clients, pupil("ada", 2))
    else:
        token = SCHOOL.delete(here.clients, pupil("ada", 1).key)
    for waiting in OutboxTask.query().fetch():
        args = SCHOOL.task.read(waiting.body.encode())
        if args.table != table or args.row == "2":
            SCHOOL.apply(here.clients, args)
    before = SCHOOL.read(here.clients, ByGrade, at_least=token, timeout_s=0)
    in_a_thread(lambda: advanced(here))
    live_meanwhile = SCHOOL.catalog().live(ByGrade)
    meanwhile = SCHOOL.read(here.clients, ByGrade)
    here.settle()
    here.clock.sleep(SWEPT_EVERY_S)
    here.sweep()
    after = SCHOOL.read(here.clients, ByGrade, at_least=token, timeout_s=0)

    assert before.is_satisfied
    assert live_meanwhile == "by_grade.1.1"
    assert meanwhile.rows == before.rows
    assert SCHOOL.catalog().live(ByGrade) == table
    assert after.is_satisfied
    assert {row.name: row.count for row in after.rows} == ({1: 1, 2: 1} if moves else {1: 1})


def body_of(world: World, task_name: str) -> bytes:
    """Return what a task says."""
    task = world.engine.get_task(task_name, messages.FULL)
    return bytes(task.http_request.body)


def advanced(world: World) -> None:
    """Take the steps of a build that are due, and what they set going but updates."""
    with world.context():
        BUILDS.advance(world.clients, ByGrade)
    for _ in range(3):
        for due in list(world.engine.due()):
            body = body_of(world, due.task_name)
            if not any(word in body for word in (b"updates", b"tick_ms")):
                world.deliver(due.task_name)


@dataclass(frozen=True)
class Applying:
    """A clock that does something at each of its sleeps."""

    clock: Any
    act: Callable[[], None]

    def now(self) -> datetime.datetime:
        return self.clock.now()

    def sleep(self, seconds: float) -> None:
        self.act()
        self.clock.sleep(seconds)


@one_emulator
@pytest.mark.parametrize("timeout_s", [0, 5])
def test_a_token_is_judged_by_the_table_that_was_read(
    here: World, monkeypatch: pytest.MonkeyPatch, timeout_s: float
) -> None:
    """C1, C5: not by the one that was read when the waiting began; with time left it waits on."""
    SCHOOL.save(here.clients, pupil("bob", 1))
    here.settle()
    table = BUILDS.rebuild(here.clients, ByGrade)
    token = SCHOOL.save(here.clients, pupil("ada", 1))
    of_table = {
        row.tag.partition(":")[0]: SCHOOL.task.read(row.body.encode())
        for row in OutboxTask.query().fetch()
    }
    SCHOOL.apply(here.clients, of_table["by_grade.1.1"])
    swapped_at_once(monkeypatch)
    sound, looks = ViewReader._seen, []

    def seen(self: ViewReader, view: type[View], look: Callable[[str], Any]) -> Any:
        looks.append(SCHOOL.catalog().live(ByGrade))
        if len(looks) == 1:
            transact(lambda: BUILDS._tables.swap(ByGrade, table))
        return sound(self, view, look)

    monkeypatch.setattr(ViewReader, "_seen", seen)
    applying = Applying(here.clock, lambda: SCHOOL.apply(here.clients, of_table[table]))
    clients = replace(here.clients, clock=applying)
    reading = SCHOOL.read(clients, ByGrade, at_least=token, timeout_s=timeout_s)

    assert looks == ["by_grade.1.1", table]
    assert reading.is_satisfied == bool(timeout_s)
    assert [row.count for row in reading.rows] == ([1] if timeout_s else [])


def test_a_catalog_knows_of_the_tables_that_are_read_and_built_and_of_no_other() -> None:
    """C5: tokens wait for a table that is about to be read, also when another one is gone."""
    catalog = changes.with_view(Catalog.of(None), ByGrade)
    first = catalog.live(ByGrade)
    catalog = changes.with_next(catalog, ByGrade)
    second = str(catalog.building(ByGrade))
    catalog = changes.with_next(changes.swapped(catalog, ByGrade, second), ByGrade)
    third = str(catalog.building(ByGrade))
    catalog = changes.awaiting(catalog, ByGrade, third)

    catalog = changes.without_table(catalog, ByGrade.name, first)

    assert third in catalog.required_tables(ByGrade)
    assert set(catalog.begun_with) == {second, third}
    assert list(catalog.dropping(ByGrade.name)) == []
