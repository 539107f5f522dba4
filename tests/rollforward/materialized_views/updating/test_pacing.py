"""Pacing: updates of a busy row are spread over time."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from rollforward.materialized_views import Contributions, View, ViewGroup, ViewMaintenance
from rollforward.materialized_views.updating import apply
from rollforward.materialized_views.updating.pacing import MAX_PACED, TablePace
from rollforward.runtime import Clients
from rollforward.runtime.advisory_lock import advisory_lock
from rollforward.runtime.cache import NoCache
from tests.infra.world import Services, World
from tests.rollforward.materialized_views.harness import (
    NOON,
    Number,
    WrongClock,
    by_own_tasks,
    counts,
    deploy,
    number,
    one_emulator,
    played,
)
from tests.rollforward.materialized_views.student_views import differences


class Paced(View):
    """One row that takes an update a second, after three."""

    name = "paced"
    source = Number
    row_rate = 1.0
    row_burst = 3

    @staticmethod
    def contributions(number: Number) -> Contributions:
        return {"all": number.said}


def writes(world: World, views: ViewGroup, seconds: int, noted: list[float]) -> list[int]:
    """Save and deliver ten times a second; return how often the row was written in each second."""
    counts = []
    for second in range(seconds):
        before = len(noted)
        for tenth in range(10):
            views.save(world.clients, number(f"s{second}.{tenth}", 1))
            world.deliver_due()
            world.clock.sleep(0.1)
        counts.append(len(noted) - before)
    return counts


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The writes of rows, in order."""
    rows: list[float] = []
    sound = apply.put_row

    def put_row(view: Any, row: Any, changed: Any) -> None:
        rows.append(row.key.id())
        sound(view, row, changed)

    monkeypatch.setattr(apply, "put_row", put_row)
    return rows


@one_emulator
def test_a_row_is_written_at_once_while_it_is_idle_and_once_a_second_while_it_is_busy(
    services: Services, noted: list[float]
) -> None:
    """C1: what comes faster gathers, and none is lost."""
    if services.memcached is None:
        pytest.skip("turns are counted in memcached")
    with played(services, [Paced]) as (world, views):
        busy = writes(world, views, 6, noted)
        world.settle()
        world.clock.sleep(10)
        before = len(noted)
        views.save(world.clients, number("later", 1))
        world.deliver_due()

        assert busy[0] >= 4  # The burst.
        assert all(count <= 2 for count in busy[1:])
        assert 4 <= sum(busy[1:]) <= 7
        assert len(noted) == before + 1
        assert counts(world, Paced, views) == {"all": 61}
        assert differences(views) == []


@one_emulator
@pytest.mark.parametrize("ahead_s", [-36_000, 36_000, 10**9], ids=["behind", "ahead", "years"])
def test_turns_that_a_wrong_clock_took_hold_nobody_up(
    services: Services, noted: list[float], ahead_s: int
) -> None:
    """C1: a process whose clock is right again gives turns from its own time on."""
    if services.memcached is None:
        pytest.skip("turns are counted in memcached")
    with played(services, [Paced]) as (world, views):
        right = world.clients
        wrong = replace(right, clock=WrongClock(world.clock, ahead_s))  # type: ignore[arg-type]
        pace = TablePace.read(wrong, Paced, "paced.1.1")
        for _ in range(20):
            pace.written.clear()
            pace.note_write('"all"')
        pace.store(wrong)

        assert writes(world, views, 1, noted)[0] >= 4


@pytest.mark.parametrize(
    "value", [b"", b"\xff", b"[]", b"7", b'{"\\"all\\"": "x"}', b'{"\\"all\\"": 1e300}', b"{"]
)
def test_what_memcached_makes_up_holds_nobody_up(value: bytes) -> None:
    """C1: it is a hint, and may be anything."""
    clients = SimpleNamespace(
        clock=SimpleNamespace(now=lambda: NOON.replace(tzinfo=datetime.UTC)),
        cache=SimpleNamespace(get=lambda key: value),
    )

    assert TablePace.read(clients, Paced, "paced.1.1").due_at('"all"') is None  # type: ignore[arg-type]


def test_turns_are_kept_for_a_bounded_number_of_rows() -> None:
    """The value in memcached does not grow with the table."""
    pace = TablePace("x", interval_ms=1_000, burst_ms=0, now_ms=0, arrivals={})

    for row in range(MAX_PACED + 5):
        pace.note_write(str(row))

    assert len(pace.arrivals) == MAX_PACED


@one_emulator
@pytest.mark.parametrize("cache", ["away", "flushed"])
def test_without_memcached_updates_come_at_once_and_totals_stay_exact(
    services: Services, noted: list[float], cache: str
) -> None:
    """C1: what memcached says decides when, and never what."""
    with played(services, [Paced]) as (world, views):
        if cache == "away":
            world.clients = replace(world.clients, cache=NoCache())
            deploy(world, ViewMaintenance(views, queue="default"))
        for n in range(7):
            views.save(world.clients, number(f"s{n}", 1))
            if cache == "flushed":
                world.flush()
            world.deliver_due()

        assert len(noted) == 7
        world.settle()
        assert counts(world, Paced, views) == {"all": 7}


class Spread(View):
    """A row for each number."""

    name = "spread"
    source = Number

    @staticmethod
    def contributions(number: Number) -> Contributions:
        return {str(number.said["n"]): {}}


@one_emulator
def test_updates_of_one_row_are_applied_one_after_the_other(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C1: where the store locks, those that come together would wait for each other's time-outs."""
    locks: list[str] = []

    @contextmanager
    def noted(clients: Clients, name: str) -> Iterator[None]:
        before = len(world.plan.calls)
        with advisory_lock(clients, name), world.plan.watched():
            yield
        calls = world.plan.calls[before:]
        assert (calls[0], calls[-1]) == ("BeginTransaction", "Commit")
        locks.append(name)

    monkeypatch.setattr(apply, "advisory_lock", noted)
    by_own_tasks(monkeypatch)
    with played(services, [Paced, Spread]) as (world, views):
        for name, said in (("a", 1), ("b", 1), ("c", 2)):
            views.save(world.clients, number(name, said))
        world.settle()
        assert counts(world, Spread, views) == {"1": 2, "2": 1}

    assert sorted(Counter(locks).values()) == [1, 2, 3]
