"""Weak computations and sinks that come, change and leave: what depended on what runs, and may not.

The schedules of test_weak_changes.py notice most of it.
"""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from rollforward.streams import FOREVER, Computation, Context, Pipeline, PullSource, Record
from rollforward.streams.coordinator import tick
from rollforward.streams.exchange.ingest import IngestRequest, inbound_record, ingest
from rollforward.streams.graph.plan import DISCARDING, running_computations
from rollforward.streams.scaling.resharding import split
from rollforward.streams.storage.remote_calls import Call, CallEffects, ChangedError, Commit
from rollforward.streams.storage.schema import CHUNK
from rollforward.streams.topology import teardown
from rollforward.streams.topology.changes import attach, detach, replace
from tests.rollforward.streams.exchange.test_weak import PIPELINE, Pass, Seen, by_key
from tests.rollforward.streams.scenarios.weak import Outside
from tests.rollforward.streams.simulator.driver import Came, Desk
from tests.rollforward.streams.simulator.store import Steps


class Tagging(Pass):
    """The next version: it writes to a further stream first, and other values to the old one."""

    name = "pass"
    version = 2
    outputs = ("passed", "extra")

    def record(self, ctx: Context, record: Record) -> None:
        ctx.produce("extra", record.value)
        ctx.produce("passed", {**record.value, "tag": 1})


class Beside(Computation):
    """A strong computation that writes the same output as the weak one, from another source."""

    inputs: ClassVar = {"side": by_key}
    outputs = ("passed",)

    def record(self, ctx: Context, record: Record) -> None:
        ctx.produce("passed", record.value)


class Wary(Seen):
    """Notes records that were on time, and are behind its watermark."""

    name = "seen"

    def record(self, ctx: Context, record: Record) -> None:
        super().record(ctx, record)
        if ctx.late or record.timestamp_ms < ctx.watermark:
            ctx.state.counter("missed").add(1)


def pushing(desk: Desk, id_: str, at: int = 1_000) -> Steps:
    """Return the steps of a push in progress."""
    environment = desk.environment
    return ingest(
        environment,
        IngestRequest("in", "", [inbound_record(environment, "in", {"k": "a"}, at, id_)]),
    )


def inboxes(desk: Desk) -> list[str]:
    return sorted(name.split(":")[1] for name in desk.rows(CHUNK))


def outside(name: str) -> Outside:
    return Outside("passed", name=name)


# What a weak sink has acted on


def test_what_one_weak_sink_has_done_another_has_not() -> None:
    """G14: of two that read one stream, the straggler gets its record into its own inbox."""
    sinks = [outside("fast"), outside("slow")]
    desk = Desk(Pipeline("weak", Pass, Seen, sinks=sinks, intervals=1))
    desk.push(Came("r-0", "a", 900))
    desk.run()

    call = desk.until(steps := pushing(desk, "r-1"), CallEffects)
    assert isinstance(call, CallEffects)
    done = [place for place, (sink, _) in enumerate(call.effects) if sink[0] == "fast"]
    desk.finish(steps, steps.send(done))

    assert len(done) == 1
    assert inboxes(desk) == ["seen", "slow"]


def test_a_weak_sink_acts_on_what_is_committed_if_another_version_ran_meanwhile() -> None:
    """G14, G15: what it has acted on was made by the version that ran before."""
    desk = Desk(
        Pipeline("weak", Pass, Seen, sinks=[outside("acts")], standby=[Tagging], intervals=1)
    )
    desk.push(Came("r-0", "a", 900))
    desk.run()
    desk.until(steps := pushing(desk, "r-1"), Commit)

    desk.do(replace(desk.environment, "pass", 2))
    desk.finish(steps, steps.throw(ChangedError()))

    assert len(desk.simulation.handed) == 2
    assert inboxes(desk) == ["acts", "seen"]


@pytest.mark.parametrize("is_standby", [False, True])
def test_pulled_records_have_names_for_a_weak_sink_that_is_attached_later(is_standby: bool) -> None:
    """G14: records that were read before it is attached are in progress meanwhile."""
    sinks: dict[str, Any] = {"standby" if is_standby else "sinks": [outside("acts")]}
    source = PullSource("in", lambda clients, position, limit: None)  # type: ignore[arg-type, return-value]

    pipeline = Pipeline("weak", Pass, Seen, sources=[source], **sinks)

    assert pipeline.weak_sink_streams == {"in"}


# What is discarded


def discarded(desk: Desk) -> tuple[Steps, Call]:
    """Discard `pass` during a push through it; return the push."""
    desk.push(Came("s-0", "a", 800), stream="side", watermark=FOREVER)
    desk.run()
    desk.push(Came("r-0", "a", 900), watermark=900)
    desk.do(desk.worker("seen"))
    call = desk.until(steps := pushing(desk, "r-1"), Commit)
    desk.do(detach(desk.environment, "pass", discard=True))
    return steps, call


def test_readers_of_a_weak_stage_that_is_discarded_wait_for_who_runs_it() -> None:
    """G14, G15, G3: a push that does not know of it yet brings nothing behind their watermark."""
    desk = Desk(Pipeline("weak", Pass, Beside, Wary, intervals=1))
    push = discarded(desk)

    for _ in range(5):
        desk.do(tick(desk.environment))
        assert running_computations(desk.head)["pass"].phase == DISCARDING
        assert desk.head.inputs["seen"] <= 1_000
    desk.finish(*push)
    desk.run()

    assert {**running_computations(desk.head)}.keys() == {"beside", "seen"}
    assert desk.state("seen", "a") == {"seen": 3}
    assert desk.head.inputs["seen"] == FOREVER


def test_an_inbox_that_was_left_waits_for_who_runs_a_weak_stage_that_is_discarded() -> None:
    """G14, G15, G10: what a push that knows neither change puts there is not lost."""
    desk = Desk(Pipeline("weak", Pass, Beside, Wary, intervals=1))
    push = discarded(desk)

    desk.do(split(desk.environment, "seen", 2**15))
    for _ in range(5):
        desk.do(tick(desk.environment))
        assert desk.head.retired["seen"]
    desk.finish(*push)
    desk.run()

    assert not desk.head.retired
    assert desk.state("seen", "a") == {"seen": 3}


def test_a_weak_stage_that_leaves_at_once_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sender may still run it. In schedules that shows in one of thousands."""
    monkeypatch.setattr(teardown, "is_detached", lambda part, is_known: True)
    with pytest.raises(AssertionError):
        test_readers_of_a_weak_stage_that_is_discarded_wait_for_who_runs_it()
    desk = Desk(Pipeline("weak", Pass, Beside, Wary, intervals=1))
    push = discarded(desk)
    for _ in range(5):
        desk.do(tick(desk.environment))
    assert desk.head.inputs["seen"] > 1_000
    desk.finish(*push)
    assert desk.rows(CHUNK)  # In time, and below the watermark.


# What is known again


def test_a_version_that_writes_further_streams_gives_records_the_same_ids() -> None:
    """G14, G6: a record that is pushed again behind the change counts once."""
    desk = Desk(Pipeline("weak", Pass, Seen, standby=[Tagging], intervals=1))
    desk.push(Came("r-1", "a", 1_000))
    desk.run()

    desk.do(replace(desk.environment, "pass", 2))
    desk.push(Came("r-1", "a", 1_000))
    desk.run()

    assert desk.state("seen", "a") == {"seen": 1}
    assert desk.interval("seen").repeated == 1


def test_ids_are_known_while_the_weak_stage_is_away_that_they_came_through() -> None:
    """G14, G6: it may be attached again, and its records may be pushed again."""
    desk = Desk(Pipeline("weak", Pass, Beside, Seen, intervals=1))
    desk.push(Came("r-1", "a", 1_000))
    desk.run()

    desk.do(detach(desk.environment, "pass", discard=False))
    desk.wait(2)
    desk.run()

    assert "pass" not in running_computations(desk.head)
    horizon_ms = desk.environment.at(desk.head).dedup_ms("seen")
    assert horizon_ms == PIPELINE.dedup_ms("seen") > 0


def test_a_tick_of_code_that_lacks_a_source_moves_the_watermarks() -> None:
    """G15: what reads the source was attached by other code."""
    desk = Desk(Pipeline("weak", Beside, Seen, standby=[Pass], intervals=1))
    desk.push(Came("s-1", "a", 1_000), stream="side", watermark=0)
    desk.run()
    desk.do(attach(desk.environment, "pass", None))
    desk.push(Came("r-1", "a", 1_000), watermark=1_000)
    old_machine = desk.simulation.machines[1]
    old_machine.pipeline = Pipeline("weak", Beside, Seen, intervals=1)

    desk.do(tick(desk.simulation.environment(old_machine)))

    assert desk.head.sources == {"in": 1_000, "side": 0}


def test_a_worker_keeps_the_ids_that_come_when_a_weak_stage_is_attached() -> None:
    """G14, G6: also one whose code does not have that stage, and that was at work before."""
    desk = Desk(Pipeline("weak", Beside, Seen, standby=[Pass], intervals=1))
    old_machine = desk.simulation.machines[1]
    old_machine.pipeline = Pipeline("weak", Beside, Seen, intervals=1)
    desk.push(Came("s-1", "a", 1_000), stream="side")
    desk.do(desk.worker("beside"))
    call = desk.until(steps := desk.worker("seen", machine=1), Commit, of=2)

    desk.do(attach(desk.environment, "pass", None))
    desk.push(Came("r-1", "a", 1_000))
    desk.wait(0.1)
    desk.finish(steps, call)
    desk.push(Came("r-1", "a", 1_000))
    desk.run()

    assert desk.state("seen", "a") == {"seen": 2}
    assert desk.interval("seen").repeated == 1
