"""Flows whose deliveries go through a lane: its limit, rate and order, and no wait that blocks."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import rollforward as rf
from rollforward.flows import Flow, Steps, UnknownFlowError, flow
from rollforward.flows.rows.entities import run_key
from rollforward.flows.turns import take_turn
from rollforward.flows.wakes import FlowArgs
from rollforward.lanes import Lane, Rate
from rollforward.lanes.rows.entities import LaneState, LaneTask
from rollforward.lanes.runs import lookups
from rollforward.tasks.errors import BadArgumentsError, UnknownTaskError
from tests.infra.world import Services, World
from tests.rollforward.flows import probe as probes
from tests.rollforward.flows.probe import CODE, DAY_S, ID, RUN_ID, SWEEP, probe, settle
from tests.rollforward.flows.shop import mail
from tests.rollforward.tasks.reminders import one_emulator

ONE = Lane("test-flow-one", order=True)
TWO = Lane("test-flow-two", limit=2)
PACED = Lane("test-flow-paced", rate=Rate(2, burst=1))


@flow("test-lane-owners", lane=lambda owner, *, count=1: ONE(owner) if count else None)
def owned(step: Steps, owner: str, *, count: int = 1) -> Any:
    """Run the code of the test, in the lane of an owner."""
    return CODE.run(step)


@pytest.fixture
def world(services: Services) -> Iterator[World]:
    yield from with_lanes(services)


def with_lanes(services: Services) -> Iterator[World]:
    """Yield the app with flows and lanes, and the context of a request open."""
    world = World(services, flows=[probe, owned], lanes=[ONE, TWO, PACED], tasks=[mail])
    world.fails_fast = True
    CODE.__init__()  # type: ignore[misc]
    with world.clients.context():
        yield world


def waiting() -> list[str]:
    """Return the flows that have a turn in a lane, in the order of their rows."""
    args: list[FlowArgs] = [probe.task.read(row.body.encode()) for row in LaneTask.query().fetch()]
    return [arg.run_id.partition("|")[2] for arg in args]


@pytest.mark.parametrize("lane", [ONE, TWO], ids=lambda lane: lane.name)
def test_no_more_flows_of_a_key_are_delivered_at_a_time_than_its_limit(
    world: World, monkeypatch: pytest.MonkeyPatch, lane: Lane
) -> None:
    """W21: all tasks are delivered twice, at the same moment; flows that sleep do not count."""
    monkeypatch.setattr(lookups, "SLICE_S", 0.02)
    lock = threading.Lock()
    at_work: list[str] = []
    most = [0]

    def work(flow_id: str) -> None:
        with lock:
            at_work.append(flow_id)
            most[0] = max(most[0], len(at_work))
        time.sleep(0.01)
        with lock:
            at_work.remove(flow_id)

    def code(step: Steps) -> None:
        work(step.flow_id)
        step.outside("first", CODE.act, step.flow_id)
        step.sleep("pause", seconds=5)
        step.outside("second", CODE.act, step.flow_id)

    CODE.run = code
    world.overlaps = True
    names = [f"f{number}" for number in range(4)]
    for name in names:
        probe.start_in(world.clients, lane("ada"), name)
    world.settle(patience_s=50)
    assert [probe.state(name).state for name in names] == ["succeeded"] * 4
    assert sorted(CODE.done) == sorted(names * 2)
    assert 1 <= most[0] <= lane.limit
    assert LaneTask.query().fetch() == []


@one_emulator
def test_a_rate_counts_the_deliveries_of_a_keys_flows(world: World) -> None:
    """W21: each start and each wake, by the clock."""
    began: list[float] = []

    def code(step: Steps) -> None:
        began.append(world.clock.time_s)
        step.sleep("pause", seconds=1)

    CODE.run = code
    for number in range(4):
        probe.start_in(world.clients, PACED("ada"), f"f{number}")
    world.settle(patience_s=50)
    assert len(began) == 8
    pauses = [later - earlier for earlier, later in itertools.pairwise(began)]
    assert min(pauses) >= 0.5


@one_emulator
def test_flows_of_a_key_begin_in_the_order_of_their_commits(world: World) -> None:
    """W22: a step that is tried again later, or waits, lets the next flow begin."""
    CODE.fails["f1"] = 1

    def code(step: Steps) -> None:
        step.outside("first", CODE.act, step.flow_id)
        step.wait_for("go", timeout_s=20)

    CODE.run = code
    ONE("ada").pause(world.clients)
    probe.start_in(world.clients, ONE("ada"), "f0")
    rf.transact(lambda: [probe.start_in(world.clients, ONE("ada"), f"f{n}") for n in (1, 2)])
    probe.start_in(ONE("ada"), "f3")
    assert not probe.start_in(world.clients, ONE("ada"), "f0")
    world.settle(patience_s=50)
    assert (CODE.done, waiting()) == ([], ["f0", "f1", "f2", "f3"])

    ONE("ada").resume(world.clients)
    world.settle(patience_s=50)
    assert CODE.done == ["f0", "f1", "f2", "f3", "f1"]
    assert {probe.state(f"f{number}").state for number in range(4)} == {"succeeded"}
    assert LaneTask.query().fetch() == LaneState.query().fetch() == []


@one_emulator
def test_a_flow_waits_for_nothing_that_its_own_lane_holds_up(world: World) -> None:
    """W23: a flow of the same key, and members of its batch there, with a limit of one."""

    def code(step: Steps) -> Any:
        if step.flow_id == "child":
            step.sleep("a little", seconds=3)
            step.commit("tell", probe.signal, ID, "child", "grown")
            return None
        step.commit("start", probe.start_in, ONE("ada"), "child")
        event = step.wait_for("child")
        members = [(mail, mail.bind("o", number), ONE("ada")) for number in range(3)]
        return event.payload, step.batch("mails", members).done

    CODE.run = code
    probe.start_in(world.clients, ONE("ada"), ID)
    assert settle(world).result == ["grown", 3]
    assert probe.state("child").state == "succeeded"


@one_emulator
@pytest.mark.parametrize("wait", ["sleep", "event", "time-out", "long sleep"])
def test_a_flow_that_waits_has_nothing_in_its_lane(world: World, wait: str) -> None:
    """W23: each kind of wake brings it there, and another flow has its turns meanwhile."""

    def code(step: Steps) -> str:
        if step.flow_id != ID:
            return "passed"
        if "sleep" in wait:
            step.sleep("wait", days=45 if wait == "long sleep" else 1)
            return "woken"
        event = step.wait_for("go", timeout_s=DAY_S)
        return "woken" if (event is None) == (wait == "time-out") else "wrong"

    CODE.run = code
    probe.start_in(world.clients, ONE("ada"), ID)
    settle(world)
    probe.start_in(world.clients, ONE("ada"), "other")
    assert (settle(world).state, waiting()) == ("running", [])
    assert probe.state("other").result == "passed"
    if wait == "event":
        probe.signal(world.clients, ID, "go")
    state = settle(world, days=0 if wait == "event" else 46)
    assert (state.state, state.result) == ("succeeded", "woken")


@one_emulator
def test_a_cancelled_flow_has_its_undos_in_its_lane(world: World) -> None:
    """W23: while it waits for its turn, and while it waits for an event."""

    def code(step: Steps) -> None:
        step.outside("act", CODE.act, f"act {step.flow_id}")
        step.undo("undo", CODE.act, f"undo {step.flow_id}")
        step.wait_for("never")

    CODE.run = code
    probe.start_in(world.clients, ONE("ada"), "begun")
    world.settle(patience_s=50)
    ONE("ada").pause(world.clients)
    probe.start_in(world.clients, ONE("ada"), "unbegun")
    assert probe.cancel(world.clients, "begun")
    assert probe.cancel(world.clients, "unbegun")
    world.settle(patience_s=50)
    assert (CODE.done, waiting()) == (["act begun"], ["unbegun", "begun"])

    ONE("ada").resume(world.clients)
    world.settle(patience_s=50)
    assert CODE.done == ["act begun", "undo begun"]
    assert {probe.state(name).state for name in ("begun", "unbegun")} == {"cancelled"}


@one_emulator
def test_a_failed_flow_is_retried_in_its_lane(world: World) -> None:
    """W23: and holds up nobody until then."""
    CODE.fails["act"] = 3
    CODE.run = lambda step: step.outside("act", CODE.act, "act")
    probe.start_in(world.clients, ONE("ada"), ID)
    world.settle(patience_s=50)
    assert settle(world, days=0.01).state == "failed"
    assert waiting() == []
    ONE("ada").pause(world.clients)
    probe.retry(world.clients, ID)
    settle(world)
    assert waiting() == [ID]
    ONE("ada").resume(world.clients)
    assert settle(world).state == "succeeded"


@one_emulator
def test_a_flow_has_one_turn_in_its_lane_however_often_it_is_woken(world: World) -> None:
    """W24: by events, by stray wakes, and by the sweep, while it waits there for hours."""

    def code(step: Steps) -> None:
        for number in range(3):
            step.wait_for(f"event {number}", event="go")

    CODE.run = code
    ONE("ada").pause(world.clients)
    probe.start_in(world.clients, ONE("ada"), ID)
    for number in range(3):
        probe.signal(world.clients, ID, "go", number)
        probes.deliver_again(world)
    for _ in range(5):
        world.clock.sleep(3601)
        world.sweep(SWEEP)
        assert settle(world).waits_for_turn
    assert waiting() == [ID]
    note = world.registry.run(world.clients, "flows", RUN_ID).run.note
    assert note == "waits for its turn in its lane"

    ONE("ada").resume(world.clients)
    state = settle(world)
    assert (state.state, state.lane, state.waits_for_turn) == ("succeeded", ONE("ada").id, False)


@one_emulator
def test_a_wake_for_nothing_adds_no_turn(world: World) -> None:
    """W24: of a flow that sleeps or waits for an event."""

    def code(step: Steps) -> None:
        CODE.done.append("delivered")
        step.wait_for("go")
        step.sleep("long", days=2)

    CODE.run = code
    probe.start_in(world.clients, ONE("ada"), ID)
    settle(world)
    probes.deliver_again(world)
    probe.signal(world.clients, ID, "go")
    settle(world)
    probes.deliver_again(world)
    assert CODE.done == ["delivered"] * 2
    assert settle(world, days=2.1).state == "succeeded"


@one_emulator
def test_two_wakes_at_one_time_add_one_turn(world: World) -> None:
    """W24: each has read the flow before the other's turn was there."""
    CODE.run = lambda step: step.wait_for("go")
    probe.start_in(world.clients, ONE("ada"), ID)
    settle(world)
    probe.signal(world.clients, ID, "go")
    seen = run_key(RUN_ID).get()
    for _ in range(2):
        take_turn(world.clients, probe.task, seen)
    assert waiting() == [ID]


@one_emulator
def test_a_flow_whose_turn_was_drained_comes_back_by_the_sweep(world: World) -> None:
    """W24: within some hours, since nothing else tells of it."""
    ONE("ada").pause(world.clients)
    probe.start_in(world.clients, ONE("ada"), ID)
    assert ONE("ada").drain(world.clients).deleted == 1
    ONE("ada").resume(world.clients)
    assert settle(world).state == "running"
    assert settle(world, days=0.1).state == "succeeded"


@one_emulator
def test_flows_that_wait_in_a_paused_key_do_not_fill_the_sweep(world: World) -> None:
    """W24: each is looked at once in an hour, so others are woken in time."""
    ONE("ada").pause(world.clients)
    probe.start_in(world.clients, ONE("ada"), ID)
    world.settle(patience_s=50)
    looks = []
    for _ in range(18):
        world.clock.sleep(600)
        before = run_key(RUN_ID).get().sweeps
        world.sweep(SWEEP)
        world.deliver_due()
        looks.append(run_key(RUN_ID).get().sweeps - before)
    assert sum(looks[:5]) == 0, "its turn was added within the hour"
    assert 2 <= sum(looks) <= 3


@one_emulator
def test_a_lane_of_another_version_keeps_a_flow_waiting(world: World) -> None:
    """W20: this one does not know it, and the flow fails after an hour."""
    CODE.run = lambda step: step.wait_for("go").name
    probe.start_in(world.clients, ONE("ada"), ID)
    settle(world)
    row = run_key(RUN_ID).get()
    row.lane = "test-flow-gone|ada"
    row.put()
    probe.signal(world.clients, ID, "go")
    assert "no lane is declared for test-flow-gone|ada" in settle(world).other_version
    row = run_key(RUN_ID).get()
    row.lane = ONE("ada").id
    row.put()
    world.clock.sleep(60)
    ONE("ada").pause(world.clients)
    state = settle(world)
    assert (state.waits_for_turn, state.other_version) == (True, "")
    ONE("ada").resume(world.clients)
    assert settle(world).result == "go"


@one_emulator
@pytest.mark.parametrize("count", [0, 1])
def test_a_declaration_names_the_lane_by_the_arguments(world: World, count: int) -> None:
    """W21: none, too; a call may name another one."""
    CODE.run = lambda step: step.wait_for("go", timeout_s=1) and None
    ONE("ada").pause(world.clients)
    TWO("ada").pause(world.clients)
    owned.start(world.clients, "a", "ada", count=count)
    owned.start_in(TWO("ada"), "b", "ada", count=count)
    world.settle(patience_s=50)
    states = [owned.state(name) for name in ("a", "b")]
    assert [state.lane for state in states] == [ONE("ada").id if count else "", TWO("ada").id]
    assert [state.state for state in states] == ["running" if count else "succeeded", "running"]


@one_emulator
@pytest.mark.parametrize(
    ("lane", "error"),
    [
        (Lane("test-flow-unknown")("ada"), UnknownTaskError),
        (ONE, TypeError),
        ("ada", TypeError),
    ],
    ids=["unknown", "no key", "text"],
)
def test_a_flow_starts_in_no_lane_that_cannot_take_it(
    world: World, lane: Any, error: type[Exception]
) -> None:
    """W18: nothing is written."""
    for start in (
        lambda: probe.start_in(world.clients, lane, ID),
        lambda: rf.transact(lambda: probe.start_in(world.clients, lane, ID)),
        lambda: Flow("test-probe", probe.function, queue="default", lane=lambda: lane).start(ID),
    ):
        with pytest.raises(error):
            start()
    with pytest.raises(UnknownFlowError):
        probe.state(ID)
    assert not world.live_tasks("default")


@one_emulator
def test_the_lane_of_a_declaration_is_asked_with_checked_arguments_alone(world: World) -> None:
    """W18: its function raised first: a TypeError of its own, or a BadLaneError."""
    for args in ((), ("ada", 2), (7,), (None,)):
        with pytest.raises(BadArgumentsError):
            owned.start(world.clients, "o", *args)  # type: ignore[arg-type]
