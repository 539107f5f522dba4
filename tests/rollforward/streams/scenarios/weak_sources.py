"""A pipeline with weak stages behind a source and behind a strong one, and a weak sink."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any, ClassVar

from rollforward.runtime import Clients
from rollforward.streams import Computation, Context, Pipeline, PushedRecord, Record
from rollforward.streams.connectors.sinks import EffectSink
from rollforward.streams.entities import StreamChunk
from rollforward.streams.model.sink import SinkRecord


class Tag(Computation):
    """Hands each record on under its colour; drops those without one."""

    weak = idempotent = True
    max_attempts = 1
    inputs: ClassVar = {"in": lambda value: value["id"]}
    outputs = ("tagged",)

    def record(self, ctx: Context, record: Record) -> None:
        if record.value["colour"] == "poison":
            raise ValueError("poison")
        if record.value["colour"]:
            ctx.produce("tagged", record.value)


class Total(Computation):
    """Counts by colour, and says so."""

    inputs: ClassVar = {"tagged": lambda value: value["colour"]}
    outputs = ("totals",)

    def record(self, ctx: Context, record: Record) -> None:
        seen = ctx.state.counter("seen")
        seen.add(1)
        ctx.produce("totals", {"colour": ctx.key, "seen": seen.get()})


class Shout(Computation):
    """Says it twice."""

    weak = idempotent = True
    inputs: ClassVar = {"totals": lambda value: value["colour"]}
    outputs = ("shouts",)

    def record(self, ctx: Context, record: Record) -> None:
        for _ in range(2):
            ctx.produce("shouts", record.value)


class Heard(Computation):
    inputs: ClassVar = {"shouts": lambda value: value["colour"]}

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.list("heard").append(record.value["seen"])


ACTED: list[SinkRecord] = []


def act(clients: Clients, record: SinkRecord) -> None:
    ACTED.append(record)


COLOURS = Pipeline(
    "colours", Tag, Total, Shout, Heard, intervals=1,
    sinks=[EffectSink("tagged", act, name="outside", weak=True)],
)  # fmt: skip


def colours(*ids: str, colour: str = "red") -> list[PushedRecord]:
    return [
        PushedRecord(id_, {"id": id_, "colour": colour}, 1_000 + n) for n, id_ in enumerate(ids)
    ]


def acted() -> dict[str, set[str]]:
    """Return by record the names under which the sink has acted on it."""
    names = defaultdict(set)
    for each in ACTED:
        names[each.value["id"]].add(each.id)
    return dict(names)


def heard(clients: Clients) -> Counter[int]:
    states: Any = COLOURS.states(clients, "heard")
    return Counter(seen for _, state in states for seen in state["heard"])


def is_drained() -> bool:
    return StreamChunk.query().get(keys_only=True) is None
