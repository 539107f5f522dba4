"""Saves in a transaction of the caller's, and sources as views see them in either way."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

import pytest
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward.datastore.transactions import transact
from rollforward.materialized_views import ConsistencyToken, Contributions, View
from rollforward.materialized_views.entities import SourceMarker
from rollforward.outbox.entities import OutboxTask
from tests.infra.world import Services, World
from tests.rollforward.materialized_views.harness import by_own_tasks, counts, one_emulator, played
from tests.rollforward.materialized_views.student_views import SCHOOL, Pupil, differences, pupil


def test_a_save_joins_the_callers_transaction(here: World) -> None:
    """C1: two changes of one commit, with something of the caller's own."""
    SCHOOL.save(here.clients, pupil("bob", 1))

    def body() -> ConsistencyToken:
        Abacus(id="t", many=1).put()
        SCHOOL.delete_in_transaction(here.clients, ndb.Key(Pupil, "bob"))
        return SCHOOL.save_in_transaction(here.clients, pupil("ada", 2))

    token = transact(body)
    here.settle()

    assert counts(here) == {2: 1}
    assert SCHOOL.wait(here.clients, token, 0)
    assert ndb.Key(Abacus, "t").get().many == 1


def write(world: World, grades: Sequence[int | None]) -> ConsistencyToken:
    """Save a pupil in one grade after the other, or delete it, in the transaction at hand."""
    for points, grade in enumerate(grades):
        if grade is None:
            token = SCHOOL.delete_in_transaction(world.clients, ndb.Key(Pupil, "ada"))
        else:
            token = SCHOOL.save_in_transaction(world.clients, pupil("ada", grade, points))
    return token


@pytest.mark.parametrize("order", [1, -1], ids=["in order", "the last one first"])
@pytest.mark.parametrize(
    "grades",
    [(1, 1), (2, 1), (2, 3), (2, None, 1), (2, None), (None, 1), (1, 2, 1, 2)],
    ids=str,
)
def test_saves_of_one_source_in_one_transaction_are_one_change(
    here: World, monkeypatch: pytest.MonkeyPatch, grades: Sequence[int | None], order: int
) -> None:
    """C1: whatever they were in between, and in whatever order their updates come."""
    by_own_tasks(monkeypatch)
    SCHOOL.save(here.clients, pupil("ada", 1, 9))
    here.settle()

    token = transact(lambda: write(here, grades))
    is_satisfied = [SCHOOL.wait(here.clients, token, 0)]
    for due in here.engine.due()[::order]:
        here.deliver(due.task_name)
    here.settle()
    is_satisfied.append(SCHOOL.wait(here.clients, token, 0))

    assert counts(here) == ({grades[-1]: 1} if grades[-1] else {})
    assert differences() == []
    assert is_satisfied == [False, True]


def test_saves_of_a_try_that_was_not_committed_leave_no_trace(here: World) -> None:
    """C1: the next try begins with what is stored, not with what the last one would have put."""
    SCHOOL.save(here.clients, pupil("ada", 1, 1))
    here.settle()
    tries = []

    def body() -> None:
        tries.append(SCHOOL.save_in_transaction(here.clients, pupil("ada", 2, 7)))
        if len(tries) == 1:
            raise rpc_errors.Aborted("a race was lost")

    transact(body)
    here.settle()

    assert len(tries) == 2
    assert counts(here) == {2: 1}
    assert differences() == []


def test_an_abort_of_the_callers_transaction_leaves_nothing(here: World) -> None:
    """C1: neither a source, nor its marker, nor a task."""

    def body() -> None:
        SCHOOL.save_in_transaction(here.clients, pupil("ada", 1))
        SCHOOL.delete_in_transaction(here.clients, ndb.Key(Pupil, "bob"))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        transact(body)

    assert [kind.query().fetch() for kind in (Pupil, SourceMarker, OutboxTask)] == [[], [], []]


class Abacus(ndb.Model):
    """Something of the caller's own."""

    many = ndb.IntegerProperty(indexed=False)


class Lesson(ndb.Model):
    """A part of a source, with JSON of its own."""

    points = ndb.JsonProperty(default={})


class Timetable(ndb.Model):
    """A source whose values a read returns otherwise than they were set."""

    points = ndb.JsonProperty(compressed=True)  # {grade: points}, whose keys JSON makes texts.
    lesson = ndb.StructuredProperty(Lesson)
    begins = ndb.DateTimeProperty(tzinfo=datetime.timezone(datetime.timedelta(hours=2)))


class Points(View):
    """Points by grade, and timetables by the hour at which they begin."""

    source = Timetable
    row_rate = None

    @staticmethod
    def contributions(table: Timetable) -> Contributions:
        points = {**table.points, **table.lesson.points}
        rows = {grade: {"points": number} for grade, number in points.items()}
        return {**rows, ("begins", table.begins.hour): {}}


@one_emulator
@pytest.mark.parametrize("is_in_transaction", [False, True])
def test_views_see_values_as_a_read_returns_them(
    services: Services, *, is_in_transaction: bool
) -> None:
    """C1: a rebuild finds nothing else than what the saves have contributed."""
    noon = datetime.datetime(2030, 5, 1, 12, tzinfo=datetime.UTC)
    with played(services, [Points]) as (world, views):
        table = Timetable(id="a", points={7: 92, "8": 3}, lesson=Lesson(points={9: 1}), begins=noon)
        if is_in_transaction:
            transact(lambda: views.save_in_transaction(world.clients, table))
        else:
            views.save(world.clients, table)
        world.settle()

        names = [row.name for row in views.read(world.clients, Points).rows]
        assert names == ["7", "8", "9", ("begins", 14)]
        assert differences(views) == []
