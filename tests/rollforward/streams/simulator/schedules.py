"""Three stages under a schedule, and what must hold after each commit and at rest."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar

import pytest

from rollforward.streams import FOREVER, Computation, Context, Pipeline, PushSource, Record, Timer
from rollforward.streams.exchange.ingest import IngestRequest, inbound_record, ingest
from rollforward.streams.exchange.pulling import Partition, pull_wake
from rollforward.streams.graph.head import read_head
from rollforward.streams.storage import dedup, state_store
from rollforward.streams.storage.remote_calls import Commit, CreateTasks, Pause, Read
from rollforward.streams.storage.schema import CHUNK, DEAD, SourceRow
from tests.rollforward.streams.simulator.accidents import Chances
from tests.rollforward.streams.simulator.invariants import Judge
from tests.rollforward.streams.simulator.simulator import Simulation
from tests.rollforward.streams.simulator.store import Steps, Violation

WINDOW = 10
REFUSED = "refused"  # What comes of such a record no service takes.
KEYS = 4


def begin_pull(simulation: Simulation, stream: str, name: str = "") -> Steps:
    """Have a source or a partition read; again, until that was begun."""
    environment = simulation.environment(simulation.machines[-1])
    partition = Partition(stream, name)
    while True:
        yield from read_head(environment)
        [found] = yield Read([environment.names.source(*partition)])
        if found.body.seq:
            return
        yield CreateTasks(
            [pull_wake(environment, partition, SourceRow(), "begin", environment.new_id())]
        )
        yield Pause(0.2)


class Rekey(Computation):
    """Hands records on under another key, and changes them; one in many is poison."""

    inputs: ClassVar = {"in": lambda value: value["k"]}
    outputs = ("mid",)
    max_attempts = 2

    def record(self, ctx: Context, record: Record) -> None:
        number = int(record.value.pop("k")[1:])
        record.value["k"] = f"m{(number * 7 + 1) % KEYS}"
        if record.value.pop("poison", False):
            raise ValueError("poison")
        ctx.produce("mid", {name: record.value[name] for name in sorted(record.value)})


class Windows(Computation):
    """Counts per key and window, and notes what should not be."""

    inputs: ClassVar = {"mid": lambda value: value["k"]}
    outputs = ("counts",)

    def record(self, ctx: Context, record: Record) -> None:
        start = record.timestamp_ms // WINDOW * WINDOW
        if start + WINDOW <= ctx.watermark:
            if not ctx.late:
                ctx.state.list("bad").append(f"{record.value['id']} was in time, and is late")
            ctx.state.list("late").append(record.value["id"])
            ctx.drop_late()
            return
        ctx.state.map("open").add(str(start))
        ctx.set_timer(str(start), start + WINDOW)

    def timer(self, ctx: Context, timer: Timer) -> None:
        last = ctx.state.value("fired", -1)
        if timer.at_ms < last.get():
            ctx.state.list("bad").append(f"timer {timer.at_ms} after {last.get()}")
        last.set(timer.at_ms)
        count = ctx.state.map("open").pop(timer.tag)
        ctx.produce("counts", {"k": ctx.key, "start": int(timer.tag), "count": count})


class Collect(Computation):
    inputs: ClassVar = {"counts": lambda value: value["k"]}

    def record(self, ctx: Context, record: Record) -> None:
        if record.timestamp_ms < ctx.watermark and not ctx.late:
            ctx.state.list("bad").append(f"window {record.value} was in time, and is late")
        ctx.state.list("got").append([record.value["start"], record.value["count"]])


ONE = Pipeline("sim", Rekey, Windows, Collect, sources=[PushSource("in")], intervals=2)
# Two that push, of which one is silent for longer than it may be.
IDLE_MS = 60
HEARTBEATS = 12  # Of one process, by which the other one is silent, and not the stream.
TWO = Pipeline(
    "sim", Rekey, Windows, Collect, intervals=2,
    sources=[PushSource("in", processes=("a", "b"), idle=timedelta(milliseconds=IDLE_MS))],
)  # fmt: skip
# So small that slabs are cut, states leave them, and ids need several rows.
TINY = {"MAX_SLAB_BYTES": 150, "MAX_SMALL_BYTES": 40}


@contextlib.contextmanager
def rows_of(sizes: Mapping[str, int], ids_in_a_row: int) -> Iterator[pytest.MonkeyPatch]:
    """Let rows have some sizes, or their usual ones; what else is patched ends with that."""
    with pytest.MonkeyPatch.context() as patch:
        for name, size in sizes.items():
            patch.setattr(state_store, name, size)
        if sizes:
            patch.setattr(dedup, "MAX_PART", ids_in_a_row)
        yield patch


class Client:
    """One that pushes, says how far it is, and repeats what was not confirmed."""

    def __init__(self, process: str, records: list[dict[str, Any]], chance: random.Random) -> None:
        self.process = process
        sends = [*records]
        for each in records:
            if chance.random() < 0.2:
                sends.insert(chance.randrange(sends.index(each) + 1, len(sends) + 1), each)
        self.sends = sends
        self.luck = [chance.random() for _ in sends]
        self.sent = self.heartbeats = 0
        self.watermark = 0

    def steps(self, simulation: Simulation) -> Generator[Any, Any, None]:
        environment = simulation.environment(simulation.machines[0])
        while self.sent < len(self.sends):
            part = self.sends[self.sent : self.sent + 3]
            left = self.sends[self.sent + len(part) :]
            watermark = min((each["at"] for each in left), default=self.watermark)
            if self.luck[self.sent] < 0.25:
                watermark += 8  # An estimate that is too high: some will be late.
            watermark = max(self.watermark, watermark)
            records = [
                inbound_record(environment, "in", each, each["at"], each["id"]) for each in part
            ]
            yield from ingest(environment, IngestRequest("in", self.process, records, watermark))
            is_silent = self.process == "b" and self.luck[self.sent] > 0.6
            self.sent, self.watermark = self.sent + len(part), watermark
            yield Pause(4 * IDLE_MS / 1000 if is_silent else 0.01)
        for _ in range(self.heartbeats):
            yield from ingest(environment, IngestRequest("in", self.process, [], self.watermark))
            yield Pause(IDLE_MS / 3 / 1000)
        yield from ingest(environment, IngestRequest("in", self.process, [], FOREVER))


def is_taken(commit: Commit) -> bool:
    """Return whether the service takes a commit: it refuses what stands behind the first stage."""
    letters = [
        letter
        for key, body in commit.inserts
        if key.kind == CHUNK and ":rekey:" not in key.name
        for letter in body
    ]
    return not any(REFUSED in letter.text for letter in letters)


class Schedule:
    """One schedule of the stages, with records that come twice, late, or are poison, and with such
    that lead to what the service refuses.

    A third of the seeds have two clients; half have tiny rows.
    """

    has_refused = True

    def __init__(self, seed: int, chances: Chances | None = None, records: int = 8) -> None:
        pipeline = TWO if seed % 3 == 0 else ONE
        self.simulation = Simulation(pipeline, seed, chances)
        chance = random.Random(seed)
        self.records = [self._record(chance, n) for n in range(records)]
        for record in [] if self.has_refused else self.records:
            record.pop(REFUSED, None)
        processes = pipeline.sources["in"].processes
        self.clients = [
            Client(process, self.records[n :: len(processes)], chance)
            for n, process in enumerate(processes)
        ]
        self.clients[0].heartbeats = HEARTBEATS * (len(self.clients) > 1)
        self.sizes = TINY if seed % 2 else {}
        self.judge = Judge(self.simulation)
        self.simulation.store.takes = is_taken
        for client in self.clients:
            self.simulation.users.append(partial(client.steps, self.simulation))

    @staticmethod
    def _record(chance: random.Random, number: int) -> dict[str, Any]:
        at = max(0, number * 3 - chance.randrange(8))
        value = {"k": f"k{chance.randrange(KEYS)}", "id": f"r{number}", "at": at}
        luck = chance.random()
        if luck < 0.1:
            value["poison" if luck < 0.05 else REFUSED] = 1
        return value

    def run(self) -> None:
        """Play it to its end.

        Raises:
            Violation: an invariant does not hold.
        """
        with rows_of(self.sizes, ids_in_a_row=4):
            self.simulation.run()
        self._judge_rest()

    def _judge_rest(self) -> None:
        """Check the end: all is drained, each record counts once, each window was written once."""
        if any(each.sent < len(each.sends) for each in self.clients):
            raise Violation("a client has not ended")
        self.judge.judge_rest()
        self._judge_counts()

    def _judge_counts(self) -> None:
        judge = self.judge
        late = [each for _, s in judge.states("windows") for each in s.get("late", ())]
        states = judge.states("collect")
        got = [(key, *window) for key, state in states for window in state.get("got", ())]
        written = Counter((key, start) for key, start, _ in got)
        if max(written.values(), default=1) > 1:
            raise Violation(f"a window was written twice: {written}")
        if wrong := [each for each in late if judge.lanes[each] == "0"]:
            raise Violation(f"{wrong} came in time, and are late")
        dead = [key for key in self.simulation.store.rows if key.kind == DEAD]
        poison = [each for each in self.records if {"poison", REFUSED} & {*each}]
        if len(dead) != len(poison) or len(set(late)) != len(late):
            raise Violation(f"dead {len(dead)}, poison {len(poison)}, late {late}")
        truth = Counter(
            (f"m{(int(each['k'][1:]) * 7 + 1) % KEYS}", self.window_of(each))
            for each in self.records
            if each["id"] not in late and each not in poison
        )
        if truth != Counter({(key, start): count for key, start, count in got}):
            raise Violation(f"counts {sorted(got)} instead of {sorted(truth.items())}")

    def window_of(self, record: dict[str, Any]) -> int:
        """Return the start of the window that is to have a record."""
        return int(record["at"]) // WINDOW * WINDOW


class Busy(Schedule):
    """More records in smaller batches, and more ticks: more happens between two reads of a tick."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, records=16)
        config = self.simulation.config
        self.simulation.config = replace(config, tick_s=0.01, max_records=2)


def found(
    kind: Callable[[int], Any],
    variant: Callable[[Any, pytest.MonkeyPatch], None],
    seeds: Iterable[int],
) -> int | None:
    """Return the first seed whose schedule notices a broken variant of the protocol."""
    for seed in seeds:
        schedule = kind(seed)
        with pytest.MonkeyPatch.context() as patch:
            variant(schedule, patch)
            try:
                schedule.run()
            except Violation:
                return seed
    return None
