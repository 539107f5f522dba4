"""Runs of every pattern: their numbers, and verbs that do what they say."""

from __future__ import annotations

import datetime
from dataclasses import replace
from typing import Any

import pytest

from pipelines.grades.views import BUILDS
from rollforward.batches import listing
from rollforward.registry import Registry
from rollforward.streams import PushedRecord, driver
from rollforward.tasks.runs import RunQuery, RunRefusedError, UnknownRunError
from tests.infra.world import Services, World
from tests.rollforward.batches.harness import NOTES, Mended, Note, note
from tests.rollforward.console.conftest import Desk
from tests.rollforward.fork_join.tally_queue import TALLIES, put
from tests.rollforward.pull_queues.harness import WORK, add, lease
from tests.rollforward.streams.harness import PACE, stream_world
from tests.rollforward.streams.test_bounds import BOMB, Bomb, one_emulator

KILLING = {"key": "b", "tags": ["e", "kill"]}


@pytest.fixture
def world(services: Services) -> World:
    return World(
        services,
        batches=[NOTES],
        fork_joins=[TALLIES],
        pull_queues=[WORK],
        streams=[BOMB],
    )


def details(world: World, pattern: str, run_id: str):  # type: ignore[no-untyped-def]
    with world.context():
        return world.registry.run(world.clients, pattern, run_id)


def control(world: World, pattern: str, run_id: str, verb: str) -> str:
    with world.context():
        return world.registry.control_run(world.clients, pattern, run_id, verb)  # type: ignore[arg-type]


def populate(world: World, batch_id: str, *labels: str) -> None:
    members = [(note, Note(label)) for label in labels]
    with world.context():
        NOTES.populate(world.clients, batch_id, members, seal=True)


def test_batches_are_runs_that_are_cancelled_and_run_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Newest first, with their members by outcome and the errors of those that failed."""
    populate(world, "old", "a", "bad b")
    world.settle()
    world.clock.sleep(1)
    populate(world, "new", "c")

    with world.context():
        new, old = world.registry.runs(world.clients, RunQuery(name="notes")).runs

    assert (new.id, new.state, new.verbs) == ("notes:new", "running", ("cancel",))
    assert (old.id, old.state, old.verbs) == ("notes:old", "finished", ("retry",))
    assert (old.counts["done"], old.counts["failed"], old.expected) == (1, 1, 2)
    [issue] = details(world, "batches", "notes:old").issues
    assert "bad b is rejected" in issue.reason
    assert [sorted(part.items) for part in details(world, "batches", "notes:old").parts] == [
        ["d", "f"]
    ]
    for most in (1, 0):  # There is one page.
        monkeypatch.setattr(listing, "MAX_PAGES", most)
        shown = details(world, "batches", "notes:old")
        assert (len(shown.parts), shown.has_all_parts) == (most, most > 0)

    with world.context():
        Mended(id="all").put()
    control(world, "batches", "notes:new", "cancel")
    control(world, "batches", "notes:old", "retry")
    world.settle()

    assert details(world, "batches", "notes:new").run.state == "cancelled"
    assert details(world, "batches", "notes:old").run.counts["done"] == 2
    with pytest.raises(RunRefusedError):
        control(world, "batches", "notes:old", "retry")
    with pytest.raises(RunRefusedError):
        control(world, "batches", "notes:old", "cancel")


def test_a_list_of_batches_has_each_once(world: World) -> None:
    """In pages, also those that were created at the same time, by state."""
    for number in range(5):
        populate(world, str(number), "a")
        if number % 2:
            world.clock.sleep(1)

    seen: list[str] = []
    started_before: datetime.datetime | None = None
    for _ in range(5):
        query = RunQuery(started_before, "running", limit=2)
        with world.context():
            listed = world.registry.runs(world.clients, query)
        seen += [run.id for run in listed.runs]
        started_before = listed.next_before
        if started_before is None:
            break

    assert sorted(seen) == [f"notes:{number}" for number in range(5)]


def test_a_fork_join_queue_shows_what_waits_and_what_is_parked(world: World) -> None:
    """Parked items are replayed as dead tasks."""
    put(world, "t", "a", "bad")
    world.settle()
    put(world, "u", "b")

    shown = details(world, "fork-join", TALLIES.settings.name)

    assert (shown.numbers["waiting_items"], shown.numbers["parked_items"]) == (1, 1)
    assert shown.numbers["oldest_at"] == pytest.approx(world.clock.time_s, abs=60)
    [issue] = shown.issues
    assert "bad" in issue.item
    assert shown.run.verbs == ("retry",)
    with pytest.raises(RunRefusedError, match="comes back by its dead task"):
        control(world, "fork-join", TALLIES.settings.name, "retry")


def test_a_pull_queue_shows_its_items_and_replays_its_dead_letters(world: World) -> None:
    """Those that wait, those that are leased, those that died."""
    with world.context():
        add(world, "poison")
        for _ in range(3):
            lease(world, lease_s=1)
            world.clock.sleep(2)
        assert lease(world) == []
        add(world, "a", "b")
        lease(world, limit=1)

    shown = details(world, "pull-queues", "work")
    assert (shown.numbers["waiting"], shown.numbers["leased_or_delayed"]) == (1, 1)
    assert (shown.numbers["dead_letters"], shown.run.verbs) == (1, ("retry",))
    assert "poison" in shown.issues[0].reason

    control(world, "pull-queues", "work", "retry")

    assert details(world, "pull-queues", "work").numbers["waiting"] == 2
    with pytest.raises(RunRefusedError):
        control(world, "pull-queues", "work", "retry")


def test_a_counter_shows_its_mode_and_its_shards(world: World) -> None:
    """Each declared counter has a page."""
    with world.context():
        names = [part.id for part in world.registry.named_parts() if part.pattern == "counters"]
    modes = {name: details(world, "counters", name).numbers["mode"] for name in names}

    assert set(modes.values()) == {"exact", "gathered", "in_memory"}


def test_a_view_is_rebuilt_and_shows_its_build(world: World) -> None:
    """Once at a time."""
    view_id = f"{BUILDS.views.group}/{next(iter(BUILDS.views.views))}"
    before = details(world, "materialized-views", view_id)

    assert control(world, "materialized-views", view_id, "rebuild") == view_id
    building = details(world, "materialized-views", view_id)
    with pytest.raises(RunRefusedError):
        control(world, "materialized-views", view_id, "rebuild")
    world.settle()
    for _ in range(3):
        world.sweep()
        world.settle()

    assert before.run.verbs == ("rebuild",)
    assert (building.run.verbs, building.numbers["phase"]) == ((), "backfill")
    assert (
        details(world, "materialized-views", view_id).numbers["live_table"]
        == (building.numbers["building"])
    )


def test_a_view_whose_build_was_cancelled_in_its_walk_is_rebuilt(world: World) -> None:
    """The build says that nothing goes on with it; a walk that is resumed goes on with it."""
    group, view = BUILDS.views.group, next(iter(BUILDS.views.views))
    view_id = f"{group}/{view}"
    control(world, "materialized-views", view_id, "rebuild")
    build_id = f"{group}/{details(world, 'materialized-views', view_id).numbers['building']}"
    [step] = details(world, "materialized-views", build_id).rows
    walk: Any = step["run"]

    control(world, "continuations", walk.id, "cancel")
    cancelled = [details(world, "materialized-views", each) for each in (view_id, build_id)]
    control(world, "continuations", walk.id, "resume")
    resumed = [details(world, "materialized-views", each) for each in (view_id, build_id)]
    control(world, "continuations", walk.id, "cancel")
    control(world, "materialized-views", view_id, "rebuild")
    again = details(world, "materialized-views", view_id).numbers["building"]
    world.settle()
    for _ in range(3):
        world.sweep()
        world.settle()

    assert [each.run.state for each in cancelled] == ["running", "cancelled"]
    assert cancelled[0].run.verbs == ("rebuild",)
    assert [each.run.state for each in resumed] == ["running", "running"]
    assert resumed[0].run.verbs == ()
    assert f"{group}/{again}" != build_id
    assert details(world, "materialized-views", view_id).numbers["live_table"] == again


@one_emulator
def test_a_pipeline_shows_its_computations_and_replays_its_dead_letters(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With watermarks, timers and counts; before its first record there are none."""
    monkeypatch.setattr(driver, "StreamConfig", lambda: replace(PACE, lease_ms=1_000))
    world = stream_world(services, BOMB)
    assert details(world, "streams", "bomb").rows == []
    with pytest.raises(RunRefusedError):
        control(world, "streams", "bomb", "retry")
    with world.context():
        BOMB.push(world.clients, "orders", [PushedRecord("b", KILLING, 1_000)])
        BOMB.close(world.clients, "orders")
    world.settle(rounds=400, patience_s=30, revives=True)

    shown = details(world, "streams", "bomb")
    [row] = shown.rows
    assert (row["computation"], row["records"], row["dead_so_far"]) == ("bomb", 1, 1)
    assert (row["watermark_at"], shown.run.verbs) == ("the end", ("retry",))
    assert "workers died" in shown.issues[0].reason

    monkeypatch.setattr(Bomb, "is_live", False)
    control(world, "streams", "bomb", "retry")
    world.settle()

    assert details(world, "streams", "bomb").issues == []


def test_a_part_that_nobody_declared_has_no_run(world: World) -> None:
    """Nor has a pattern without runs."""
    for pattern in (*world.registry.patterns, "nothing"):
        with pytest.raises(UnknownRunError):
            details(world, pattern, "nothing/at:all")


def test_every_standing_part_has_a_page(desk: Desk, world: World) -> None:
    """Its reads are bounded, and the page of its runs lists it."""
    from tests.rollforward.console.test_pages import Browser, reads_of

    wiring = desk.app.extensions["wiring"]
    desk.app.extensions["wiring"] = replace(wiring, registry=Registry(*world.registry.declared))
    browser = Browser(desk)
    listed = browser.read("/runs")

    for part in world.registry.named_parts():
        path = f"/runs/{part.pattern}/{part.id}"
        assert path in listed
        if part.pattern == "lanes":  # A list of its keys.
            path = browser.open(path).headers["Location"]
        assert reads_of(desk, lambda path=path: browser.read(path)) <= 60, path  # type: ignore[misc]
