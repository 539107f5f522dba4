"""Moments that a guard of windows is for, each by hand, and planted bugs: the guard taken out."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward.datastore import transact
from rollforward.lanes import Gathered
from rollforward.lanes.gathered import claiming, running
from rollforward.lanes.gathered.window import Window
from rollforward.lanes.hints import LaneArgs
from rollforward.lanes.rows import states
from rollforward.lanes.rows.entities import LaneState, LaneTask, state_key
from rollforward.lanes.runs import claims
from rollforward.lanes.runs.ends import Later
from rollforward.runtime.process.current import use_clients
from rollforward.tasks.dead_task_entities import open_dead_tasks
from rollforward.tasks.errors import Reject
from rollforward.testing.world import apart
from tests.infra.runs.sampling import one_emulator
from tests.infra.world import World
from tests.rollforward.lanes.gathered import test_rest_of_windows as rests
from tests.rollforward.lanes.gathered.mailroom import DESK, MailRun, Note, once, sync


def wake(world: World, lane: Gathered[Note], **options: Any) -> None:
    """Deliver a hint for Ada here and now."""
    running.deliver(lane, world.clients, LaneArgs(f"{lane.name}|ada", **options))


def drop_hints(world: World) -> None:
    world.engine.purge_queue(world.engine.place.queue_name("default"))


def take(world: World, lane: Gathered[Note]) -> tuple[claims.Holder, claiming.ClaimedWindow]:
    """Claim the window of Ada here and now."""
    lane_id = f"{lane.name}|ada"
    claimed = claiming.take(world.clients, lane, lane_id, watches=False)
    assert isinstance(claimed, claiming.ClaimedWindow)
    return claims.Holder(world.clients, lane, lane_id, claimed.claim, claimed.asked_s), claimed


def remove_claims(world: World, holder: claims.Holder) -> None:
    write = partial(claiming.put_without_claim, world.clients, sync)
    states.remove_claims(world.clients, holder.lane_id, [holder.claim], write)


def first_of(act: Callable[[], None]) -> Callable[[MailRun], None]:
    """Return what happens within the first run."""
    left = [act]
    return lambda run: left.pop()() if left else None


def away(world: World) -> None:
    """Let the reply to the next commit be lost, and no lookup work after it."""
    world.plan.break_next("Commit", "reply-lost:UNAVAILABLE")
    world.plan.break_next("Lookup", "error:UNAVAILABLE", 20)


def test_a_claim_whose_outcome_stays_open_holds_up_no_later_delivery(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K5: its process knows that its work is over, and counts no failure."""
    sound, left = claiming._claim, [1]

    def claim(*args: Any) -> bool:
        is_mine = sound(*args)
        if left:
            left.pop()
            away(world)
        return is_mine

    monkeypatch.setattr(claiming, "_claim", claim)
    sync.call(world.clients, "ada", Note("0"))
    drop_hints(world)
    with pytest.raises(rpc_errors.ServiceUnavailable):
        wake(world, sync)
    world.plan.pending, began_s = [], world.clock.time_s
    assert len(state_key("test-sync|ada").get().claims) == 1
    failures: list[int] = []
    DESK.before = lambda run: failures.append(Window.of(state_key("test-sync|ada").get()).failures)
    wake(world, sync)
    assert DESK.texts() == [("0",)]
    assert failures == [0]
    assert world.clock.time_s - began_s < 1
    assert LaneState.query().fetch() == []


def test_a_window_that_has_begun_since_none_was_seen_is_not_closed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R1: a delivery saw that an operator had deleted all calls; one more came, and is at work."""
    state = LaneState(key=state_key("test-sync|ada"), stamp="s")
    Window(calls=("deleted",)).store(state)
    state.put()
    sound, begun = claiming.next_run, []

    def next_run(*args: Any) -> Any:
        monkeypatch.setattr(claiming, "next_run", sound)
        plan = sound(*args)
        sync.call(world.clients, "ada", Note("0"))
        begun.append(take(world, sync)[1].window)
        return plan

    monkeypatch.setattr(claiming, "next_run", next_run)
    wake(world, sync)
    assert [Window.of(state_key("test-sync|ada").get())] == begun


def test_a_run_whose_end_stays_open_is_repeated_at_once_if_it_was_not_committed(
    world: World,
) -> None:
    """K5: nobody watches the claim of a delivery that is known to be over."""
    DESK.before = lambda run: world.plan.break_next("Lookup", "error:UNAVAILABLE", 20)
    sync.call(world.clients, "ada", Note("0"))
    drop_hints(world)
    with pytest.raises(rpc_errors.ServiceUnavailable):
        wake(world, sync)
    world.plan.pending, DESK.before, began_s = [], lambda run: None, world.clock.time_s
    wake(world, sync)
    assert DESK.texts() == [("0",), ("0",)]
    assert world.clock.time_s - began_s < 1
    assert LaneState.query().fetch() == []


def test_a_window_that_was_claimed_with_calls_that_have_run_is_given_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R1: the key had no state when this delivery looked, and has none again."""
    sound, left = claiming.next_run, [1]

    def next_run(*args: Any) -> Any:
        plan = sound(*args)
        if left:
            left.pop()
            wake(world, sync)
            sync.call(world.clients, "ada", Note("1"))
        return plan

    sync.call(world.clients, "ada", Note("0"))
    drop_hints(world)
    monkeypatch.setattr(claiming, "next_run", next_run)
    wake(world, sync)
    assert DESK.texts() == [("0",), ("1",)]
    assert LaneTask.query().fetch() == LaneState.query().fetch() == []


def test_a_window_of_a_newer_version_is_read() -> None:
    """K11: a field that this version does not know is left out."""
    state = LaneState(gathered={"calls": ["17-c0ffee"], "failures": 2, "colour": "red"})
    assert Window.of(state) == Window(calls=("17-c0ffee",), failures=2)


@pytest.mark.parametrize("is_done", [True, False])
def test_a_run_that_has_lost_its_claim_ends_no_window(world: World, *, is_done: bool) -> None:
    """R1, R2: neither by its success nor by its failure, while the next run is at work."""
    sync.call(world.clients, "ada", Note("0"))
    drop_hints(world)
    late, claimed = take(world, sync)
    remove_claims(world, late)
    end = None if is_done else Later(0, "its service is away")

    def come_late() -> None:
        with world.clients.context():
            running._close(sync, late, claimed, end)
            wake(world, sync)

    DESK.before = first_of(lambda: apart(come_late))
    wake(world, sync)
    world.settle()
    assert len(DESK.begun) == 1
    assert LaneTask.query().fetch() == LaneState.query().fetch() == []


def test_a_run_that_has_beaten_since_it_was_watched_keeps_its_window(world: World) -> None:
    """R1: the beat came between the watch and the burial."""
    sync.call(world.clients, "ada", Note("0"))
    drop_hints(world)
    holder, _ = take(world, sync)
    holder._confirm()
    remove_claims(world, holder)
    holder._confirm()
    assert not holder.is_lost


def test_a_window_that_has_changed_is_not_forgotten(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R1: an operator has deleted its calls; since then one came, and its run is at work."""
    sync.call(world.clients, "ada", Note("0"))
    drop_hints(world)
    holder, _ = take(world, sync)
    remove_claims(world, holder)
    ndb.delete_multi(LaneTask.query().fetch(keys_only=True))
    sound, holders = claiming.next_run, []

    def next_run(*args: Any) -> Any:
        monkeypatch.setattr(claiming, "next_run", sound)
        planned = sound(*args)
        sync.call(world.clients, "ada", Note("1"))
        holders.append(take(world, sync)[0])
        return planned

    monkeypatch.setattr(claiming, "next_run", next_run)
    wake(world, sync)
    holders[0]._confirm()
    assert not holders[0].is_lost


def test_a_caller_whose_reply_was_lost_is_told_that_its_call_runs(world: World) -> None:
    """R9: it was committed, and the run that is at work has it."""

    def begin(seconds: float) -> None:
        drop_hints(world)
        take(world, once)

    world.plan.break_next("Commit", "reply-lost:UNAVAILABLE")
    with use_clients(world.clients):
        assert transact(lambda: once.call("ada", Note("0")), sleep=begin)
    state = state_key("test-once|ada").get()
    assert len(Window.of(state).calls) == 1


def test_calls_that_can_never_work_are_in_a_dead_task_or_wait(world: World) -> None:
    """R6: one commit keeps and deletes them, also if its reply is lost."""

    def refuse(run: MailRun) -> None:
        world.plan.break_next("Commit", "error:UNAVAILABLE", 20)
        raise Reject("no such address")

    DESK.before = refuse
    sync.call(world.clients, "ada", Note("0"))
    drop_hints(world)
    with pytest.raises(rpc_errors.ServiceUnavailable):
        wake(world, sync)
    world.plan.pending = []
    assert len(LaneTask.query().fetch()) + len(open_dead_tasks().fetch()) == 1


def _compares_no_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run takes the claim of its key for its own."""
    monkeypatch.setattr(LaneState, "claim_of", lambda self, owner: next(iter(self.claims), None))


def _buries_what_has_beaten(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = states.remove_claim

    def remove_claim(lane_id: str, dead: Any, write: Any) -> bool:
        return sound(lane_id, state_key(lane_id).get().claim_of(dead.owner), write)

    monkeypatch.setattr(states, "remove_claim", remove_claim)


def _forgets_what_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claiming, "_forget", lambda clients, gathered, seen: seen.key.delete())


def _knows_no_call_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Window, "has_call_of", lambda self, transaction_id: False)


def _believes_in_its_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run begins however old its claim is."""
    monkeypatch.setattr(claims.Holder, "can_start", lambda self: True)


Plant = Callable[[pytest.MonkeyPatch], None]
# A guard that is taken out, the test of its moment, and what that takes beside the world.
PLANTED: Sequence[tuple[Plant, Callable[..., None], Mapping[str, object]]] = (
    (
        _compares_no_owner,
        test_a_run_that_has_lost_its_claim_ends_no_window,
        {"is_done": False},
    ),
    (
        _buries_what_has_beaten,
        test_a_run_that_has_beaten_since_it_was_watched_keeps_its_window,
        {},
    ),
    (_forgets_what_has_changed, test_a_window_that_has_changed_is_not_forgotten, {}),
    (
        _knows_no_call_of_its_own,
        test_a_caller_whose_reply_was_lost_is_told_that_its_call_runs,
        {},
    ),
    (_believes_in_its_claim, rests.test_a_run_that_froze_behind_its_claim_does_not_begin, {}),
)


@one_emulator
@pytest.mark.parametrize(
    ("plant", "moment", "options"), PLANTED, ids=[plant.__name__ for plant, *_ in PLANTED]
)
def test_a_guard_that_is_taken_out_is_missed(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    plant: Plant,
    moment: Callable[..., None],
    options: Mapping[str, object],
) -> None:
    """R1, R2, R9: each guard of a claim and an end is for something."""
    takes = inspect.signature(moment).parameters
    known = {"monkeypatch": monkeypatch, **options}
    plant(monkeypatch)
    with pytest.raises((AssertionError, rpc_errors.GoogleAPICallError)):
        moment(world, **{name: value for name, value in known.items() if name in takes})
