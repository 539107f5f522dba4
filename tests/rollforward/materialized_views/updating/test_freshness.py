"""Freshness: how far rows are behind, and how new their newest change is."""

from __future__ import annotations

from typing import Any

import pytest

from rollforward.materialized_views import reader
from rollforward.materialized_views.updating.freshness import MAX_LISTED, freshness_of
from rollforward.outbox.entities import OutboxTask, RowId
from tests.infra.world import World
from tests.rollforward.materialized_views.harness import one_emulator
from tests.rollforward.materialized_views.student_views import SCHOOL, ByGrade, pupil


def test_an_update_that_is_applied_between_two_reads_is_told_or_in_a_row(
    here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C1: what waits is read before the rows, so a change is never in neither."""
    SCHOOL.save(here.clients, pupil("ada", 1))
    (held,) = [row for row in OutboxTask.query().fetch() if row.tag.startswith("by_grade.")]
    update = SCHOOL.task.read(held.body.encode())
    looks: list[str] = []

    def between(name: str) -> None:
        sound = getattr(reader, name)

        def look(*args: Any) -> Any:
            looks.append(name)
            if len(looks) == 2:
                SCHOOL.apply(here.clients, update)
            return sound(*args)

        monkeypatch.setattr(reader, name, look)

    between("waiting_for_rows")
    between("rows_from")
    reading = SCHOOL.read(here.clients, ByGrade)

    assert sorted(looks) == ["rows_from", "waiting_for_rows"]
    assert (reading.freshness.waiting, len(reading.rows)) == (1, 1)


@one_emulator
def test_a_row_says_how_new_its_newest_change_is_in_whatever_order_they_come(here: World) -> None:
    """An older save that is applied later does not make it older."""
    SCHOOL.save(here.clients, pupil("ada", 1))
    here.clock.sleep(10)
    SCHOOL.save(here.clients, pupil("bob", 1))
    here.clock.sleep(5)
    held = {
        RowId.parse(row.key.id()).created: SCHOOL.task.read(row.body.encode())
        for row in OutboxTask.query().fetch()
        if row.tag.startswith("by_grade.")
    }

    for created in sorted(held, reverse=True):
        SCHOOL.apply(here.clients, held[created])

    newest_s = SCHOOL.freshness(here.clients, ByGrade, 1).newest_s
    assert len(held) == 2
    assert newest_s == pytest.approx(5, abs=0.5)


def test_freshness_tells_what_waits_and_how_old_the_newest_change_is(here: World) -> None:
    """Of a view, and of one row of it."""
    clients = here.clients
    SCHOOL.save(clients, pupil("ada", 1))
    here.settle()
    here.clock.sleep(10)
    SCHOOL.save(clients, pupil("bob", 2))
    here.clock.sleep(5)

    of_view = SCHOOL.read(clients, ByGrade).freshness
    rows = [SCHOOL.freshness(clients, ByGrade, grade) for grade in (1, 2, 3)]

    assert (of_view.waiting, of_view.is_truncated) == (1, False)
    assert of_view.oldest_s == pytest.approx(5, abs=0.5)
    assert of_view.newest_s == pytest.approx(15, abs=0.5)
    assert [row.waiting for row in rows] == [0, 1, 0]
    assert [row.oldest_s == 0 for row in rows] == [True, False, True]
    assert [row.newest_s is None for row in rows] == [False, True, True]
    ((update, age_s),) = SCHOOL.waiting(clients, ByGrade)
    assert (update.row, age_s) == ("2", pytest.approx(5, abs=0.5))
    here.settle()
    assert SCHOOL.read(clients, ByGrade).freshness.oldest_s == 0


@one_emulator
def test_what_waits_is_cut_short_only_beyond_what_is_counted(here: World) -> None:
    """A thousand changes are counted to the end; of one more it says so."""
    SCHOOL.save(here.clients, pupil("ada", 1))
    key = OutboxTask.query().get(keys_only=True)

    found = [
        freshness_of(here.clients, [key] * count, []) for count in (MAX_LISTED, MAX_LISTED + 1)
    ]

    assert [(each.waiting, each.is_truncated) for each in found] == [(1_000, False), (1_000, True)]


@one_emulator
def test_what_has_waited_longest_is_listed_first(here: World) -> None:
    """C1: however the rows are called that it waits for."""
    for name, grade in (("ada", 3), ("bob", 1), ("eve", 2)):
        SCHOOL.save(here.clients, pupil(name, grade))
        here.clock.sleep(10)

    found = SCHOOL.waiting(here.clients, ByGrade, limit=2)

    assert [update.row for update, _ in found] == ["3", "1"]
    assert [age_s for _, age_s in found] == pytest.approx([30, 20], abs=0.5)
