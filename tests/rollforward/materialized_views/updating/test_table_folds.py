"""Folds of a table: what waits for all of its rows is applied together, but for poison."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from dataclasses import replace
from itertools import groupby
from types import SimpleNamespace
from typing import Any

import pytest
from google.cloud import ndb

from rollforward.local.cloudtasks.protocol import messages
from rollforward.materialized_views import ConsistencyToken, Contributions, Row, View
from rollforward.materialized_views.updating import apply, table_fold
from rollforward.materialized_views.updating.bell import MAX_ASKED, Bell
from rollforward.materialized_views.updating.turns import FoldTurns
from rollforward.outbox.entities import OutboxTask
from rollforward.runtime import naive_utc
from rollforward.runtime.advisory_lock import PROGRESS_S, advisory_lock
from rollforward.tasks.dead_task_entities import DeadTask
from tests.infra.world import Services, World
from tests.rollforward.materialized_views.harness import (
    Number,
    Numbers,
    WrongClock,
    counts,
    in_a_thread,
    number,
    one_emulator,
    played,
    tasks_here,
)
from tests.rollforward.materialized_views.student_views import (
    SCHOOL,
    ByGrade,
    Pupil,
    differences,
    pupil,
)


def save(world: World, count: int, grade: Any, at_once: int = 50) -> ConsistencyToken:
    """Save so many pupils, fifty in a transaction."""
    many = [Pupil(id=f"p{i}", grade=grade(i), points=i % 7) for i in range(count)]
    for start in range(0, count, at_once):
        token = SCHOOL.save(world.clients, *many[start : start + at_once])
    return token


def folds_of(world: World) -> list[str]:
    """Return the tables of the fold tasks that are due."""
    bodies = [world.engine.get_task(due.task_name, messages.FULL) for due in world.engine.due()]
    texts = [bytes(task.http_request.body) for task in bodies]
    return [text.decode() for text in texts if b"tick_ms" in text]


def test_many_sources_that_move_write_each_row_once_in_a_fold(
    here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C1: sources move between 3 rows; 400 changes are a few writes of each."""
    for view in SCHOOL.views.values():
        monkeypatch.setattr(view, "row_rate", None)
    save(here, 400, lambda i: i % 3)
    here.settle()
    writes: Counter[str] = Counter()
    sound = apply.put_row

    def put_row(view: Any, row: Any, changed: Any) -> None:
        writes[row.key.id()] += 1
        sound(view, row, changed)

    monkeypatch.setattr(apply, "put_row", put_row)
    save(here, 400, lambda i: (i + 1) % 3)
    here.settle()

    grades = [count for row, count in writes.items() if row.startswith("by_grade.")]
    # Each pupil leaves one row and enters another: 800 updates, up to 150 in a transaction.
    assert sum(grades) <= 800 / 50
    assert differences() == []
    assert sum(row.count for row in SCHOOL.read(here.clients, ByGrade).rows) == 400


CALLS = ("Lookup", "BeginTransaction", "Lookup", "Commit")


def test_all_rows_of_a_table_are_written_by_one_commit(services: Services) -> None:
    """C1: forty saves, each of a row of its own, ring for one task of one transaction."""
    with played(services, [Numbers]) as (world, views):
        for n in range(40):
            views.save(world.clients, number(f"s{n}", 1, row=n))
        due = world.engine.due()
        with world.plan.watched():
            world.deliver(due[0].task_name)
            calls = [name for name in world.plan.calls if name in CALLS]

        if services.memcached is not None:
            assert len(due) == 1
        # A lookup of the updates, and one of all that they concern, whose answers may be cut.
        assert [name for name, _ in groupby(calls)] == [*CALLS]
        assert tasks_here() == 0
        assert counts(world, Numbers, views) == dict.fromkeys(range(40), 1)
        assert differences(views) == []


def test_a_fold_whose_parts_take_time_shows_progress_at_each(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C1: the next one waits for it longer than for one that has died."""
    if services.memcached is None:
        pytest.skip("without memcached nobody waits")
    held: list[bytes | None] = []
    sound = apply.Applier.apply_many

    def apply_many(self: Any, clients: Any, table: str, *args: Any) -> None:
        held.append(clients.cache.get(f"views:fold:{table}"))
        clients.clock.sleep(PROGRESS_S)
        sound(self, clients, table, *args)

    with played(services, [Numbers]) as (world, views):
        for n in range(3):
            views.save(world.clients, number(f"s{n}", 1, row=n))
        monkeypatch.setattr(table_fold, "MAX_UPDATES", 1)
        monkeypatch.setattr(apply.Applier, "apply_many", apply_many)
        world.settle()

    assert len(held) == len({*held} - {None}) == 3


@pytest.mark.parametrize("gets_on", [True, False])
def test_a_fold_beside_one_that_gets_on_comes_later_and_one_beside_a_dead_one_folds(
    services: Services, monkeypatch: pytest.MonkeyPatch, gets_on: bool
) -> None:
    """C1: two that get on would apply the same updates, and one of them in vain."""
    if services.memcached is None:
        pytest.skip("without memcached nobody waits")
    with played(services, [Numbers]) as (world, views):
        views.save(world.clients, number("a", 1))
        delivery = world.engine.due()[0].task_name
        table = json.loads(folds_of(world)[0])["table"]
        sound = world.clock.sleep
        with advisory_lock(world.clients, f"views:fold:{table}") as other:

            def sleep(seconds: float) -> None:
                sound(seconds)
                if gets_on:
                    other.show_progress()

            with monkeypatch.context() as patch:
                patch.setattr(type(world.clock), "sleep", lambda clock, seconds: sleep(seconds))
                assert world.deliver(delivery) == 204
        seen = counts(world, Numbers, views)
        sound(table_fold.COMES_AGAIN_S + 0.1)  # On a tick of the bell.
        assert len(folds_of(world)) == int(gets_on)
        world.settle()

        assert seen == ({} if gets_on else {"all": 1})
        assert counts(world, Numbers, views) == {"all": 1}


def test_a_row_is_as_new_as_the_newest_save_of_its_fold(here: World) -> None:
    """C4: whichever place that one has among those that came together."""
    for n in range(3):
        here.clock.sleep(0.2)
        saved = naive_utc(here.clock.now())
        SCHOOL.save(here.clients, Pupil(id=f"p{n}", grade=1, points=n))
    here.settle()

    row = SCHOOL.row(ByGrade, 1)
    assert row is not None
    assert abs((row.applied - saved).total_seconds()) < 0.1


# The bell


def saved_while_listed(world: World, views: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Save while a fold has listed what waits; return the folds that are due behind it."""
    views.save(world.clients, number("before", 1))
    sound = table_fold.list_unacked

    def save_meanwhile() -> None:
        with world.context():
            views.save(world.clients, number("meanwhile", 1, row="other"))

    def list_unacked(*args: Any) -> Any:
        found = sound(*args)
        in_a_thread(save_meanwhile)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(table_fold, "list_unacked", list_unacked)
        assert world.deliver(world.engine.due()[0].task_name) == 204
    return folds_of(world)


@one_emulator
def test_a_save_that_a_fold_did_not_list_rings_for_the_next(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C1: the note is taken away before the listing, so that no save trusts a task that is past."""
    with played(services, [Numbers]) as (world, views):
        behind = saved_while_listed(world, views, monkeypatch)
        world.settle()

        assert len(behind) == 1
        assert counts(world, Numbers, views) == {"all": 1, "other": 1}


@one_emulator
def test_a_note_that_is_not_taken_away_is_found(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without that, the save rings for nobody."""
    if services.memcached is None:
        pytest.skip("notes are kept in memcached")
    monkeypatch.setattr(Bell, "acknowledge", lambda *args: None)
    with played(services, [Numbers]) as (world, views):
        assert saved_while_listed(world, views, monkeypatch) == []


@one_emulator
def test_a_ring_whose_task_is_lost_is_made_good_by_the_sweep(services: Services) -> None:
    """C1: its updates get tasks of their own."""
    with played(services, [Numbers]) as (world, views):
        views.save(world.clients, number("a", 1))
        world.engine.reset()
        world.clock.sleep(20)
        in_a_thread(world.sweep)
        world.settle()

        assert counts(world, Numbers, views) == {"all": 1}


@one_emulator
@pytest.mark.parametrize("later_s", [-60, 60])
def test_a_note_whose_task_never_came_is_ignored_after_some_seconds(
    services: Services, later_s: int
) -> None:
    """C1: its process died between the two, or its clock was wrong."""
    with played(services, [Numbers]) as (world, views):
        views.save(world.clients, number("a", 1))
        world.engine.reset()
        later = replace(world.clients, clock=WrongClock(world.clock, later_s))  # type: ignore[arg-type]
        views.save(later, number("b", 1))
        world.deliver_due()

        assert counts(world, Numbers, views) == {"all": 2}


@one_emulator
def test_a_save_of_very_many_rows_rings_once(services: Services) -> None:
    """It does not ask for the time of each of them."""
    with played(services, [Numbers]) as (world, views):
        rows = range(MAX_ASKED + 5)
        views.save(world.clients, *[number(f"s{n}", 1, row=n) for n in rows])

        assert len(folds_of(world)) == 1


# Turns of the folds of a process


def test_of_many_folds_at_once_one_works_and_one_waits() -> None:
    """C1: those that end at once leave their updates to the one that waits."""
    works, goes_on = threading.Event(), threading.Event()
    clients = SimpleNamespace(clock=SimpleNamespace(sleep=lambda seconds: goes_on.wait(30)))
    turns = FoldTurns()
    left: list[str] = []
    ran: list[str] = []

    def fold(name: str) -> None:
        with turns.take(clients, "t", lambda: left.append(name)) as is_my_turn:  # type: ignore[arg-type]
            if is_my_turn:
                ran.append(name)
                works.set()
                assert goes_on.wait(30)

    threads = [threading.Thread(target=fold, args=[name]) for name in ("works", "waits")]
    threads[0].start()
    assert works.wait(30)
    threads[1].start()
    waiting = turns._turns["t"].waiting
    while not waiting.locked():
        time.sleep(0.001)
    for name in ("third", "fourth"):
        fold(name)
    before = list(ran)
    goes_on.set()
    for thread in threads:
        thread.join()

    assert (before, ran, left) == (["works"], ["works", "waits"], ["third", "fourth"])


def test_a_fold_stays_when_the_one_that_waited_begins_as_it_leaves() -> None:
    """C1: that one may list before this one's note is gone."""
    clients = SimpleNamespace(clock=SimpleNamespace(sleep=lambda seconds: None))
    turns = FoldTurns()
    with turns.take(clients, "t", lambda: None):  # type: ignore[arg-type]
        waiting = turns._turns["t"].waiting
        waiting.acquire()
        with turns.take(clients, "t", waiting.release) as is_my_turn:  # type: ignore[arg-type]
            assert is_my_turn


# More than one task takes


@one_emulator
@pytest.mark.parametrize("rows", [1, 3, 20])
def test_what_is_more_than_a_listing_is_folded_too(
    services: Services, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """C1: also if one row alone fills a listing."""
    monkeypatch.setattr(table_fold, "MAX_LISTED", 4)
    monkeypatch.setattr(table_fold, "MAX_LISTINGS", 2)
    monkeypatch.setattr(table_fold, "MAX_UPDATES", 3)
    monkeypatch.setattr(table_fold, "MAX_ROWS", 2)
    with played(services, [Numbers]) as (world, views):
        for n in range(20):
            views.save(world.clients, number(f"s{n}", 1, row=n % rows))
        world.settle()

        assert tasks_here() == 0
        assert sum(counts(world, Numbers, views).values()) == 20
        assert differences(views) == []


# Poison


def full(n: int) -> Number:
    return number(f"s{n}", None, **{f"m{n}_{i}": 1 for i in range(50)})


@one_emulator
def test_an_update_that_no_row_can_hold_is_parted_from_the_others(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C1: the others of its fold are applied; it is parked, and later folds leave it alone."""
    parts: list[int] = []
    sound = table_fold._Fold._fold_part

    def fold_part(self: Any, part: Any) -> Any:
        parts.append(len(part))
        return sound(self, part)

    with played(services, [Numbers]) as (world, views):
        views.save(world.clients, *[full(n) for n in range(4)])
        world.settle()
        for n in range(7):
            views.save(world.clients, number(f"good{n}", None, row=n))
        views.save(world.clients, full(4))
        world.settle()
        waiting, dead = tasks_here(), DeadTask.query().fetch()
        monkeypatch.setattr(table_fold._Fold, "_fold_part", fold_part)
        views.save(world.clients, number("later", None, row=9))
        world.settle()

        assert (waiting, tasks_here()) == (1, 1)
        assert [task.path for task in dead] == ["/tasks/materialized-views/played/apply"]
        assert counts(world, Numbers, views) == {"all": 4, 9: 1, **dict.fromkeys(range(7), 1)}
        if services.memcached is not None:
            assert parts == [1]


@one_emulator
def test_an_outbox_row_that_this_version_cannot_read_stops_no_other(services: Services) -> None:
    """C1: it has a task of its own, which another version may read."""
    with played(services, [Numbers]) as (world, views):
        for name in ("good", "bad"):
            views.save(world.clients, number(name, 1, row=name))
        (bad,) = [row for row in OutboxTask.query().fetch() if row.tag.endswith('"bad"')]
        bad.body = '{"later": 1}'
        bad.put()
        world.settle()

        assert counts(world, Numbers, views) == {"good": 1}
        assert [row.key for row in OutboxTask.query().fetch()] == [bad.key]


class TimedOut(BaseException):
    """As packages have it that limit the time of a call."""


class Picky(View):
    """Rows of numbers, of which it refuses one."""

    source = Numbers
    error: type[BaseException] = ZeroDivisionError

    @classmethod
    def contributions(cls, row: Row) -> Contributions:  # type: ignore[override]
        if row.sum("n") == 7:
            raise cls.error
        return {"sum": {"n": row.sum("n")}}


@one_emulator
@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit, TimedOut])
def test_a_row_that_a_view_downstream_refuses_stops_no_row_of_its_fold(
    services: Services, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """C1: the rows are applied one by one then, and this one has a task that is parked."""
    monkeypatch.setattr(Picky, "error", error)
    with played(services, [Numbers, Picky]) as (world, views):
        for n in (8, 7, 9):
            views.save(world.clients, number(f"s{n}", n, row=n))
        world.settle()
        (dead,) = DeadTask.query().fetch()

        assert dead.path == "/tasks/materialized-views/played/propagate"
        assert counts(world, Numbers, views) == {7: 1, 8: 1, 9: 1}
        assert counts(world, Picky, views) == {"sum": 2}
        assert tasks_here() == 0


def test_a_fold_applies_what_tasks_of_their_own_apply_too(here: World) -> None:
    """C3: each of both finds the other's work done."""
    SCHOOL.save(here.clients, pupil("ada", 1, 1, "x"))
    stored = [SCHOOL.task.read(row.body.encode()) for row in OutboxTask.query().fetch()]
    for update in stored[:1]:
        SCHOOL.apply(here.clients, update)
    here.settle()
    for update in stored:
        SCHOOL.apply(here.clients, update)
    SCHOOL.delete(here.clients, ndb.Key(Pupil, "ada"))
    here.settle()

    assert differences() == []
    assert counts(here) == {}
