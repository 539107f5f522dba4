"""The sweep of lanes: no key is too far away or swept for nothing, and no lane stops others."""

from __future__ import annotations

import datetime

import pytest
from google.cloud import ndb

from rollforward.lanes import sweep
from rollforward.lanes.rows.entities import (
    Claim,
    LaneState,
    LaneTask,
    id_at,
    place_of,
    state_key,
)
from rollforward.lanes.sweep import wake_stale
from tests.infra.world import World
from tests.rollforward.lanes.office import DESK, IN_ORDER, SHARED, SWEEP, send

WRONG_CLOCK = datetime.timedelta(hours=5)


def purge(world: World) -> None:
    """Lose all hints."""
    world.engine.purge_queue(world.engine.place.queue_name("default"))


def copies(world: World, keys: int, *, ahead: datetime.timedelta = datetime.timedelta()) -> None:
    """Let a task wait in each of many keys, without hints."""
    send(world.clients, SHARED, "first", 0)
    [row] = LaneTask.query().fetch()
    place = place_of(world.clients.clock.now() + ahead)
    ids = [id_at(f"test-shared|k{number:04}", place, "copy") for number in range(keys)]
    values = {**row.to_dict(), "body": '{"person":"k","text":"0"}'}
    ndb.put_multi([LaneTask(id=task_id, **{**values, "place": task_id}) for task_id in ids])
    purge(world)


def test_keys_far_behind_are_swept_although_memcached_forgets(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep that has lost its place begins anywhere, and goes round."""
    monkeypatch.setattr(sweep, "MAX_QUERIES", 2)
    monkeypatch.setattr(sweep, "PER_QUERY", 10)
    copies(world, 40)
    world.clock.sleep(61)
    for _ in range(60):
        world.clients.cache.delete(sweep._position(world.clients, SHARED))
        wake_stale(world.clients, [SHARED])
        world.settle()
        if not LaneTask.query().fetch(1, keys_only=True):
            break
    assert LaneTask.query().fetch(keys_only=True) == []


def test_a_key_that_has_just_been_swept_gets_no_second_hint(world: World) -> None:
    """Its queue may be slow; after two sweeps the hint counts as lost."""
    send(world.clients, IN_ORDER, "ada", 0)
    purge(world)
    world.clock.sleep(61)
    counts = []
    for _ in range(3):
        world.sweep(SWEEP)
        counts.append(len(world.live_tasks("default")))
        world.clock.sleep(60)
    assert counts == [1, 1, 2]


def test_a_lane_that_cannot_be_swept_stops_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object) -> None:
        raise ValueError("a row that cannot be read")

    monkeypatch.setattr(SHARED, "due_at", broken)
    copies(world, 1)
    send(world.clients, IN_ORDER, "ada", 0)
    purge(world)
    world.clock.sleep(61)
    with pytest.raises(ValueError, match="cannot be read"):
        wake_stale(world.clients, [SHARED, IN_ORDER])
    monkeypatch.undo()
    world.settle()
    assert DESK.of("ada") == ["0"]


def test_a_task_that_a_wrong_clock_has_placed_ahead_is_found(world: World) -> None:
    """Only `not_before` says that a task is for later."""
    copies(world, 1, ahead=WRONG_CLOCK)
    hinted = 0
    for _ in range(12):
        world.clock.sleep(60)
        hinted += wake_stale(world.clients, [SHARED])
    assert hinted > 1


@pytest.mark.parametrize("has_beaten", [True, False])
def test_a_claim_is_watched_only_if_it_has_not_beaten_since_the_last_sweep(
    world: World, *, has_beaten: bool
) -> None:
    """A check holds a thread of a worker for seconds."""
    send(world.clients, IN_ORDER, "ada", 0)
    purge(world)
    [row] = LaneTask.query().fetch()
    state = LaneState(key=state_key("test-in-order|ada"), stamp="s")
    for beats in (0, int(has_beaten)):
        state.set_claims([Claim("far", (row.key.id(),), beats=beats)])
        state.put()
        world.clock.sleep(120)
        purge(world)
        world.sweep(SWEEP)
    [hint] = world.live_tasks("default")
    body = world.engine.begin_attempt(hint.name).body
    assert (b'"is_check":true' in body) == (not has_beaten)
