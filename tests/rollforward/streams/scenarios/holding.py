"""Schedules in which a stage collects records in groups, and holds the watermark for each."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import ClassVar

from rollforward.streams import Computation, Context, Pipeline, PushSource, Record
from rollforward.streams.model.records import NEVER
from rollforward.streams.storage.schema import DEAD, INTERVAL
from tests.rollforward.streams.scenarios.growing import Other
from tests.rollforward.streams.simulator.accidents import Chances
from tests.rollforward.streams.simulator.schedules import IDLE_MS, REFUSED, Rekey
from tests.rollforward.streams.simulator.store import Violation

SIZE = 2


class Groups(Computation):
    """Writes each two records of a key as one, with the earlier of their times."""

    inputs: ClassVar = {"mid": lambda value: value["k"]}
    outputs = ("groups",)

    def record(self, ctx: Context, record: Record) -> None:
        group = ctx.state.list("group")
        group.append([record.value["id"], ctx.late])
        ctx.state["at"] = ctx.hold(min(record.timestamp_ms, ctx.state.get("at", NEVER)))
        if len(group) == SIZE:
            (_, is_late), *_ = group.get()  # The first one has set the hold.
            ids, at = [id_ for id_, _ in group.get()], ctx.state.pop("at")
            value = {"k": ctx.key, "ids": ids, "in time": not is_late, "at": at}
            ctx.produce("groups", value, ctx.release())
            group.clear()


class Grouped(Computation):
    """Notes the groups, and what should not be."""

    inputs: ClassVar = {"groups": lambda value: value["k"]}

    def record(self, ctx: Context, record: Record) -> None:
        if record.value["in time"] and ctx.late:
            ctx.state.list("bad").append(f"{record.value} was held in time, and is late")
        if record.timestamp_ms < ctx.watermark and not ctx.late:
            ctx.state.list("bad").append(f"{record.value} is behind {ctx.watermark}")
        if record.timestamp_ms != record.value["at"]:
            ctx.state.list("bad").append(f"{record.value} is at {record.timestamp_ms}")
        ctx.state.list("got").append(record.value["ids"])


PIPELINE = Pipeline(
    "sim", Rekey, Groups, Grouped, intervals=2,
    sources=[PushSource("in", processes=("a", "b"), idle=timedelta(milliseconds=IDLE_MS))],
)  # fmt: skip


class Holding(Other):
    """A schedule of stages of which one holds the watermark."""

    def __init__(self, seed: int, chances: Chances | None = None) -> None:
        super().__init__(PIPELINE, seed, chances)

    def _judge_counts(self) -> None:
        """Check that each record is in one group, and that the end of the inputs ends all holds."""
        rows = self.simulation.store.rows
        groups = [state.get("group", ()) for _, state in self.judge.states("groups")]
        waiting = [id_ for group in groups for id_, _ in group]
        got = [state.get("got", ()) for _, state in self.judge.states("grouped")]
        written = [id_ for each in got for ids in each for id_ in ids]
        found, dead = Counter(waiting + written), [key for key in rows if key.kind == DEAD]
        poison = [each["id"] for each in self.records if {"poison", REFUSED} & {*each}]
        truth = Counter(each["id"] for each in self.records)
        if len(dead) != len(poison) or found != truth - Counter(poison):
            raise Violation(f"groups of {found}, dead {len(dead)}, instead of {truth}")
        holds = {key.name: row.body.hold for key, row in rows.items() if key.kind == INTERVAL}
        if held := {name: at for name, at in holds.items() if at < NEVER}:
            raise Violation(f"the inputs have ended, and {held} still hold")
