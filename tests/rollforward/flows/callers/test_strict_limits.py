"""Flows at the limits that the store keeps: what fits is there, what does not is a clear error."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from rollforward.flows import BadFlowError, FlowRefusedError, Steps
from rollforward.flows.rows import values
from rollforward.flows.rows.entities import (
    MAX_STEPS_BYTES,
    ROOMY_BYTES,
    FlowRun,
    FlowValue,
    run_key,
)
from rollforward.flows.rows.events import MAX_UNREAD
from rollforward.runtime.channel.limits import ENTITY
from rollforward.testing.world import in_threads
from tests.infra.world import World
from tests.rollforward.flows.probe import (
    CODE,
    DAY_S,
    ID,
    RUN_ID,
    deliver_again,
    in_transaction,
    probe,
    run,
    settle,
)
from tests.rollforward.tasks.reminders import one_emulator

# Of texts as JSON: with their quotation marks they have so many bytes.
INLINE, CHUNK, MOST = values.MAX_INLINE_BYTES, values.CHUNK_BYTES, values.MAX_VALUE_BYTES
CHUNKS = {
    INLINE: 0,
    INLINE + 1: 1,
    CHUNK: 1,
    CHUNK + 1: 2,
    2**20 - 4: 2,
    2**20: 2,
    MOST: 4,
}
# The largest that a name becomes in a row, where JSON has six bytes for a character of two.
WIDE = "é"


def text_of(size: int) -> str:
    """Return a text of characters of two bytes that has so many bytes as JSON."""
    return "x" * (size % 2) + WIDE * ((size - 2) // 2)


def wide(prefix: str, most: int) -> str:
    """Return a name of the largest size."""
    return prefix + WIDE * ((most - len(prefix)) // 2)


@one_emulator
@pytest.mark.parametrize("kind", ["commit", "outside"])
def test_a_result_of_each_size_is_read_back(world: World, kind: str) -> None:
    """W1: in the row, in one row of its own, and in more; one byte more is the code's mistake."""
    chunks = {**CHUNKS, INLINE + 1: 0}  # There is room.
    seen: list[dict[int, str]] = []

    def code(step: Steps) -> None:
        call = getattr(step, kind)
        seen.append({size: call(f"{size}", text_of, size) for size in CHUNKS})
        step.wait_for("go", timeout_s=DAY_S)
        call("too large", text_of, MOST + 1)

    state = run(world, code)
    assert {int(name): record.chunks for name, record in state.steps.items() if name != "go"} == (
        chunks
    )
    deliver_again(world)
    assert seen == [{size: text_of(size) for size in CHUNKS}] * 2
    assert row_size() < 5_000

    probe.signal(world.clients, ID, "go")
    state = settle(world)
    assert (state.state, "at most 3,500,000 bytes" in state.reason) == ("failed", True)
    assert {record.state for record in state.steps.values()} == {"done", "failed"}
    assert len(FlowValue.query().fetch(keys_only=True)) == sum(chunks.values())


@one_emulator
@pytest.mark.parametrize("kind", ["commit", "outside"])
def test_large_results_are_in_the_row_as_long_as_it_has_room(world: World, kind: str) -> None:
    """W1: the others, and one that is larger than the room, have rows of their own."""
    results = ["x" * (ROOMY_BYTES // 4), WIDE * (ROOMY_BYTES // 12), "y" * (ROOMY_BYTES // 4)]
    seen: list[list[str]] = []

    def code(step: Steps) -> None:
        call = getattr(step, kind)
        seen.append([call(f"{n}", lambda text=text: text) for n, text in enumerate(results)])
        call("small", text_of, INLINE)
        call("large", text_of, ROOMY_BYTES)
        step.wait_for("go", timeout_s=DAY_S)

    steps = run(world, code).steps
    deliver_again(world)
    chunks = [steps[name].chunks for name in ("0", "1", "2", "small", "large")]
    assert chunks == [0, 0, 1, 0, 1]
    assert seen == [results] * 2
    assert row_size() < ROOMY_BYTES + 5_000


@one_emulator
def test_large_results_of_flows_at_one_time_share_no_commit_that_is_too_large(
    world: World,
) -> None:
    """W1: they would go together, as those of small ones do."""
    CODE.run = lambda step: len(step.outside("large", text_of, MOST))
    ids = [f"f{number}" for number in range(4)]
    for flow_id in ids:
        probe.start(world.clients, flow_id)
    in_threads(*(partial(world.deliver, task.task_name) for task in world.engine.due()))
    world.settle(patience_s=50)
    expected = len(text_of(MOST))
    assert [probe.state(flow_id).result for flow_id in ids] == [expected] * len(ids)


@one_emulator
@pytest.mark.parametrize("size", CHUNKS)
def test_an_event_of_each_size_is_read_back(world: World, size: int) -> None:
    """W8: after the wait that takes it, and again by a retry from there."""
    payloads: list[Any] = []

    def code(step: Steps) -> None:
        event = step.wait_for("go", timeout_s=DAY_S)
        payloads.append(event and event.payload)

    run(world, code)
    with pytest.raises(BadFlowError, match="at most 3,500,000 bytes"):
        probe.signal(world.clients, ID, "go", text_of(MOST + 1))
    probe.signal(world.clients, ID, "go", text_of(size))
    assert settle(world).state == "succeeded"
    probe.retry(world.clients, ID, from_step="go")
    assert settle(world).state == "succeeded"
    assert payloads == [text_of(size)] * 2


@one_emulator
def test_the_largest_row_of_a_flow_is_stored_and_undone(world: World) -> None:
    """W19: full of steps and events with the widest names and values, and then of undos."""
    done: list[str] = []

    def act(name: str) -> str:
        done.append(name)
        return WIDE * ((INLINE - 2) // 2)

    def code(step: Steps) -> None:
        step.wait_for("go", timeout_s=DAY_S)
        for number in range(450):
            step.undo(wide(f"u{number}", 60), act, f"u{number}")
        for number in range(549):
            step.sleep(wide(f"s{number}", 60), seconds=0)
            step.outside(wide(f"{number}", 60), act, f"{number}")

    run(world, code)
    fill_with_events(world)
    fill_with_steps(MAX_STEPS_BYTES - 10_000)
    probe.signal(world.clients, ID, "go", event_id="the last one")
    state = settle(world)
    assert (state.state, "take at most 500,000 bytes" in state.reason) == ("failed", True), state
    assert done == [f"{number}" for number in range(len(done))]

    probe.cancel(world.clients, ID)
    probe.cancel(world.clients, ID)
    state = settle(world)
    assert state.state == "cancelled", state.reason
    assert [name for name in done if name[0] == "u"] == [f"u{n}" for n in reversed(range(450))]
    assert ENTITY.most * 0.7 < row_size() < ENTITY.most


@one_emulator
@pytest.mark.parametrize("kind", ["sleep", "wait_for", "commit"])
def test_no_step_takes_the_room_of_undos(world: World, kind: str) -> None:
    """W19: a row that is full of waits or commits would have none, nor any for an event."""

    def code(step: Steps) -> None:
        step.undo("undo", CODE.act, "undo")
        step.undo_commit("undo in store", CODE.act_in_store, "undo in store")
        step.wait_for("go", timeout_s=DAY_S)
        if kind == "sleep":
            step.sleep("a", days=1)
        if kind == "commit":
            step.commit("a", CODE.act_in_store, "a")
        step.wait_for("a", timeout_s=DAY_S)

    run(world, code)
    fill_with_steps(MAX_STEPS_BYTES + 50_000)
    probe.signal(world.clients, ID, "go")
    state = settle(world)
    assert (state.state, "take at most 500,000 bytes" in state.reason) == ("failed", True), state
    assert "a" not in state.steps

    probe.cancel(world.clients, ID)
    assert settle(world).state == "cancelled"
    assert CODE.done == ["undo in store", "undo"]


def fill_with_events(world: World) -> None:
    """Send the flow as many events of the largest size as it keeps, and one that is too many."""

    def send(number: int) -> bool:
        name, event_id = wide("other", 60), wide(f"e{number}", 100)
        return probe.signal(world.clients, ID, name, text_of(INLINE), event_id=event_id)

    sends: list[Callable[[], Any]] = [partial(send, number) for number in range(MAX_UNREAD)]
    assert in_transaction(*sends) == [True] * MAX_UNREAD
    with pytest.raises(FlowRefusedError):
        send(MAX_UNREAD)


def fill_with_steps(size: int) -> None:
    """Let a flow have steps of another version, with about so many bytes."""
    row = run_key(RUN_ID).get()
    old = {"kind": "sleep", "state": "done", "error": WIDE * 150}
    steps = {wide(f"old {n}", 60): old for n in range(size // 1_150)}
    row.steps = {**row.steps, **steps}
    row.put()


def row_size() -> int:
    """Return about how many bytes the row of the flow has."""
    row = run_key(RUN_ID).get(use_cache=False)
    properties = [FlowRun._properties[name] for name in ("steps", "events", "event_ids")]
    stored = [len(prop._to_base_type(getattr(row, prop._name))) for prop in properties]
    return sum(stored) + len(row.args)
