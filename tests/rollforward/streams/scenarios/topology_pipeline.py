"""A pipeline whose computations are attached, replaced and detached, at a desk."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar

from rollforward.streams import Computation, Context, Pipeline, PushSource, Record, Timer
from rollforward.streams.graph.plan import Change
from rollforward.streams.inspection.topology_status import Topology, topology
from tests.rollforward.streams.simulator.driver import Came, Desk

SOURCE = PushSource("in", disorder=timedelta(0))


def key_of(value: Any) -> str:
    return str(value["k"])


class Tally(Computation):
    """Counts the records of a key, and tells of each."""

    inputs: ClassVar = {"in": key_of}
    outputs = ("tallies",)

    def record(self, ctx: Context, record: Record) -> None:
        count = ctx.state.counter("count").add(1)
        ctx.produce("tallies", {"k": ctx.key, "count": count, "version": self.version})
        ctx.set_timer("later", record.timestamp_ms + 100)

    def timer(self, ctx: Context, timer: Timer) -> None:
        ctx.state["fired"] = [self.version, ctx.is_over]


class Tally2(Tally):
    """Keeps the count elsewhere."""

    name = "tally"
    version = 2
    reads = (1,)

    def upgrade(self, state: dict[str, Any], version: int) -> dict[str, Any]:
        return {"kept": state["count"]}

    def record(self, ctx: Context, record: Record) -> None:
        count = ctx.state.counter("kept").add(1)
        ctx.produce("tallies", {"k": ctx.key, "count": count, "version": self.version})


class Told(Computation):
    inputs: ClassVar = {"tallies": key_of}

    def record(self, ctx: Context, record: Record) -> None:
        if record.timestamp_ms < ctx.watermark and not ctx.late:
            ctx.state.list("bad").append(record.timestamp_ms)
        ctx.state.list("told").append([record.value["count"], record.value["version"]])


class Second(Told):
    """Notes when what it gets was."""

    def record(self, ctx: Context, record: Record) -> None:
        super().record(ctx, record)
        ctx.state.list("at").append(record.timestamp_ms)


class Third(Computation):
    """Reads a stream that nobody else does, too."""

    inputs: ClassVar = {"tallies": key_of, "others": key_of}

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.list("at").append(record.timestamp_ms)


def desk_of(*standby: type[Computation], **more: Any) -> Desk:
    return Desk(Pipeline("live", Tally, Told, standby=standby, sources=[SOURCE], **more))


def parts(desk: Desk) -> Topology:
    found: Topology = desk.do(topology(desk.environment))
    return found


def detached(desk: Desk) -> Change:
    """Return what is known of the one computation that has left."""
    [change] = [each for each in parts(desk).changes if each.action == "detached"]
    return change


def push(desk: Desk, *ats: int) -> None:
    for at in ats:
        desk.push(Came(f"r{at}", "a", at), watermark=at)


class Teller(Computation):
    """One more that writes what `Told` reads."""

    inputs: ClassVar = {"in": key_of}
    outputs = ("tallies",)

    def record(self, ctx: Context, record: Record) -> None:
        ctx.produce("tallies", {"k": ctx.key, "count": 0, "version": 0})
