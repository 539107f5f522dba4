"""Values that hooks change: retries, dead letters and late streams start from the stored value."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, ClassVar

import pytest

from rollforward.streams import Computation, Context, Pipeline, PushSource, Record, StreamTest
from rollforward.streams.model.sink import Sink, SinkRecord
from rollforward.streams.operators.fused import Fused
from rollforward.streams.storage.schema import DEAD
from rollforward.streams.workers.sink_worker import SinkWorker
from rollforward.streams.workers.worker import Worker
from tests.rollforward.streams.simulator.driver import Came, Desk

POISON = ({"shop": "z", "user": "bad", "price": 1, "poison": True}, 9)


def shop(order: Any) -> Any:
    return order["shop"]


class Cents(Computation):
    """Has dollars become cents, in place."""

    inputs: ClassVar = {"orders": shop}

    def record(self, ctx: Context, record: Record) -> None:
        record.value["price"] *= 100
        if record.value.get("poison"):
            raise ValueError("poison")
        ctx.state.counter("sum").add(record.value["price"])


class Users(Computation):
    """Takes the user out of an order."""

    inputs: ClassVar = {"orders": shop}

    def record(self, ctx: Context, record: Record) -> None:
        user = record.value.pop("user")
        if user == "bad":
            raise ValueError("poison")
        ctx.state.counter("sum").add(100 * record.value["price"])


class Other(Computation):
    """A part that gets nothing."""

    inputs: ClassVar = {"others": shop}


@pytest.mark.parametrize("computation", [Cents, Users, Fused("cents", Cents, Other)])
def test_a_poison_record_leaves_what_its_neighbours_hooks_have_changed_as_it_came(
    computation: Any,
) -> None:
    """G7: an order counts the same alone and in a bundle with others."""
    orders = [({"shop": "a", "user": f"u{n}", "price": 1}, n) for n in range(3)]
    states, dead = [], []
    for neighbours in ([], [POISON]):
        test = StreamTest(Pipeline("p", computation))
        test.push_all("orders", [*orders, *neighbours])
        [name] = test.pipeline.computations
        states.append(test.state(name, "a"))
        dead.append([failure.error for _, failure in test.dead])

    assert states[0] == states[1]
    assert '"sum": 300' in json.dumps(states[0])
    assert dead == [[], ["ValueError: poison"]]


def test_each_attempt_of_a_hook_has_the_value_as_it_came() -> None:
    seen = []

    class Flaky(Computation):
        inputs: ClassVar = {"orders": shop}

        def record(self, ctx: Context, record: Record) -> None:
            record.value["price"] *= 100
            seen.append(record.value["price"])
            if len(seen) < 3:
                raise ValueError

    test = StreamTest(Pipeline("p", Flaky))
    test.push("orders", {"shop": "a", "price": 1}, timestamp_ms=1)

    assert (seen, test.dead) == ([100, 100, 100], [])


def test_a_test_that_repeats_shows_what_a_hook_keeps_outside_of_its_context() -> None:
    class Keeping(Computation):
        inputs: ClassVar = {"orders": shop}

        def __init__(self) -> None:
            self.sum = 0

        def record(self, ctx: Context, record: Record) -> None:
            self.sum += record.value["price"]
            ctx.state["sum"] = self.sum

    sums = []
    for repeats in (False, True):
        test = StreamTest(Pipeline("p", Keeping()), repeats=repeats)
        test.push_all("orders", [({"shop": "a", "price": 1}, n) for n in range(3)])
        sums.append(test.state("keeping", "a")["sum"])

    assert sums == [3, 6]


# What is no JSON any more


class Parses(Computation):
    """Has a text become a time, in place."""

    inputs: ClassVar = {"orders": shop}
    late_stream = "too-late"
    max_attempts = 2

    def record(self, ctx: Context, record: Record) -> None:
        record.value["when"] = datetime.fromtimestamp(record.timestamp_ms, UTC)
        if record.value.get("late"):
            ctx.drop_late()
        elif "poison" in record.value:
            raise ValueError(record.value["when"])
        else:
            ctx.state.counter("orders").add(1)


class TooLate(Computation):
    inputs: ClassVar = {"too-late": shop}

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.list("got").append(record.value)


class Refusing(Sink):
    """Has a text become a time, and refuses it."""

    def make(self, record: SinkRecord) -> Any:
        record.value["when"] = datetime.fromtimestamp(record.timestamp_ms, UTC)
        raise ValueError("poison")

    def write(self, clients: Any, values: Any) -> None:
        raise NotImplementedError


def desk_of(*computations: Any) -> Desk:
    return Desk(Pipeline("p", *computations, sources=[PushSource("orders")], intervals=1))


def push(desk: Desk, id_: str, **fields: Any) -> None:
    desk.push(Came(id_, "a", 1), stream="orders", shop="a", **fields)


def dead(desk: Desk) -> list[Any]:
    rows = desk.simulation.store.rows
    return [json.loads(row.body.record.text) for key, row in rows.items() if key.kind == DEAD]


@pytest.mark.parametrize(
    ("kind", "worker"), [(Parses(), Worker), (Refusing("orders", name="parses"), SinkWorker)]
)
def test_a_dead_letter_has_the_record_as_it_came(kind: Any, worker: type[Worker]) -> None:
    """The changes of its hook are undone, and its interval continues."""
    desk = desk_of(kind)
    desk.simulation.worker = worker
    push(desk, "1", poison=1)
    desk.run()
    push(desk, "2", poison=1)
    desk.run()

    assert dead(desk) == [{"k": "a", "shop": "a", "poison": 1}] * 2
    assert desk.interval("parses").dead == 2


@pytest.mark.parametrize("kind", [Parses(), Fused("parses", Parses, Other)])
def test_a_stream_of_late_records_has_them_as_they_came(kind: Any) -> None:
    desk = desk_of(kind, TooLate)
    push(desk, "1", late=1)
    desk.run()

    assert desk.state("too-late", "a") == {"got": [{"k": "a", "shop": "a", "late": 1}]}
    assert (desk.interval("parses").late, dead(desk)) == (1, [])
