"""Schedules of two pipelines over one store: the second reads what the first one publishes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar

from rollforward.streams import FOREVER, Computation, Context, Pipeline, Record, sweep
from rollforward.streams.graph.environment import Environment
from rollforward.streams.graph.head import read_head
from rollforward.streams.publications import Publication, Subscription
from rollforward.streams.publications.log import Position, position_of
from rollforward.streams.publications.retention import delete_read_rows
from rollforward.streams.storage.remote_calls import (
    Commit,
    Key,
    Pause,
    Read,
    StoredRow,
)
from rollforward.streams.storage.schema import DEAD, LOG, SOURCE, SUBSCRIPTION, Names
from tests.rollforward.streams.scenarios.growing import Other, pipeline_of
from tests.rollforward.streams.simulator.accidents import NO_FAULTS, Chances
from tests.rollforward.streams.simulator.invariants import Judge
from tests.rollforward.streams.simulator.schedules import (
    REFUSED,
    Client,
    Collect,
    Rekey,
    Windows,
    begin_pull,
    rows_of,
)
from tests.rollforward.streams.simulator.simulator import (
    FAULTY_STEPS,
    SWEEP,
    SWEPT_EVERY_MS,
    Process,
    Simulation,
)
from tests.rollforward.streams.simulator.store import Steps, Violation

PARTITIONS = 2
POLL_MS, STALE_MS, KEEP_MS = 30, 300, 60
READER = "reader"
MAX_RESTS = 20


class Reads(Computation):
    """Lists the ids of what it reads, and notes what should not be."""

    inputs: ClassVar = {"mid": lambda value: value["k"]}

    def record(self, ctx: Context, record: Record) -> None:
        if record.timestamp_ms < ctx.watermark and not ctx.late:
            ctx.state.list("bad").append(f"{record.value} is behind {ctx.watermark}")
        ctx.state.list("late" if ctx.late else "got").append(record.value["id"])


def _next_ms(simulation: Simulation) -> int:
    """Return when a simulation goes on; `FOREVER`: only a sweep lets it."""
    times = [at for at, _ in simulation.wakes]
    return min([*times, *(each.ready_ms for each in simulation.processes)], default=FOREVER)


class Publisher(Simulation):
    """Its sweep deletes rows of the log, too."""

    def _sweep(self, environment: Environment) -> Steps:
        yield from super()._sweep(environment)
        yield from delete_read_rows(environment)


class Publishing(Other):
    """The publisher runs one of the usual schedules, and both have faults of their own.

    Attributes:
        reader: The simulation of the subscriber.
    """

    simulation_type = Publisher

    def __init__(self, seed: int, chances: Chances | None = None) -> None:
        publication = Publication(
            "mid", keep=timedelta(milliseconds=KEEP_MS), key=lambda value: value["k"],
            partitions=PARTITIONS,
        )  # fmt: skip
        processes = 2 if seed % 3 == 0 else 1
        pipeline = pipeline_of(Rekey, Windows, Collect, processes=processes, sinks=[publication])
        super().__init__(pipeline, seed, chances)
        poll = timedelta(milliseconds=POLL_MS)
        source = Subscription(publication, start="earliest", poll=poll)
        reader = Pipeline(READER, Reads, sources=[source], intervals=2)
        self.reader = Simulation(reader, seed + 1, chances)
        self.reader.store = self.simulation.store
        self.publisher_judge, self.reader_judge = self.judge, Judge(self.reader)
        self.simulation.store.on_commit = self._judge
        self.reader.users += [
            partial(begin_pull, self.reader, "mid", str(number)) for number in range(PARTITIONS)
        ]

    def _patient(self, client: Client) -> Iterator[Any]:
        """Push once the subscriber has registered, so that it misses nothing."""
        simulation = self.simulation
        environment = simulation.environment(simulation.machines[0])
        key = Names("sim").subscription("mid-log", READER, "mid")
        while True:
            yield from read_head(environment)
            [row] = yield Read([key])
            if row is not None:
                break
            yield Pause(0.02)
        yield from super()._patient(client)

    def run(self) -> None:
        with rows_of(self.sizes, ids_in_a_row=4) as patch:
            patch.setattr(sweep, "STALE_MS", STALE_MS)
            self._run_both()
        self._judge_rest()

    def _run_both(self) -> None:
        """Let both go on until both are at rest and the subscriber has come to the end."""
        both = (self.simulation, self.reader)
        for each in both:
            each.processes += [Process(user(), each.machines[0], None, user) for user in each.users]
        rests = 0
        for step in range(2 * self.simulation.max_steps):
            if step == 2 * FAULTY_STEPS:
                for each in both:
                    each.chances = NO_FAULTS
            if self._step_one(both):
                rests = 0
                continue
            rests += 1
            if rests and self._has_ended():
                return
            if rests > MAX_RESTS:
                raise Violation(f"the subscriber stands still at {self.reader_judge.head}")
            for each in both:
                each.now_ms += STALE_MS
                each.has_rested = False
        raise Violation("not at rest")

    def _step_one(self, both: Sequence[Simulation]) -> bool:
        """Let one of them do one call; return False if neither has anything to do any more.

        Time passes for both, and only when neither can go on: a lease must not end meanwhile.
        """
        now_ms, times = max(each.now_ms for each in both), [*map(_next_ms, both)]
        if now_ms < min(times) < FOREVER:
            now_ms = min(times)
        for each in both:
            each.now_ms = now_ms
            if min(times) < FOREVER and now_ms - each.swept_ms > SWEPT_EVERY_MS:
                each.swept_ms = now_ms
                each.wakes.append((now_ms, SWEEP))
        busy = [each for each, at in zip(both, times, strict=True) if at <= now_ms]
        if busy:
            return self.simulation.random.choice(busy)._step()
        return self.simulation._step() | self.reader._step()

    def _has_ended(self) -> bool:
        return {*self.reader_judge.head.inputs.values()} == {FOREVER}

    # What must hold

    def _judge(self, commit: Commit, before: Mapping[Key, StoredRow]) -> None:
        self.publisher_judge.judge(commit, before)
        self.reader_judge.judge(commit, before)
        for key, body, _ in commit.puts:
            if key.kind == SOURCE and key.name.startswith(f"{READER}:"):
                published = self.publisher_judge.head.published.get("mid-log", 0)
                if body.watermark > published:
                    raise Violation(f"{key.name} is at {body.watermark}, beyond {published}")
        for key in before:
            if key.kind == LOG:
                self._judge_deleted(key.name)

    def _judge_deleted(self, name: str) -> None:
        """Check that no row of the log is deleted that the subscriber has not read."""
        end, _ = position_of(name)
        number = [*self.partition_los].index(int(name.split(":")[2], 16))
        row = self.simulation.store.rows.get(Names(READER).source("mid", str(number)))
        position = Position(*(row.body.position if row and row.body.position else ()))
        if end > position:
            raise Violation(f"{name} is deleted, and the subscriber is at {position}")

    @property
    def partition_los(self) -> tuple[int, ...]:
        source: Any = self.reader.pipeline.source("mid")
        return tuple(source.first_slots)

    def _judge_counts(self) -> None:
        """Check that each record was read once, and in time if it came in time."""
        super()._judge_counts()
        self.reader_judge.judge_rest()
        states = [state for _, state in self.reader_judge.states("reads")]
        late = [id_ for state in states for id_ in state.get("late", ())]
        read = Counter(late + [id_ for state in states for id_ in state.get("got", ())])
        poison = {each["id"] for each in self.records if {"poison", REFUSED} & {*each}}
        truth = Counter(each["id"] for each in self.records if each["id"] not in poison)
        if read != truth:
            raise Violation(f"read {read - truth} too often, {truth - read} not")
        if wrong := [id_ for id_ in late if self.publisher_judge.lanes[id_] == "0"]:
            raise Violation(f"{wrong} came in time, and are late for the subscriber")
        rows = self.simulation.store.rows
        if len([key for key in rows if key.kind == SUBSCRIPTION]) != 1:
            raise Violation("the subscriber is not registered once")
        if dead := [key for key in rows if key.kind == DEAD and key.name.startswith(READER)]:
            raise Violation(f"dead letters of the subscriber: {dead}")
