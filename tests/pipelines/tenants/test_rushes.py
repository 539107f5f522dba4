"""Rushes: a flood and those behind it, in lanes and in one line, and what each rule promises."""

from __future__ import annotations

import pytest

from models.tenants import TenantRush, TenantTally, rush_key, tally_key
from pipelines.tenants import rushes
from pipelines.tenants.progress import RushProgress, TenantLine, progress
from pipelines.tenants.rushes import RushForm
from rollforward.lanes.rows.entities import LaneState, LaneTask
from tests.infra.world import World

pytestmark = pytest.mark.parametrize("services", ["datastore"], indirect=True)

RUSH, OTHER = "f" * 32, "e" * 32
FORM = {
    **{"way": "lanes", "flood": 9, "behind": 2, "tasks": 3, "chosen": "B", "rule": "none"},
    **{"pace": "fast", "dead": 0},
}


def begin(world: World, rush: str = RUSH, **asked: object) -> None:
    with world.context():
        form = RushForm(**{**FORM, **asked})  # type: ignore[arg-type]
        assert rushes.begin(world.clients, rush, form)


def seen(world: World, rush: str = RUSH) -> RushProgress:
    with world.context():
        row: TenantRush = rush_key(rush).get()
        return progress(world.clients, row)


@pytest.mark.parametrize("way", ["lanes", "line"])
def test_every_task_runs_once_and_all_adds_up(world: World, way: str) -> None:
    begin(world, way=way)
    before = seen(world)
    assert (before.unsent, before.waiting, before.done, before.adds_up) == (15, 0, 0, True)

    world.settle()

    after = seen(world)
    assert [line.done for line in after.lines] == [9, 3, 3]
    assert (after.waiting, after.repeats, after.is_over, after.adds_up) == (0, 0, True, True)
    with world.context():
        assert LaneTask.query().fetch() == []


@pytest.mark.parametrize("rule", sorted(rushes.RULES))
def test_the_chosen_tenant_has_its_rule(world: World, rule: str) -> None:
    begin(world, rule=rule, tasks=6)
    world.settle()

    line = seen(world).lines[1]

    assert (line.rule, line.done) == (rule, 6)
    if rule == "order":
        assert line.out_of_order == 0
    if rule in ("order", "rate"):
        assert line.at_a_time == 1
    if rule == "rate":
        assert line.per_s is not None
        assert line.per_s <= rushes.PER_S * 1.01


def test_a_task_that_can_never_work_is_dead_and_the_next_one_passes(world: World) -> None:
    begin(world, rule="order", dead=1)
    world.settle()

    after = seen(world)

    assert [line.dead for line in after.lines] == [0, 1, 0]
    assert (after.lines[1].done, after.is_over, after.adds_up) == (2, True, True)


def test_a_rush_begins_once_and_its_flood_comes_once(world: World) -> None:
    begin(world)
    with world.context():
        assert not rushes.begin(world.clients, RUSH, RushForm(**FORM))  # type: ignore[arg-type]
        rushes.flood.enqueue(world.clients, rushes.flood.bind(RUSH, 0))
    world.settle()
    assert seen(world).repeats == 0


def test_the_newest_rush_of_the_other_way_stands_beside_it(world: World) -> None:
    begin(world, OTHER, way="line", flood=12)
    world.settle()
    begin(world)
    world.settle()
    other = seen(world).other
    assert other is not None
    assert (other.id, other.flood) == (OTHER, 12)


def test_old_rushes_make_room(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rushes, "MAX_RUSHES", 1)
    begin(world, OTHER, flood=1, behind=1, tasks=1)
    world.settle()
    begin(world)
    with world.context():
        assert rush_key(OTHER).get() is None
        assert tally_key(OTHER, "A", 0).get() is None
        assert LaneState.query().fetch() == []


def line(spans: dict[int, tuple[float, float]], rule: str = "order") -> TenantLine:
    return TenantLine("B", rule, 4, spans, 0, 0, 1.0, None)


@pytest.mark.parametrize(
    ("spans", "out_of_order", "at_a_time"),
    [
        ({}, 0, 0),
        ({0: (1.0, 2.0), 1: (2.0, 3.0), 2: (3.0, 3.5)}, 0, 1),
        ({0: (1.0, 2.0), 1: (1.5, 3.0), 2: (1.7, 3.5)}, 2, 3),
        ({0: (2.0, 3.0), 1: (1.0, 2.0)}, 1, 1),
    ],
)
def test_a_rule_is_judged_by_when_tasks_were_at_work(
    world: World, spans: dict[int, tuple[float, float]], out_of_order: int, at_a_time: int
) -> None:
    assert line(spans).out_of_order == out_of_order
    assert line(spans).at_a_time == at_a_time


def test_a_note_is_taken_once(world: World) -> None:
    tally = TenantTally(times=b"", repeats=0)
    tally.note(2, 5, 9)
    tally.note(2, 50, 90)
    tally.note(0, 0, 0)
    assert tally.done() == {0: (0, 0), 2: (5, 9)}
    assert tally.repeats == 1
