"""Graphs drawn by a seed: computations of several kinds over each other's streams."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any, ClassVar

from rollforward.streams import Computation, Context, Pipeline, Record, Timer
from rollforward.streams.operators.aggregates import total
from rollforward.streams.operators.joins import IntervalJoin, WindowJoin
from rollforward.streams.operators.windows import Session, Sliding, Tumbling, Windowed

SECOND = timedelta(seconds=1)
MINUTE_MS = 60_000


def by_key(value: Any) -> str:
    """Return the key that every stage keeps in its values."""
    return str(value["k"] if "k" in value else value["key"])


def by_text(value: Any) -> str:
    """Return one of four other keys, which follows from the value alone."""
    return f"r{sum(map(ord, str(sorted(value.items())))) % 4}"


def amount(value: Any) -> int:
    """Return a number of any stage's value."""
    return int(value["size"]) if "size" in value else len(str(value))


class Sums(Computation):
    """Sums a key's minutes by timers of its own, in a way that no order of records changes."""

    def __init__(self, name: str, inputs: dict[str, Callable[[Any], str]], output: str) -> None:
        self.name, self.inputs, self.outputs = name, inputs, (output,)

    def record(self, ctx: Context, record: Record) -> None:
        start = record.timestamp_ms // MINUTE_MS * MINUTE_MS
        ctx.state.map("minutes").add(str(start), amount(record.value))
        ctx.set_timer(str(start), start + MINUTE_MS)

    def timer(self, ctx: Context, timer: Timer) -> None:
        size = ctx.state.map("minutes").pop(timer.tag)
        ctx.produce(self.outputs[0], {"k": ctx.key, "from": timer.tag, "size": size})


class Filtered(Computation):
    """Passes on some records, without a state."""

    weak = idempotent = True

    def __init__(self, name: str, inputs: dict[str, Callable[[Any], str]], output: str) -> None:
        self.name, self.inputs, self.outputs = name, inputs, (output,)

    def record(self, ctx: Context, record: Record) -> None:
        if amount(record.value) % 3:
            ctx.produce(self.outputs[0], record.value)


class Stateful(Filtered):
    """Passes on all records, and counts them."""

    weak = idempotent = False

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.counter("seen").add(1)
        ctx.produce(self.outputs[0], record.value)


def _window(chance: random.Random) -> Any:
    return chance.choice(
        [
            Tumbling(chance.choice([10, 30, 60]) * SECOND),
            Sliding(60 * SECOND, chance.choice([20, 30]) * SECOND),
            Session(chance.choice([5, 15]) * SECOND),
        ]
    )


def _drawn_node(chance: random.Random, name: str, streams: list[str], output: str) -> Computation:
    """Return a computation that reads one or two of the streams."""
    kind = chance.choice(["windows", "windows", "sums", "weak", "stateful", "join", "interval"])
    if kind in ("join", "interval") and len(streams) < 2:
        kind = "windows"
    count = 2 if kind in ("join", "interval") else chance.randint(1, min(2, len(streams)))
    key = by_key if kind in ("join", "interval") else chance.choice([by_key, by_text])
    inputs = dict.fromkeys(chance.sample(streams, count), key)
    if kind == "windows":
        return Windowed(name, _window(chance), inputs=inputs, output=output, combine=total(amount))
    if kind == "interval":
        return IntervalJoin(
            name, inputs=inputs, output=output, lower=timedelta(0), upper=20 * SECOND
        )
    if kind == "join":
        return WindowJoin(name, inputs=inputs, output=output, windows=Tumbling(30 * SECOND))
    kinds = {"sums": Sums, "weak": Filtered, "stateful": Stateful}
    return kinds[kind](name, inputs, output)


def drawn_graph(seed: int) -> Pipeline:
    """Return a pipeline of two to five computations over one or two sources."""
    chance = random.Random(f"graph {seed}")
    streams = ["in"] if chance.random() < 0.5 else ["in", "other"]
    nodes = list[Computation]()
    for number in range(chance.randint(2, 5)):
        output = f"out-{number}"
        nodes.append(_drawn_node(chance, f"node-{number}", streams, output))
        streams.append(output)
    return Pipeline("drawn", *nodes)


class Forgetting(Computation):
    """Counts a key's records until it has had none for a minute."""

    inputs: ClassVar = {"in": by_key}
    outputs = ("counts",)
    ttl = timedelta(minutes=1)

    def record(self, ctx: Context, record: Record) -> None:
        seen = ctx.state.counter("seen")
        seen.add(1)
        ctx.produce("counts", {"n": record.value["n"], "seen": seen.get()})


class Hourly(Computation):
    """Says an hour after a key's first record, by the clock, how many there were."""

    inputs: ClassVar = {"in": by_key}
    outputs = ("told",)

    def record(self, ctx: Context, record: Record) -> None:
        if not ctx.state.counter("seen").get():
            ctx.set_timer("hour", ctx.now_ms + 3_600_000, processing_time=True)
        ctx.state.counter("seen").add(1)

    def timer(self, ctx: Context, timer: Timer) -> None:
        ctx.produce("told", {"k": ctx.key, "seen": ctx.state.counter("seen").get()})


def panes() -> Pipeline:
    """Return windows with early and late panes."""
    windows = Windowed(
        "panes", Tumbling(60 * SECOND), inputs={"in": by_key}, output="out", early=20 * SECOND,
        lateness=60 * SECOND,
    )  # fmt: skip
    return Pipeline("judged", windows)
