"""Two versions of the code side by side, the cost of a topology, and refused changes."""

from __future__ import annotations

import contextlib
import dataclasses
from datetime import timedelta
from typing import Any, ClassVar

import pytest

from rollforward.streams import Computation, Context, Pipeline, PushSource, Record, StreamTest
from rollforward.streams.connectors.sinks import EffectSink
from rollforward.streams.coordinator import tick
from rollforward.streams.exchange.ingest import IngestRequest, inbound_record, ingest
from rollforward.streams.graph.plan import running_computation
from rollforward.streams.model.errors import MissingCodeError, TopologyError, UnknownStreamError
from rollforward.streams.model.slots import slot_of
from rollforward.streams.scaling.resharding import split
from rollforward.streams.storage.remote_calls import Commit, Wake
from rollforward.streams.storage.schema import SLAB
from rollforward.streams.sweep import sweep
from rollforward.streams.topology.changes import attach, detach, replace
from rollforward.streams.topology.compatibility import check_replaces
from tests.rollforward.streams.scenarios.topology_pipeline import (
    SOURCE,
    Second,
    Tally,
    Tally2,
    Teller,
    Told,
    desk_of,
    detached,
    key_of,
    parts,
    push,
)
from tests.rollforward.streams.simulator.driver import Came, Desk


def test_a_tick_of_old_code_waits_for_senders_of_new_code() -> None:
    """G15: in a rolling deployment a split shuts no inbox that a new computation writes to."""
    desk = desk_of(Teller, intervals=1)
    old_machine = desk.simulation.machines[1]
    old_machine.pipeline = Pipeline("live", Tally, Told, sources=[SOURCE], intervals=1)
    push(desk, 1)
    desk.do(attach(desk.environment, "teller", None))
    desk.run()
    desk.push(Came("2", "a", 2), watermark=3)
    teller = desk.worker("teller")
    call = desk.until(teller, Commit, of=2)
    desk.do(split(desk.environment, "told", slot_of("a")))
    desk.wait(10)
    environment = desk.simulation.environment(old_machine)
    for _ in range(5):
        desk.do(tick(environment))
    assert desk.head.retired["told"]
    request = IngestRequest("in", "", [inbound_record(environment, "in", {"k": "a"}, 3, "3")], 3)
    with pytest.raises(MissingCodeError):
        desk.do(ingest(environment, request))
    with pytest.raises(MissingCodeError):
        desk.do(desk.simulation.steps_of(Wake(("teller", 0), ()), old_machine))
    desk.finish(teller, call)
    old_machine.pipeline = None
    desk.run()
    assert desk.head.retired == {}
    assert sorted(desk.state("told", "a")["told"]) == [[0, 0], [1, 1], [2, 1]]


def test_a_sweep_names_a_running_computation_that_the_code_lacks() -> None:
    """G15: the records of one that was deleted, or got another output, waited without a word."""

    class Louder(Told):
        name = "told"
        outputs = ("shouts",)

    desk = desk_of(intervals=1)
    push(desk, 1)
    desk.run()
    for code in ([Tally], [Tally, Louder], [Tally, Told]):
        desk.simulation.pipeline = Pipeline("live", *code, sources=[SOURCE], intervals=1)
        warnings = list[str]()
        desk.do(sweep(dataclasses.replace(desk.environment, warn=warnings.append)))
        assert [warning[:34] for warning in warnings] == (
            [] if Told in code else ["live does not process told here: v"]
        )


def test_an_old_tick_waits_for_a_process_of_new_code() -> None:
    """G15: the head names all processes of a source that ever had a row."""
    desk = desk_of(intervals=1)
    push(desk, 1)
    desk.run()
    old_machine = desk.simulation.machines[1]
    old_machine.pipeline = desk.simulation.pipeline
    both = PushSource("in", disorder=timedelta(0), processes=("", "new"))
    desk.simulation.pipeline = Pipeline("live", Tally, Told, sources=[both], intervals=1)
    desk.push(Came("2", "a", 5), process="new", watermark=5)
    push(desk, 9)
    desk.do(tick(desk.simulation.environment(old_machine)))
    assert desk.head.sources["in"] == 5


def test_a_topology_costs_no_call_where_records_flow() -> None:
    """G15: a push and a batch take the calls that they take without one."""
    desk = desk_of(Second, Tally2, intervals=1)

    def calls(at: int) -> list[str]:
        environment, calls_made = desk.environment, list[str]()
        record = inbound_record(environment, "in", {"k": "a"}, at, f"r{at}")
        for steps in (
            ingest(environment, IngestRequest("in", "", [record], at)),
            desk.worker("tally"),
        ):
            reply: Any = None
            with contextlib.suppress(StopIteration):
                while True:
                    call = steps.send(reply)
                    calls_made.append(type(call).__name__)
                    reply = desk.simulation.acts[type(call)](call)
        desk.run()
        return calls_made

    calls(1)
    baseline = calls(2)
    assert baseline.count("Commit") == 4  # A push; the lease, a batch, the release.
    desk.do(replace(desk.environment, "tally", 2))
    desk.do(attach(desk.environment, "second", None))
    desk.run()
    assert calls(3) == baseline


def test_what_would_not_fit_is_refused() -> None:
    """G15: and nothing changes."""

    class Narrow(Tally2):
        name = "tally"
        version = 3
        inputs: ClassVar = {"others": key_of}

    class Wide(Tally2):
        name = "tally"
        version = 6
        inputs: ClassVar = {"in": key_of, "others": key_of}

    class Hasty(Tally2):
        name = "tally"
        version = 4
        percentile = 90

    class Quiet(Tally2):
        name = "tally"
        version = 5
        outputs = ()

    class Loose(Computation):
        name = "tally"
        version = 7
        inputs: ClassVar = {"in": key_of}
        outputs = ("tallies",)
        reads = (1,)
        weak = idempotent = True

    class Circle(Computation):
        inputs: ClassVar = {"tallies": key_of}
        outputs = ("in",)

    class Slow(Computation):
        inputs: ClassVar = {"others": key_of}
        outputs = ("tallies",)

    desk = desk_of(Loose, Narrow, Wide, Hasty, Quiet, Circle, Slow, Tally2, intervals=1)
    push(desk, 1, 50)
    desk.run()
    head = desk.head
    test = StreamTest(desk.simulation.pipeline)
    for version, message in (
        (3, "does not read in"), (6, "does not read in"), (4, "percentile"), (5, "would write"),
        (7, "weak"),
    ):  # fmt: skip
        with pytest.raises(TopologyError, match=message):
            desk.do(replace(desk.environment, "tally", version))
        with pytest.raises(TopologyError, match=message):
            test.replace("tally", version)
    with pytest.raises(TopologyError, match="comes from outside"):
        desk.do(attach(desk.environment, "circle", None))
    with pytest.raises(TopologyError, match="behind its watermark"):
        desk.do(attach(desk.environment, "slow", None))
    with pytest.raises(TopologyError, match="version 1 of tally runs"):
        desk.do(attach(desk.environment, "tally", 2))
    with pytest.raises(UnknownStreamError, match="attach it"):
        desk.do(replace(desk.environment, "slow", None))
    assert desk.head == head

    desk.do(replace(desk.environment, "tally", 2))
    with pytest.raises(TopologyError, match="is replacing"):
        desk.do(replace(desk.environment, "tally", 1))


def test_what_is_discarded_is_counted_and_its_timers_with_it() -> None:
    """G15: who drains may be hurried."""

    class Alarm(Computation):
        inputs: ClassVar = {"in": key_of}

        def record(self, ctx: Context, record: Record) -> None:
            ctx.set_timer("ring", ctx.now_ms + 3_600_000, processing_time=True)

    desk = desk_of(Alarm, intervals=1)
    desk.do(attach(desk.environment, "alarm", None))
    push(desk, 1)
    desk.do(desk.worker("alarm"))
    push(desk, 2)
    desk.do(detach(desk.environment, "alarm", discard=False))
    desk.do(desk.worker("tally"))
    for _ in range(4):
        desk.wait(2)
        desk.do(tick(desk.environment))
    alarm = parts(desk).parts["alarm"]
    assert (alarm.phase, alarm.timers) == ("draining", 1)
    desk.do(detach(desk.environment, "alarm", discard=True))
    desk.run()
    change = detached(desk)
    assert (change.records, change.timers, change.keys) == (1, 1, 1)
    assert not [name for name in desk.rows(SLAB) if ":alarm:" in name]


@pytest.mark.parametrize("chunks", [1, 90], ids=["part of a chunk", "more than a commit deletes"])
def test_of_a_chunk_what_was_worked_on_is_not_counted_as_discarded(chunks: int) -> None:
    """G15: each record is worked on or discarded, and counts once."""

    class Echo(Computation):
        inputs: ClassVar = {"in": key_of}

    desk = desk_of(Echo, intervals=1)
    desk.do(attach(desk.environment, "echo", None))
    desk.simulation.config = dataclasses.replace(desk.simulation.config, max_records=4)
    for n in range(chunks):
        desk.push(*(Came(f"{n}.{m}", "a", 1) for m in range(10)))
    worker = desk.worker("echo")
    call = desk.until(worker, Commit, of=2)
    desk.simulation.acts[Commit](call)
    worker.close()
    worked_on = desk.interval("echo").records
    assert worked_on % 10 > 0

    desk.do(detach(desk.environment, "echo", discard=True))
    desk.run()

    assert detached(desk).records == 10 * chunks - worked_on


def test_what_is_written_inside_cannot_be_pushed() -> None:
    """G15: a stream that was a source once, and now has a writer, is none any more."""

    class Writer(Computation):
        inputs: ClassVar = {"in": key_of}
        outputs = ("others",)

    class Reader(Computation):
        inputs: ClassVar = {"others": key_of}

    class Outside(Computation):
        inputs: ClassVar = {"others": key_of}

    pipeline = Pipeline(
        "live", Tally, Outside, standby=[Writer, Reader], sources=[SOURCE], intervals=1
    )
    desk = Desk(pipeline)
    push(desk, 1)
    desk.run()
    with pytest.raises(TopologyError, match="comes from outside"):
        desk.do(attach(desk.environment, "writer", None))
    desk.do(detach(desk.environment, "outside", discard=False))
    for name in ("writer", "reader"):
        desk.do(attach(desk.environment, name, None))
    with pytest.raises(UnknownStreamError, match="as a source"):
        desk.push(Came("o", "a", 2), stream="others")


def test_a_sink_and_a_computation_do_not_take_the_place_of_each_other() -> None:
    """G15: the ids and the state of one are unknown to the other, also if no code has both."""
    sink = EffectSink("in", lambda clients, record: None, name="told")
    computation = Told()
    computation.inputs = {"in": key_of}
    for replaced, code in ((sink, computation), (computation, sink)):
        with pytest.raises(TopologyError, match="only one of version 1 of told and the running"):
            check_replaces(replaced, running_computation(replaced), code)
