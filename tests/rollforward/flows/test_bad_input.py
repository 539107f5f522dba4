"""Bad input, of callers and of the code: a clear error, and nothing is lost."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from google.cloud import ndb

from rollforward.flows import (
    BadFlowError,
    FlowRefusedError,
    Steps,
    UnknownFlowError,
)
from rollforward.flows.rows.entities import FlowRun, run_key
from rollforward.tasks.errors import BadArgumentsError, TooLargeError
from tests.infra.world import World
from tests.rollforward.flows.probe import CODE, ID, in_transaction, probe, run, settle
from tests.rollforward.flows.shop import mail, order
from tests.rollforward.tasks.reminders import one_emulator

pytestmark = pytest.mark.fast


UTC = datetime.UTC


class NoJson:
    """A type of which no value can be stored."""


def returns_no_json() -> NoJson:
    CODE.act("called")
    return NoJson()


def returns_another_type() -> int:
    CODE.act("called")
    return "text"  # type: ignore[return-value]


async def refund_later() -> None:
    CODE.act("refunded")


class Closed:
    """A row of a database whose session has ended."""

    def __repr__(self) -> str:
        raise RuntimeError("the session has ended")


def returns_a_closed_row() -> Any:
    CODE.act("called")
    return Closed()


def returns_a_long_number() -> int:
    CODE.act("called")
    return int("9" * 4_000) ** 2


def returns_no_number() -> float | None:
    CODE.act("called")
    return float("inf")


class Unhashable:
    """An object that is called, and has no hash."""

    __hash__ = None  # type: ignore[assignment]

    def __call__(self) -> int:
        return 7


WITHIN = "the step 'b' is called within a transaction, or another step"

Code = Callable[[Steps], Any]
STEPS: dict[str, tuple[Code, str, int]] = {
    "a name twice": (
        lambda step: [step.outside("a", CODE.act, "called") for _ in "ab"],
        "two steps are called 'a'",
        1,
    ),
    "a name of an undo": (
        lambda step: (step.undo("a", CODE.act, "a"), step.sleep("a", days=1)),
        "two steps are called 'a'",
        0,
    ),
    "no JSON": (
        lambda step: step.outside("a", lambda: (CODE.act("called"), object())[1]),
        "the step 'a': <object object",
        1,
    ),
    "no text": (
        lambda step: step.outside("a", returns_a_closed_row),
        "the step 'a': a value of Closed is no JSON",
        1,
    ),
    "a long number": (
        lambda step: step.outside("a", returns_a_long_number),
        "the step 'a': a value of int does not go by its type",
        1,
    ),
    "no number": (lambda step: step.commit("a", lambda: float("nan")), "nan is no JSON", 0),
    "no number of a type": (lambda step: step.outside("a", returns_no_number), "are no JSON", 1),
    "half a character": (lambda step: step.commit("a", lambda: "\ud800"), "half a character", 0),
    "another type": (lambda step: step.outside("a", returns_another_type), "go by its type", 1),
    "a type that is no JSON": (lambda step: step.outside("a", returns_no_json), "NoJson", 0),
    "too large": (lambda step: step.commit("a", lambda: "x" * 4_000_000), "at most 3,500,000", 0),
    "a long name": (lambda step: step.sleep("x" * 61, days=1), "1 to 60 bytes", 0),
    "no name": (lambda step: step.sleep("", days=1), "1 to 60 bytes", 0),
    "a bar in a name": (lambda step: step.sleep("a|b", days=1), "must not have", 0),
    "a long event": (
        lambda step: step.wait_for("a", event="x" * 61),
        "the step 'a' must wait for an event whose name is printable and has 1 to 60 bytes",
        0,
    ),
    "an event that is no text": (lambda step: step.wait_for("a", event=17), "got 17", 0),  # type: ignore[call-overload]
    "a long sleep": (lambda step: step.sleep("a", days=4000), "ten years", 0),
    "a sleep until a naive time": (
        lambda step: step.sleep("a", until=datetime.datetime(2030, 5, 1)),  # noqa: DTZ001
        "aware time",
        0,
    ),
    "a sleep until a time and for some": (
        lambda step: step.sleep("a", until=datetime.datetime(2030, 5, 1, tzinfo=UTC), hours=1),
        "until a time or for some, got both",
        0,
    ),
    "a sleep until a day": (
        lambda step: step.sleep("a", until=datetime.date(2030, 5, 1)),  # type: ignore[arg-type]
        "must wait until an aware time, got datetime.date(2030, 5, 1)",
        0,
    ),
    "a wait that is no number": (
        lambda step: step.wait_for("a", timeout_s=datetime.timedelta(days=1)),  # type: ignore[call-overload]
        "must wait for some seconds, ten years at most, got datetime.timedelta(days=1)",
        0,
    ),
    "a step without a name": (
        lambda step: step.commit(len, "a title"),  # type: ignore[arg-type]
        "a step's name must be printable and have 1 to 60 bytes, got <built-in function len>",
        0,
    ),
    "a long wait": (lambda step: step.wait_for("a", timeout_s=1e12), "ten years", 0),
    "a step of a commit": (
        lambda step: step.commit("a", lambda: step.outside("b", CODE.act, "b")),
        WITHIN,
        0,
    ),
    "a step of a call": (
        lambda step: step.outside("a", lambda: (CODE.act("called"), step.sleep("b", days=1))),
        WITHIN,
        1,
    ),
    "an undo of a call": (
        lambda step: step.outside("a", lambda: (CODE.act("called"), step.undo("b", CODE.act))),
        WITHIN,
        1,
    ),
    "an undo that a call would not run": (
        lambda step: step.undo("a", refund_later),
        "the undo 'a' must be a plain function: called, it would not run",
        0,
    ),
    "1,001 steps": (
        lambda step: [step.undo(f"undo {number}", CODE.act) for number in range(1001)],
        "at most 1,000 steps",
        0,
    ),
    "a result of 100,001 bytes": (lambda step: "x" * 100_001, "at most 100,000", 0),
    "a result that is no JSON": (lambda step: object(), "is no JSON", 0),
}


@one_emulator
def test_a_mistake_of_the_code_fails_the_flow(world: World) -> None:
    """W17: at once, with a text that says what to change; no call is made for nothing."""
    for number, (name, (code, text, calls)) in enumerate(STEPS.items()):
        CODE.run, CODE.done[:] = code, []
        probe.start(world.clients, f"f{number}")
        world.settle(patience_s=60)
        state = probe.state(f"f{number}")
        assert (state.state, text in state.reason, len(CODE.done)) == ("failed", True, calls), (
            name,
            state.reason,
        )


@one_emulator
def test_an_except_of_the_code_does_not_hide_its_mistake(world: World) -> None:
    """W17: a step that did nothing is no step that failed."""

    def code(step: Steps) -> str:
        for _ in "ab":
            try:
                step.outside("a", CODE.act, "a")
            except Exception:
                return "another way"
        return "done"

    assert run(world, code).state == "failed"


@one_emulator
def test_an_object_without_a_hash_is_called(world: World) -> None:
    """W17: it is no mistake."""
    assert run(world, lambda step: step.outside("a", Unhashable())).result == 7


@one_emulator
def test_a_caller_learns_what_is_wrong_and_nothing_changes(world: World) -> None:
    """W18: of each call."""
    run(world, lambda step: step.wait_for("go"))
    before = run_key(f"test-probe|{ID}").get()
    clients = world.clients
    cases: list[tuple[type[Exception], Callable[[], Any]]] = [
        (BadFlowError, lambda: probe.start(clients, "")),
        (BadFlowError, lambda: probe.start(clients, "x" * 101)),
        (BadFlowError, lambda: probe.start(clients, "ü" * 51)),
        (BadFlowError, lambda: probe.start(clients, "a|b")),
        (BadFlowError, lambda: probe.start(clients, "a\n")),
        (BadFlowError, lambda: probe.start(clients, 7)),  # type: ignore[arg-type]
        (BadArgumentsError, lambda: order.start(clients, "o", 7)),  # type: ignore[arg-type]
        (BadArgumentsError, lambda: order.start(clients, "o")),  # type: ignore[call-arg]
        (TooLargeError, lambda: order.start(clients, "o", "x" * 100_001)),
        (UnknownFlowError, lambda: probe.signal(clients, "nobody", "go")),
        (UnknownFlowError, lambda: probe.cancel(clients, "nobody")),
        (UnknownFlowError, lambda: probe.retry(clients, "nobody")),
        (UnknownFlowError, lambda: probe.state("nobody")),
        (BadFlowError, lambda: probe.signal(clients, ID, "")),
        (BadFlowError, lambda: probe.signal(clients, ID, "x" * 61)),
        (BadFlowError, lambda: probe.signal(clients, ID, "go", event_id="x" * 101)),
        (BadFlowError, lambda: probe.signal(clients, ID, "go", object())),
        (BadFlowError, lambda: probe.signal(clients, ID, "go", "\ud800")),
        (BadFlowError, lambda: probe.signal(clients, ID, "go", "x" * 3_500_001)),
        (TypeError, lambda: probe.signal(clients, ID, "go", 1, 2)),
        (FlowRefusedError, lambda: probe.retry(clients, ID)),
    ]
    for number, (kind, call) in enumerate(cases):
        with pytest.raises((kind, ValueError) if kind is BadArgumentsError else kind):
            call()
        assert run_key(f"test-probe|{ID}").get() == before, number
    assert len(FlowRun.query().fetch(keys_only=True)) == 1


@one_emulator
def test_the_longest_names_and_ids_are_taken(world: World) -> None:
    """W18: of a flow, a step, an event and a request."""
    CODE.run = lambda step: step.wait_for("s" * 60, event="e" * 60).name
    flow_id = "x" * 100
    assert probe.start(world.clients, flow_id)
    assert probe.signal(world.clients, flow_id, "e" * 60, event_id="i" * 100)
    world.settle(patience_s=60)
    assert probe.state(flow_id).result == "e" * 60
    assert probe.retry(world.clients, flow_id, from_step="s" * 60, request_id="r" * 100)


@one_emulator
def test_a_batch_needs_its_tasks_declared(world: World) -> None:
    """W17: and a member is one of them."""
    state = run(world, lambda step: step.batch("a", [(order.task, mail.bind("o", 1))]))
    assert (state.state, "must be listed in `members`" in state.reason) == ("failed", True)


@one_emulator
def test_a_flow_keeps_100_events_that_no_step_has_taken(world: World) -> None:
    """W19: the next one is refused, unless a step waits for it; the last 200 ids are known."""
    CODE.run = lambda step: [step.wait_for(f"wait {n}", event="go") for n in range(2)] and "went"
    probe.start(world.clients, ID)

    def send(event: str, first: int) -> None:
        calls = [
            partial(probe.signal, world.clients, ID, event, event_id=f"{event} {number}")
            for number in range(first, first + 50)
        ]
        in_transaction(*calls)

    send("other", 0)
    send("other", 50)
    with pytest.raises(FlowRefusedError, match="100 events that no step has taken"):
        probe.signal(world.clients, ID, "go")
    settle(world)
    assert probe.signal(world.clients, ID, "go", event_id="e1")
    settle(world)
    assert not probe.signal(world.clients, ID, "go", event_id="e1")
    assert probe.signal(world.clients, ID, "go", event_id="e2")
    state = settle(world)
    assert (state.state, len(state.unread)) == ("succeeded", 100)


@one_emulator
def test_a_flow_keeps_100_events_of_the_name_that_a_step_waits_for(world: World) -> None:
    """W19: its queue may stand still, while ever more of them come."""
    CODE.run = lambda step: [step.wait_for(f"wait {n}", event="go") for n in range(101)] and "went"
    probe.start(world.clients, ID)
    world.deliver_due()
    in_transaction(*[partial(probe.signal, world.clients, ID, "go") for _ in range(100)])
    with pytest.raises(FlowRefusedError, match="100 events that no step has taken"):
        probe.signal(world.clients, ID, "go")
    settle(world)
    probe.signal(world.clients, ID, "go")
    assert settle(world).result == "went"


@one_emulator
def test_a_flow_that_has_outgrown_its_row_fails_and_is_undone(world: World) -> None:
    """W19: it is not stuck by a row that Datastore refuses; its undos have room of their own."""

    def code(step: Steps) -> None:
        step.outside("a", CODE.act, "a")
        step.undo("undo", CODE.act, "undo")
        step.wait_for("go")
        for number in range(20):
            step.sleep(f"{number}", seconds=0)
            step.outside(f"more {number}", CODE.act, "more")

    run(world, code)
    row = run_key(f"test-probe|{ID}").get()
    old = {"kind": "sleep", "state": "done", "error": "e" * 300}
    count = 498_500 // (len(json.dumps({"old 0000": old})))
    row.steps = {**row.steps, **{f"old {number:04d}": old for number in range(count)}}
    row.put()
    probe.signal(world.clients, ID, "go")
    state = settle(world)
    assert (state.state, "take at most 500,000 bytes" in state.reason) == ("failed", True), state
    CODE.run = lambda step: (code(step), step.outside("x", CODE.act))[0]
    probe.cancel(world.clients, ID)
    assert settle(world).state == "cancelled"
    assert CODE.done[-1] == "undo"


@one_emulator
def test_flows_of_another_app_are_left_alone(world: World) -> None:
    """W18: the sweep wakes only what this app declares."""
    past = world.clients.clock.now().replace(tzinfo=None)
    FlowRun(
        key=ndb.Key(FlowRun, "other|f1"), args="{}", created=past, started_by="t", due=past
    ).put()
    world.clock.sleep(60)
    world.sweep("/cron/flows/sweep")
    assert not world.live_tasks("default")
