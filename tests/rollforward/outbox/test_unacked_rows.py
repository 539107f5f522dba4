"""Rows that stay until their task's own transaction acks them."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from rollforward import outbox
from rollforward.datastore.transactions import transact
from rollforward.outbox.entities import OutboxTask, rows_of_tag, rows_of_tags
from rollforward.outbox.relay import RelayResult
from rollforward.outbox.sweep import sweep
from rollforward.runtime import Clients
from rollforward.tasks.errors import BadArgumentsError
from tests.infra.runs.sampling import one_emulator
from tests.infra.world import World
from tests.rollforward.outbox.order_tasks import (
    Order,
    Settle,
    dying,
    ran,
    rows_here,
    settle,
    waiting,
)
from tests.rollforward.outbox.rows import SWEEP as SWEEPING
from tests.rollforward.outbox.rows import away, deliver_drains, enqueue_unacked, sent, spend

SWEEP = "/cron/outbox/sweep"

# A row with a time of its own


@one_emulator
@pytest.mark.parametrize(
    "at",
    [datetime.datetime(2030, 1, 1), datetime.datetime(2090, 1, 1, tzinfo=datetime.UTC)],  # noqa: DTZ001
    ids=["naive", "far"],
)
def test_an_unacked_row_for_a_time_that_cannot_be_meant_is_refused(
    watched_world: World, at: datetime.datetime
) -> None:
    """Cloud Tasks accepts no task beyond 30 days, so the caller gets the error at once."""
    with pytest.raises(BadArgumentsError):
        transact(lambda: enqueue_unacked_until(watched_world.clients, at))

    assert rows_here() == []


# Unacked rows


def test_an_unacked_row_waits_for_its_task_and_goes_with_its_effect(world: World) -> None:
    """The row can be found by its tag until the commit that does the work."""
    with world.context():
        transact(lambda: enqueue_unacked(world.clients))
        rows_before = [row.key.id() for row in rows_of_tag("settle/o").fetch()]
        within = rows_of_tags("settle/").fetch()
        elsewhere = rows_of_tags("other/").fetch()
    world.settle()

    assert len(rows_before) == len(within) == 1
    assert elsewhere == []
    assert sent(world, "fan-out") == []
    assert ran(world, "o") == Counter(["settle"])
    assert waiting(world) == []


def test_an_unacked_row_is_looked_at_ever_more_rarely(world: World) -> None:
    """A slow queue is not flooded: each minute for ten, then at 20, 40 and 60, then each hour."""
    with world.context():
        transact(lambda: enqueue_unacked(world.clients))

    asked = []
    for minute in range(1, 130):
        world.clock.sleep(60)
        if spend(world).tasks:
            asked.append(minute)

    assert asked == [*range(1, 11), 20, 40, 60, 120]
    assert len(sent(world, "fan-out")) == 4, "one at first, one from ten minutes on, one an hour"


@one_emulator
def test_unacked_rows_that_are_handed_over_are_looked_at_as_rarely(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A walk counts from the round before its own: no row is due in it that is not in the sweep."""
    looked, minutes = list[tuple[int, int]](), list[int]()
    relay = SWEEPING.relay

    def look(clients: Clients, rows: Sequence[OutboxTask]) -> RelayResult:
        looked.append((minutes[-1], len(rows)))
        return relay(clients, rows)  # type: ignore[no-any-return]

    def enqueue_three() -> None:
        for _ in range(3):
            enqueue_unacked(world.clients)

    with world.context():
        transact(enqueue_three)
    monkeypatch.setattr(SWEEPING, "MAX_PER_CALL", 1)
    monkeypatch.setattr(SWEEPING, "relay", look)
    world.clock.sleep(17 * 60)
    for minute in range(18, 23):
        minutes.append(minute)
        world.clock.sleep(60)
        spend(world)
        deliver_drains(world)

    # The first sweep that there ever was, and the step at twenty minutes.
    assert {at for at, _ in looked} == {18, 20}
    assert sum(rows for at, rows in looked if at == 20) >= 3


@pytest.mark.parametrize("away_s", [780, 25 * 60, 90 * 60, 24 * 3600])
def test_an_unacked_row_is_created_by_the_first_sweep_after_a_pause(
    world: World, away_s: float
) -> None:
    """B5: after minutes, hours or a day without a sweep the first one wakes pending rows."""
    with world.context():
        transact(lambda: enqueue_unacked(dying(world)))
    spend(world)

    world.clock.sleep(away_s)
    world.sweep()
    world.settle()

    assert ran(world, "o") == Counter(["settle"])
    assert waiting(world) == []


def test_an_unacked_row_is_woken_as_soon_as_cloud_tasks_is_back(world: World) -> None:
    """B5: sweeps without an answer from Cloud Tasks do not count as wakes."""
    clients = replace(dying(world), tasks=away(world))
    with world.context():
        transact(lambda: enqueue_unacked(clients))
        for _ in range(45):
            world.clock.sleep(60)
            sweep(clients)

    world.clock.sleep(60)
    world.sweep()
    world.settle()

    assert ran(world, "o") == Counter(["settle"])


def test_an_unacked_row_whose_task_was_purged_is_created_anew(world: World) -> None:
    """B1: after a purge of the queue there is a task again ten minutes after the commit."""
    with world.context():
        transact(lambda: enqueue_unacked(world.clients))
    world.engine.purge_queue(world.engine.place.queue_name("fan-out"))

    for _ in range(10):
        assert sent(world, "fan-out") == []
        world.clock.sleep(60)
        world.sweep()
    world.settle()

    assert ran(world, "o") == Counter(["settle"])
    assert waiting(world) == []


def enqueue_unacked_until(clients: Clients, at: datetime.datetime) -> None:
    Order(id="o").put()
    outbox.enqueue_with_ack(clients, settle, lambda row: Settle("o", row), tag="settle/o", at=at)


@one_emulator
@pytest.mark.parametrize("is_purged", [False, True], ids=["waits", "purged"])
def test_an_unacked_row_is_woken_once_and_not_before_its_time(
    world: World, is_purged: bool
) -> None:
    """B1: a scheduled task exists once; if it was lost, it is created again after its time."""
    at = world.clock.now() + datetime.timedelta(minutes=25)
    with world.context():
        transact(lambda: enqueue_unacked_until(world.clients, at))
    if is_purged:
        world.engine.purge_queue(world.engine.place.queue_name("fan-out"))

    rows = []
    for _ in range(24):
        world.clock.sleep(60)
        world.sweep(SWEEP)
        rows.append(len(sent(world, "fan-out")))
    for _ in range(20):
        world.clock.sleep(60)
        world.sweep(SWEEP)
        world.deliver_due()

    assert set(rows) == {0 if is_purged else 1}
    assert ran(world, "o") == Counter(["settle"])
    assert waiting(world) == []


def test_an_unacked_row_that_has_its_task_is_not_counted_as_swept(world: World) -> None:
    """The sweep asks again whether the task exists; that nothing was created, it says."""
    world.flush()
    with world.context():
        transact(lambda: enqueue_unacked(world.clients))
        world.clock.sleep(60)
        swept = sweep(world.clients)
        world.clock.sleep(60)
        depth = outbox.depth(world.clients)

    assert swept.created == 0
    assert (depth.waiting, depth.relayed_per_s) == (1, 0)


def test_an_unacked_row_whose_task_was_never_created_is_swept(world: World) -> None:
    """B1, B5: the process died after its commit."""
    with world.context():
        transact(lambda: enqueue_unacked(dying(world)))

    world.clock.sleep(60)
    world.sweep()
    world.settle()

    assert ran(world, "o") == Counter(["settle"])
