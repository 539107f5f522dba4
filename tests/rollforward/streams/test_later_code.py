"""Rows that later code has written, and sources that only it knows, in a rolling deployment."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any, ClassVar

import pytest

from rollforward.streams import Computation, Context, Pipeline, PushSource, Record
from rollforward.streams.coordinator import tick
from rollforward.streams.graph.plan import history_of, running_computations
from rollforward.streams.model.errors import BadLayoutError, MissingCodeError
from rollforward.streams.scaling.resharding import split
from rollforward.streams.storage.layout import retired_of
from rollforward.streams.storage.remote_calls import StoredRow
from rollforward.streams.storage.schema import (
    CHUNK,
    DEAD,
    HEAD,
    INTERVAL,
    SLAB,
    SOURCE,
    DeadRow,
    Head,
    Interval,
    SourceRow,
)
from rollforward.streams.storage.serde import dump, load
from rollforward.streams.topology.changes import attach
from tests.rollforward.streams.simulator.driver import Came, Desk

LATER = {"later": {"in": [1, 2]}}


class Old(Computation):
    inputs: ClassVar = {"in": lambda value: value["k"]}

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.counter("n").add(1)
        ctx.set_timer("t", record.timestamp_ms + 10)


class New(Computation):
    inputs: ClassVar = {"meters": lambda value: value["k"]}

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.counter("late" if ctx.late else "in time").add(1)


@pytest.mark.parametrize(
    ("kind", "row"),
    [
        (HEAD, Head(gen=7)),
        (INTERVAL, Interval(9)),
        (SOURCE, SourceRow(seq=3)),
        (DEAD, DeadRow("c", "k", "ValueError", 1)),
    ],
)
def test_fields_of_later_code_are_written_back(kind: str, row: Any) -> None:
    """G15: code that does not know a field of a row keeps it."""
    stored = {**json.loads(dump(kind, row)), **LATER}

    decoded = load(kind, json.dumps(stored).encode())

    assert json.loads(dump(kind, decoded)) == stored
    assert load(kind, dump(kind, row)).later_fields == {}


def test_fields_of_later_code_outlast_pushes_ticks_and_workers() -> None:
    """G15: an existing row is never created again."""
    desk = Desk(Pipeline("p", Old, intervals=1))
    desk.push(Came("1", "a", 1))
    rows = desk.simulation.store.rows
    for key in [key for key in rows if key.kind in (HEAD, INTERVAL, SOURCE)]:
        rows[key] = StoredRow(rows[key].body._replace(later_fields=LATER), rows[key].version)
    for machine in desk.simulation.machines:
        machine.caches.clear()

    desk.push(Came("2", "a", 30_000))
    desk.run()

    assert desk.state("old", "a")["n"] == 2
    kinds = [
        key.kind for key, row in rows.items() if getattr(row.body, "later_fields", {}) == LATER
    ]
    assert sorted(kinds) == [HEAD, INTERVAL, SOURCE]
    with pytest.raises(BadLayoutError, match="later"):
        desk.do(split(desk.environment, "old", 2**15))


@pytest.mark.parametrize(
    ("kind", "stored"),
    [
        (SLAB, [["k", "{}", [], None, False, 1, "later"]]),
        (SLAB, [["k", "{}", [["tag", 1, False, 1, False, "later"]]]]),
        (CHUNK, {"key": ["k"], "at": [1], "stream": "s", "id": "", "text": ["1"], "later": [1]}),
        (INTERVAL, {"hi": 9, "slabs": [[0] * 20], "ids": []}),
        (INTERVAL, {"hi": 9, "slabs": [], "ids": [[1] * 20]}),
        (INTERVAL, {"hi": 9, "slabs": [], "ids": [], "load": [0] * 20}),
        (DEAD, {"computation": "c", "key": "", "error": "", "since_ms": 1, "record": [1] * 20}),
    ],
)
def test_a_row_of_which_something_would_be_dropped_is_left_to_later_code(
    kind: str, stored: Any
) -> None:
    """G15: code that does not know a positional field of a row cannot keep it."""
    with pytest.raises(MissingCodeError, match="later code"):
        load(kind, json.dumps(stored).encode())


def test_a_head_of_which_something_would_be_dropped_is_left_to_later_code() -> None:
    """G15: its computations, changes and retired inboxes have positional fields."""
    head = Head(topology={"c": [1] * 20}, history=[[1] * 20], retired={"c": [[1] * 20]})
    for look in (running_computations, history_of, lambda of: retired_of(of, "c")):
        with pytest.raises(MissingCodeError, match="later code"):
            look(head)


OLD = Pipeline("p", Old, intervals=1)
METERS = PushSource("meters", processes=("a", "b"), idle=timedelta(hours=6), disorder=timedelta(0))
NEW = Pipeline("p", Old, standby=[New], intervals=1, sources=[METERS])


def test_a_tick_of_old_code_waits_for_processes_as_long_as_new_code_says() -> None:
    """G15, G3: a source that it does not know has its `idle` in the head, and not the default."""
    desk = Desk(NEW)
    desk.simulation.sweeps = False
    desk.push(Came("o", "k", 1))
    desk.do(attach(desk.environment, "new", None))
    desk.run()
    for process in "ab":
        desk.push(Came(f"{process}0", "k", 1_000), stream="meters", process=process)
    desk.run()
    for number in range(3):
        desk.wait(50)
        desk.push(Came(f"a{number + 1}", "k", 9_000), stream="meters", process="a")
        desk.run()

    machine = desk.simulation.machines[1]
    machine.pipeline = OLD
    desk.do(tick(desk.simulation.environment(machine)))

    assert desk.status().sources["meters"].idle == ()
    assert desk.push(Came("b1", "k", 5_000), stream="meters", process="b").late == 0
