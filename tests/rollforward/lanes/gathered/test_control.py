"""Keys that gather calls, paused, resumed and drained as those of any lane."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rollforward.lanes import Call, throttled
from rollforward.lanes.gathered.running import deliver
from rollforward.lanes.hints import LaneArgs
from rollforward.lanes.listing import details
from rollforward.lanes.reading import backlog_of
from rollforward.tasks.errors import Retry
from tests.infra.world import Services, World
from tests.rollforward.lanes.gathered import mailroom
from tests.rollforward.lanes.gathered.mailroom import DESK, LANES, MailRun, digest, once, sync
from tests.rollforward.lanes.gathered.test_debounce import call


def test_a_paused_key_gathers_on_and_runs_when_it_is_resumed(world: World) -> None:
    """All calls in one run."""
    digest.key("ada").pause(world.clients)
    call(world, 0, 1)
    world.clock.sleep(200)
    world.sweep(mailroom.SWEEP)
    world.settle()
    assert DESK.texts() == []
    assert [state.key for state in digest.resting().keys] == ["ada"]

    digest.key("ada").resume(world.clients)
    world.settle()
    assert DESK.texts() == [("0", "1")]


def test_a_delivery_that_watches_runs_nothing_of_a_paused_key(world: World) -> None:
    """A hint of the sweep may be on its way when the key is paused."""
    call(world, 0, 1)
    digest.key("ada").pause(world.clients)
    world.clock.sleep(200)
    deliver(digest, world.clients, LaneArgs(f"{digest.name}|ada", is_check=True))
    assert DESK.begun == []


def test_a_window_whose_run_failed_is_kept_while_its_key_rests(world: World) -> None:
    """Nor does it count as a key that rests."""
    world.fails_fast = False
    left = [1]

    def fail_once(run: MailRun) -> None:
        if left and left.pop():
            digest.key("ada").pause(world.clients)
            raise ValueError("broken")

    DESK.before = fail_once
    call(world, 0, 1)
    world.settle()
    digest.key("ada").resume(world.clients)
    assert backlog_of(world.clients, digest).paused == 0
    assert digest.resting().keys == []
    world.clock.sleep(60)
    world.settle()
    assert DESK.texts() == [("0", "1")]


def test_a_drain_leaves_the_window_at_work_and_deletes_later_calls(world: World) -> None:
    """They are counted apart."""
    drained = []

    def drain(run: MailRun) -> None:
        sync.call("ada", mailroom.Note("later"))
        drained.append(sync.key("ada").drain(world.clients))

    DESK.before = drain
    sync.call(world.clients, "ada", mailroom.Note("first"))
    world.settle()
    assert [(answer.deleted, answer.at_work) for answer in drained] == [(1, 1)]
    assert DESK.texts() == [("first",)]


@pytest.mark.parametrize("limit", [100, 1])
def test_a_drain_of_a_window_that_waits_lets_later_calls_in(world: World, limit: int) -> None:
    """R9: no run is at work then that would be a reason to drop them."""

    def wait_once(run: MailRun) -> None:
        if len(DESK.begun) == 1:
            raise Retry("not yet", after_s=50)

    DESK.before = wait_once
    for text in ("0", "1"):
        once.call(world.clients, "ada", mailroom.Note(text))
    world.deliver_due()
    key = once.key("ada")
    while key.drain(world.clients, limit=limit).has_more:
        assert not once.call(world.clients, "ada", mailroom.Note("dropped"))
    assert once.call(world.clients, "ada", mailroom.Note("later"))
    world.settle()
    assert DESK.texts() == [("later",)]


def test_a_lane_that_gathers_says_so_to_operators(world: World) -> None:
    """Calls that wait for the end of their window are not late."""
    call(world, 0)
    world.clock.sleep(20)
    numbers = details(world.clients, LANES, digest.name).numbers
    assert (numbers["gathers"], numbers["tasks"], numbers["oldest_s"]) == ("debounce", 1, 0.0)
    assert (numbers["order"], numbers["limit"]) == ("yes", 1)
    assert details(world.clients, LANES, f"{digest.name}|ada").rows[0]["task"] == digest.path


DAY_S = 24 * 3600.0


@throttled("test-yearbook", every_s=3 * DAY_S)
def yearbook(person: str, calls: Sequence[Call[mailroom.Note]]) -> None:
    """Print a book, every three days at most."""
    DESK.work(person, calls)


def test_a_period_of_days_holds_over_a_pause_and_a_drain(services: Services) -> None:
    """What changes the state of a key for an operator forgets no run."""
    world = World(services, lanes=[yearbook])
    DESK.__init__(clock=world.clock)  # type: ignore[misc]
    with world.clients.context():
        yearbook.call(world.clients, "ada", mailroom.Note("0"))
        world.settle()
        yearbook.call(world.clients, "ada", mailroom.Note("drained"))
        key = yearbook.key("ada")
        key.pause(world.clients)
        assert key.drain(world.clients).deleted == 1
        key.resume(world.clients)
        for text in ("1", "2"):
            world.clock.sleep(1.25 * DAY_S)
            world.registry.patterns["lanes"].delete_expired(world.clients)
            yearbook.call(world.clients, "ada", mailroom.Note(text))
            world.deliver_due()
        assert DESK.texts() == [("0",)]
        world.settle()
        assert DESK.texts() == [("0",), ("1", "2")]
        assert DESK.done[1].at_s - DESK.done[0].at_s >= 3 * DAY_S
