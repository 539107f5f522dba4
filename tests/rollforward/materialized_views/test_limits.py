"""What no row, no marker and no task can hold."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from pipelines.registry import APP
from rollforward.materialized_views import BadContributionError, ConsistencyToken
from rollforward.materialized_views.entities import SourceMarker
from rollforward.materialized_views.rows import checked, row_text
from rollforward.materialized_views.updates import Update, last_updates, parts_of
from rollforward.materialized_views.updating import fold
from rollforward.outbox.entities import OutboxTask
from rollforward.tasks.dead_task_entities import DeadTask
from rollforward.tasks.dead_tasks import ReplayDeadTask
from rollforward.tasks.declaration import MAX_BODY_BYTES
from tests.infra.world import Services
from tests.rollforward.materialized_views.harness import (
    Number,
    Numbers,
    Wide,
    as_work_items,
    counts,
    number,
    one_emulator,
    played,
    tasks_here,
)
from tests.rollforward.materialized_views.student_views import differences


@pytest.mark.parametrize(
    "contributions",
    [
        {1.5: {}},
        {None: {}},
        {True: {}},
        {10**5_000: {}},
        {(): {}},
        {("a", None): {}},
        {("a", ("b",)): {}},
        {"x" * 1_001: {}},
        {"é" * 501: {}},
        {"\ud800": {}},
        {n: {} for n in range(201)},
        {"r": {f"m{n}": 1 for n in range(51)}},
        {"r": {"m": None}},
        {"r": {"m": True}},
        {"r": {"m": [1]}},
        {"r": {"m": math.nan}},
        {"r": {"m": math.inf}},
        {"r": {"m": 10**400}},
        {"r": {"m": 10**5_000}},
        {"r": {"m": "x" * 1_001}},
        {"r": {"m": "\udfff"}},
        {"r": {"n": 2**53 + 1}},
        {"r": {"n": -(2**53) - 1}},
        {"r": {1: 1}},
        {"r": {"\ud800": 1}},
        {"r": {"x" * 101: 1}},
        {"r": {"x" * 90_000: 1}},
        {"r": {f"m{n}": "é" * 1_000 for n in range(50)}},
    ],
)
def test_what_no_row_can_hold_is_refused(contributions: Any) -> None:
    """Each kind of it, before anything is written."""
    with pytest.raises(BadContributionError):
        checked(contributions, ["n"])


def test_what_a_row_can_hold_is_taken() -> None:
    """Up to the limits themselves."""
    full = {f"m{n}": "x" * 1_000 for n in range(50)}

    assert checked({"r": full}, [])['"r"'] == full
    assert checked({"r": {"x" * 100: 1}}, [])
    assert len(checked({n: {} for n in range(200)}, [])) == 200
    assert len(row_text("x" * 998).encode()) == 1_000
    assert checked({"r": {"n": -(2**53), "m": 10**140}}, ["n"])


def test_a_bad_contribution_saves_nothing(services: Services) -> None:
    """C1: not even the good sources beside it."""
    with played(services, [Numbers]) as (world, views):
        with pytest.raises(BadContributionError):
            views.save(world.clients, number("good", 1), number("bad", m=[1]))

        kinds = (Number, SourceMarker, OutboxTask)
        assert [kind.query().fetch() for kind in kinds] == [[], [], []]


@one_emulator
@pytest.mark.parametrize("is_of_old", [False, True], ids=["folds", "work items"])
@pytest.mark.parametrize("is_alone", [True, False], ids=["alone", "with another one"])
def test_an_update_that_is_parked_is_seen_by_tokens_and_freshness(
    services: Services, monkeypatch: pytest.MonkeyPatch, is_of_old: bool, is_alone: bool
) -> None:
    """C1: its row lacks a change until it is replayed, whichever way it travelled."""
    if is_of_old:
        as_work_items(monkeypatch, [Numbers])
    with played(services, [Numbers]) as (world, views):
        sources = [number(f"s{n}", None, **{f"m{n}_{i}": 1 for i in range(50)}) for n in range(5)]
        views.save(world.clients, *sources[:4])
        world.settle()
        beside = [] if is_alone else [number("small", None)]
        token = ConsistencyToken.parse(str(views.save(world.clients, sources[4], *beside)))

        def seen() -> tuple[bool, int, int, bool, bool]:
            reading = views.read(world.clients, Numbers, at_least=token, timeout_s=0)
            of_row = views.freshness(world.clients, Numbers, "all")
            waits = views.is_waiting(Numbers)
            is_old = reading.freshness.oldest_s > 0
            return reading.is_satisfied, reading.freshness.waiting, of_row.waiting, is_old, waits

        for _ in range(5):
            world.settle(revives=True)
            world.clock.sleep(3600)
            world.sweep()
        dead = DeadTask.query().fetch()
        parked = seen()
        ((apply, age_s),) = views.waiting(world.clients, Numbers)
        views.delete(world.clients, sources[0].key)
        world.settle()
        APP.tasks["/tasks/dead/replay"].enqueue(world.clients, ReplayDeadTask(dead[0].key.id()))
        world.settle()

        assert len(dead) == 1
        assert parked == (False, 1, 1, True, True)
        assert (apply.row, age_s > 60) == ('"all"', True)
        assert seen() == (True, 0, 0, False, False)
        assert differences(views) == []


def test_an_update_that_no_row_has_room_for_is_parked_and_can_be_replayed(
    services: Services,
) -> None:
    """C1: sources may have measures of their own; the row can be read, and the rest goes on."""
    with played(services, [Numbers]) as (world, views):
        sources = [number(f"s{n}", None, **{f"m{n}_{i}": 1 for i in range(50)}) for n in range(5)]
        views.save(world.clients, *sources[:4])
        world.settle()
        views.save(world.clients, sources[4])
        world.settle()
        (dead,) = DeadTask.query().fetch()
        full = counts(world, Numbers, views)
        still_waits = views.is_waiting(Numbers)

        views.delete(world.clients, sources[0].key)
        world.settle()
        APP.tasks["/tasks/dead/replay"].enqueue(world.clients, ReplayDeadTask(dead.key.id()))
        world.settle()

        assert 'row "all" of numbers.1.1 would have 250 measures, at most 200' in dead.reason
        assert (full, still_waits) == ({"all": 4}, True)
        assert counts(world, Numbers, views) == {"all": 4}
        assert differences(views) == []


@one_emulator
def test_a_row_above_its_limit_takes_what_does_not_make_it_larger(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C1: a version with a higher limit may have filled it; sources change and leave all the same.

    Below the limit it has that for a limit again.
    """

    def waits() -> bool:
        world.settle()
        return views.is_waiting(Numbers)

    with played(services, [Numbers]) as (world, views):
        sources = [number(f"s{n}", None, **{f"m{n}_{i}": 1 for i in range(50)}) for n in range(5)]
        monkeypatch.setattr(fold, "MAX_SUMS", 250)
        views.save(world.clients, *sources)
        assert not waits()
        monkeypatch.setattr(fold, "MAX_SUMS", 200)

        views.save(world.clients, number("s0", None, **{f"other_{i}": 1 for i in range(50)}))
        changed = waits(), counts(world, Numbers, views), differences(views)
        views.delete(world.clients, sources[1].key)
        left = waits(), counts(world, Numbers, views), differences(views)
        views.save(world.clients, number("one more", 7))
        grown = waits(), counts(world, Numbers, views)

    assert changed == (False, {"all": 5}, [])
    assert left == (False, {"all": 4}, [])
    assert grown == (True, {"all": 4})


@one_emulator
def test_a_source_that_its_marker_cannot_hold_is_refused(services: Services) -> None:
    """Datastore takes 1 MiB an entity: this says so before, and names the reason."""
    texts = {f"t{n}": "x" * 900 for n in range(49)}
    with played(services, [Wide]) as (world, views):
        with pytest.raises(BadContributionError, match="more than its marker"):
            views.save(world.clients, number("s", None, {str(r): 1 for r in range(200)}, **texts))
        assert Number.query().fetch() == []

        views.save(world.clients, number("s", None, {str(r): 1_000 for r in range(200)}))
        assert tasks_here() == 200


@one_emulator
def test_many_long_updates_of_one_row_travel_in_several_tasks(services: Services) -> None:
    """C1: a task's body has a limit, and a batch of saves has another one."""
    texts = {f"t{n}": "é" * 900 for n in range(10)}
    with played(services, [Wide]) as (world, views):
        views.save(world.clients, *[number(f"s{n}", None, {"all": n}, **texts) for n in range(12)])
        rows = OutboxTask.query().fetch()
        assert len(rows) > 1
        assert max(len(row.body.encode()) for row in rows) < MAX_BODY_BYTES
        world.settle()

        assert counts(world, Wide, views) == {"all": 12}
        assert differences(views) == []


def test_of_a_sources_updates_the_last_one_counts_in_whatever_order_they_come() -> None:
    """C1: if one of them says that the row does not know the source yet, that is kept."""
    first, second, third = (
        Update("s", sequence, {"n": sequence}, is_first=sequence == 1) for sequence in (1, 2, 3)
    )
    for updates in itertools.permutations([first, second, third]):
        [newest] = last_updates(updates).values()
        assert (newest.sequence, newest.measures) == (3, {"n": 3})
    assert last_updates([first, third])["s"].is_first
    assert not last_updates([second, third])["s"].is_first


def test_updates_are_cut_by_number_and_by_size() -> None:
    """In their order, and none is left out."""
    small = [Update("Pupil:x", n, {}, is_first=True) for n in range(250)]
    large = [Update("Pupil:x", n, {"m": "x" * 40_000}, is_first=True) for n in range(5)]

    assert [len(part) for part in parts_of(small)] == [100, 100, 50]
    assert [len(part) for part in parts_of(large)] == [2, 2, 1]
    assert [update for part in parts_of(large) for update in part] == large
    assert list(parts_of([])) == []


@one_emulator
def test_rows_that_fit_into_no_commit_together_are_written_in_several(services: Services) -> None:
    """C1: rows of 200 long measures each, whose updates are small enough for one fold."""
    rows = [f"r{number}" for number in range(45)]
    with played(services, [Numbers]) as (world, views):
        for letter in "abcd":
            said = {f"{letter}{number:02d}" + "m" * 90: 10**139 + number for number in range(50)}
            views.save(
                world.clients, *[Number(id=f"{letter}{row}", row=row, said=said) for row in rows]
            )
            world.settle()

        assert tasks_here() == 0
        assert counts(world, Numbers, views) == dict.fromkeys(rows, 4)
        assert DeadTask.query().fetch() == []
