"""Topologies drawn by a seed, with weak computations and a weak sink, under a schedule."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import pytest

from rollforward.streams import (
    Computation,
    Context,
    Pipeline,
    Pulled,
    PullSource,
    PushSource,
    Record,
    sweep,
)
from rollforward.streams.model.errors import BadLayoutError
from rollforward.streams.model.sink import Sink, SinkRecord
from rollforward.streams.model.slots import SLOTS, slot_of
from rollforward.streams.scaling.resharding import merge, split
from rollforward.streams.storage import dedup
from rollforward.streams.storage.remote_calls import Commit, Key, Pause, StoredRow
from rollforward.streams.storage.schema import CHUNK, DEAD, HEAD, Head
from tests.rollforward.streams.simulator.accidents import NO_FAULTS, Chances, KilledError
from tests.rollforward.streams.simulator.invariants import Judge
from tests.rollforward.streams.simulator.schedules import Client, begin_pull
from tests.rollforward.streams.simulator.simulator import Simulation
from tests.rollforward.streams.simulator.store import Violation

KEYS = 3
KEY_SLOTS = [slot_of(f"k{n}") for n in range(KEYS)]
RESHAPED = 4
Path = tuple[str, tuple[str, ...]]  # The id of a record, and the stages that it has passed.


class Stage(Computation):
    """Hands each record on, once or twice; raises at the records that are poison for it."""

    max_attempts = 2
    idempotent = True

    def __init__(self, name: str, streams: list[str], *, weak: bool, copies: int) -> None:
        self.name, self.weak, self.copies = name, weak, copies
        self.inputs = dict.fromkeys(streams, lambda value: value["k"])
        self.outputs = (f"{name}-out",)

    def record(self, ctx: Context, record: Record) -> None:
        if record.value.get("poison") == self.name:
            raise KilledError if record.value.get("kills") else ValueError("poison")
        if not self.weak:
            _note(ctx, record)
        for stream, value in self.results(record.value):
            ctx.produce(stream, value)

    def results(self, value: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield what it makes of a value, each with the stream that it writes it to."""
        for n in range(self.copies):
            number = (int(value["k"][1:]) + n) % KEYS
            path = [*value["path"], f"{self.name}.{n}"]
            yield self.outputs[0], {**value, "k": f"k{number}", "path": path}


class Collect(Computation):
    """Keeps what comes."""

    def __init__(self, streams: list[str], name: str = "collect") -> None:
        self.name = name
        self.inputs = dict.fromkeys(streams, lambda value: value["k"])

    def record(self, ctx: Context, record: Record) -> None:
        _note(ctx, record)
        ctx.state.list("got").append([record.value["id"], record.value["path"]])


def _note(ctx: Context, record: Record) -> None:
    if ctx.late:
        ctx.state.list("late").append([record.value["id"], record.value["path"]])
    elif record.timestamp_ms < ctx.watermark:
        ctx.state.list("bad").append(f"{record.value} was in time, and is late")


class Outside(Sink):
    """Acts outside: the simulator says what is done in time."""

    weak = True
    idempotent = True

    def act(self, clients: Any, record: SinkRecord) -> None:
        raise NotImplementedError


class Topology:
    """A pipeline drawn by a seed: sources, up to three stages, who reads what, and what is weak."""

    def __init__(self, chance: random.Random, read: Any) -> None:
        self.sources = ["in", "log"] if chance.random() < 0.4 else ["in"]
        weak_streams, streams, self.stages = [*self.sources], [*self.sources], list[Stage]()
        for n in range(chance.randint(1, 3)):
            inputs = chance.sample(streams, min(len(streams), chance.randint(1, 2)))
            weak, copies = chance.random() < 0.7, chance.choice((1, 1, 2))
            stage = Stage(f"s{n}", inputs, weak=weak, copies=copies)
            if weak and set(inputs) <= set(weak_streams):
                weak_streams += stage.outputs
            self.stages.append(stage)
            streams += stage.outputs
        last = self.stages[-1].outputs[0]
        self.collected = list({last, chance.choice(streams)})
        self.handed = chance.choice(weak_streams)
        read_by = {*self.collected, self.handed, *(s for each in self.stages for s in each.inputs)}
        self.sources = [each for each in self.sources if each in read_by]
        self.pipeline = Pipeline(
            "weak",
            *self.stages,
            Collect(self.collected),
            sources=[
                PushSource(each) if each == "in" else PullSource(each, read)
                for each in self.sources
            ],
            sinks=[Outside(self.handed, name="outside", key=lambda value: value["k"])],
            intervals=2,
        )

    def paths(self, stream: str, source: str, record: Mapping[str, Any]) -> Iterator[Path]:
        """Yield what comes of a record on a stream."""
        if stream == source:
            yield record["id"], ()
        for stage in self.stages:
            if stage.outputs[0] != stream or record.get("poison") == stage.name:
                continue
            for each in stage.inputs:
                for id_, path in self.paths(each, source, record):
                    for n in range(stage.copies):
                        yield id_, (*path, f"{stage.name}.{n}")

    def crash_count(self, source: str, record: Mapping[str, Any]) -> int:
        """Return how many dead letters a record leads to."""
        stage = next((each for each in self.stages if each.name == record.get("poison")), None)
        inputs = stage.inputs if stage else ()
        return sum(len(list(self.paths(each, source, record))) for each in inputs)


class WeakJudge(Judge):
    """Also looks at what is downstream of a record: it may be on its way through weak stages."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        graph = simulation.pipeline.graph
        for name in reversed(graph.order):  # All readers, not only the next ones.
            far = {each for near in self.readers[name] for each in self.readers[near]}
            self.readers[name] = sorted({*self.readers[name], *far})
        self.first_lanes: dict[str, str] = {}
        self.delivered: list[SinkRecord] = []

    def judge(self, commit: Commit, before: Mapping[Key, StoredRow]) -> None:
        for key, body in commit.inserts:
            if key.kind == CHUNK:
                lane = key.name.split(":")[3]
                for letter in body:
                    if letter.text.startswith("{"):
                        id_ = letter.text.partition('"id":"')[2].partition('"')[0]
                        self.first_lanes.setdefault(id_, lane)
        if commit.delivery is not None:
            self.delivered += commit.delivery.values
        super().judge(commit, before)

    def _judge_chunk(self, name: str) -> None:
        super()._judge_chunk(name)
        _, computation, _, lane, at, _ = name.split(":")
        for reader in self.readers[computation] if lane == "0" else ():
            if int(at) < self.head.inputs.get(reader, 0):
                raise Violation(f"{name} is on its way to {reader}, passed by {self.head.inputs}")


class PullOnce:
    """A log that is pulled, two records at a time."""

    def __init__(self, records: list[dict[str, Any]]) -> None:
        self.records = records

    def read(self, clients: Any, position: Any, limit: int) -> Pulled:
        first = position or 0
        end = min(first + 2, len(self.records))
        part = [(each, each["at"]) for each in self.records[first:end]]
        watermark = min((each["at"] for each in self.records[end:]), default=0)
        return Pulled(part, end, watermark, is_over=end == len(self.records))


class Weak:
    """One schedule. Half of them split and merge intervals; some let few records pass, or none."""

    judged_by: ClassVar[type[WeakJudge]] = WeakJudge

    def __init__(self, seed: int, chances: Chances | None = None, records: int = 6) -> None:
        self.chance = chance = random.Random(seed)
        self.logged = [self._record("p", n, chance) for n in range(records // 2)]
        self.topology = self._drawn(chance)
        self.records = [self._record("r", n, chance) for n in range(records)]
        pipeline = self.topology.pipeline
        self.simulation = simulation = Simulation(pipeline, seed, chances)
        simulation.slow_sinks = chance.choice((0.0, 0.4)) if chances is not NO_FAULTS else 0.0
        most = chance.choice((0, 1, 3, 2_000, 2_000))
        simulation.config = replace(simulation.config, max_inlined=most)
        self.judge = self.judged_by(simulation)
        self.client = Client("", self.records, chance)
        self.pushed: Counter[str] = Counter()
        self.reshaped = 0 if seed % 2 else RESHAPED
        simulation.users.append(self._reshape)
        if "in" in self.topology.sources:
            simulation.users.append(self._push)
        if "log" in self.topology.sources:
            simulation.users.append(partial(begin_pull, simulation, "log"))

    def _drawn(self, chance: random.Random) -> Topology:
        return Topology(chance, PullOnce(self.logged).read)

    def _push(self) -> Generator[Any, Any, None]:
        yield from self.client.steps(self.simulation)

    def _record(self, name: str, number: int, chance: random.Random) -> dict[str, Any]:
        at = max(0, number * 3 - chance.randrange(8))
        value = {"k": f"k{chance.randrange(KEYS)}", "id": f"{name}{number}", "at": at, "path": []}
        poison = f"s{chance.randrange(3)}"
        return {**value, "poison": poison} if chance.random() < 0.15 else value

    def _reshape(self) -> Generator[Any, Any, None]:
        environment = self.simulation.environment(self.simulation.machines[0])
        names = [each.name for each in self.topology.stages] + ["collect"]
        while self.reshaped < RESHAPED:
            yield Pause(self.chance.choice((0.001, 0.01, 0.03)))
            name = self.chance.choice(names)
            los = self.head.intervals.get(name, ())[1:]
            try:
                if los and self.chance.random() < 0.5:
                    yield from merge(environment, name, self.chance.choice(los))
                else:
                    slot = self.chance.choice([*KEY_SLOTS, self.chance.randrange(SLOTS)])
                    yield from split(environment, name, slot)
            except BadLayoutError:
                pass
            self.reshaped += 1

    @property
    def head(self) -> Head:
        rows = self.simulation.store.rows
        heads = [found.body for key, found in rows.items() if key.kind == HEAD]
        return heads[0] if heads else Head()

    def run(self) -> None:
        """Play it to its end.

        Raises:
            Violation: an invariant does not hold.
        """
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dedup, "MAX_PART", 4)
            patch.setattr(sweep, "STALE_MS", 300)
            self.simulation.run()
        self.judge.judge_rest()
        self._judge_late()
        self._judge_results()
        self._judge_outside()

    def truth(self, stream: str) -> Counter[Path]:
        """Return what has to come on a stream, once each."""
        found: Counter[Path] = Counter()
        for source, records in (("in", self.records), ("log", self.logged)):
            if source in self.topology.sources:
                for record in records:
                    found.update(self.topology.paths(stream, source, record))
        return found

    def got(self) -> Counter[Path]:
        """Return what has come to the collector."""
        return Counter(
            (id_, tuple(path))
            for _, state in self.judge.states("collect")
            for id_, path in state.get("got", ())
        )

    def _judge_late(self) -> None:
        lanes = self.judge.first_lanes
        for _, state in self.judge.states(""):
            if wrong := [each for each, _ in state.get("late", ()) if lanes[each] == "0"]:
                raise Violation(f"{wrong} came in time, and are late")

    def _judge_results(self) -> None:
        """Check that each record counts once behind weak stages, and fails once."""
        got = self.got()
        truth: Counter[Path] = Counter()
        for stream in self.topology.collected:
            truth += self.truth(stream)
        if got != truth:
            raise Violation(f"more {got - truth}, fewer {truth - got}")
        dead = sum(key.kind == DEAD for key in self.simulation.store.rows)
        crash_count = sum(
            self.topology.crash_count(source, record)
            for source, records in (("in", self.records), ("log", self.logged))
            if source in self.topology.sources
            for record in records
        )
        if dead != crash_count:
            raise Violation(f"{dead} dead letters, not {crash_count}")
        if self.head.retired:
            raise Violation(f"not forgotten: {self.head.retired}")

    def _judge_outside(self) -> None:
        """Check that the sink acted on each record, by one name, and on nothing else."""
        handed = [record for _, record in self.simulation.handed]
        names: dict[Path, set[str]] = defaultdict(set)
        for each in [*handed, *self.judge.delivered]:
            names[each.value["id"], tuple(each.value["path"])].add(each.id)
        truth = self.truth(self.topology.handed)
        if set(names) != set(truth):
            raise Violation(f"acted on {set(names) - set(truth)}, not on {set(truth) - set(names)}")
        all_names = [name for each in names.values() for name in each]
        if len(all_names) != len(names) or len(set(all_names)) != len(names):
            raise Violation(f"not one name each: {dict(names)}")
        delivered = Counter(each.id for each in self.judge.delivered)
        if max(delivered.values(), default=1) > 1:
            raise Violation(f"delivered twice: {delivered}")

    @property
    def acts(self) -> Counter[str]:
        """Return how often the sink acted, by the name of the record."""
        handed = [record for _, record in self.simulation.handed]
        return Counter(each.id for each in [*handed, *self.judge.delivered])


# Nobody else dies: deaths that come together are held against who is there.
HARMLESS = replace(NO_FAULTS, double=0.1, delay=0.1)


class Killing(Weak):
    """Poison kills the process that works on it, be it of a source or a worker.

    Nothing else becomes a dead letter, whatever comes to stand before it meanwhile.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed, HARMLESS)
        self.simulation.max_steps = 10_000  # Each killer takes some ten processes with it.

    def _record(self, name: str, number: int, chance: random.Random) -> dict[str, Any]:
        return {**super()._record(name, number, chance), "kills": True}
