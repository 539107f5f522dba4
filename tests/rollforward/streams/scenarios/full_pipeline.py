"""What else a pipeline has, under a schedule: a source that is pulled, timers of the clock, dead
letters that are replayed, ids that are forgotten."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar

from rollforward.streams import (
    FOREVER,
    Computation,
    Context,
    Pipeline,
    Pulled,
    PullSource,
    PushSource,
    Record,
    Timer,
    sweep,
)
from rollforward.streams.exchange.ingest import IngestRequest, inbound_record, ingest
from rollforward.streams.inspection.dead_letters import replay
from rollforward.streams.storage.remote_calls import Pause, Scan
from rollforward.streams.storage.schema import CHUNK, DEAD, Names, fingerprint
from tests.rollforward.streams.simulator.accidents import Chances
from tests.rollforward.streams.simulator.invariants import Judge
from tests.rollforward.streams.simulator.schedules import TINY, begin_pull, rows_of
from tests.rollforward.streams.simulator.simulator import Simulation
from tests.rollforward.streams.simulator.store import Steps, Violation

KEYS = 3
WAIT_MS = 40
IDLE_MS = 120
POLL_MS = 30
DEDUP_MS = 700
STALE_MS = 300


class Notes(Computation):
    """Gathers records of a key, and tells of them when its clock says so; some are poison."""

    outputs = ("told",)
    max_attempts = 1

    def __init__(self, schedule: Mixed) -> None:
        self.schedule = schedule
        self.inputs: Mapping[str, Any] = {"in": self.key, "log": self.key}

    def key(self, value: Any) -> str:
        return str(value.get("k", "k0") if self.schedule.is_fixed else value["k"])

    def record(self, ctx: Context, record: Record) -> None:
        if "poison" in record.value and not self.schedule.is_fixed:
            raise ValueError("poison")
        if record.timestamp_ms < ctx.watermark and not ctx.late:
            ctx.state.list("bad").append(f"{record.value['id']} was in time, and is late")
        ctx.state.list("waiting").append(record.value["id"])
        if record.timestamp_ms % 3 or "at" not in ctx.state:
            ctx.state["at"] = ctx.now_ms + WAIT_MS
            ctx.set_timer("tell", ctx.now_ms + WAIT_MS, processing_time=True)

    def timer(self, ctx: Context, timer: Timer) -> None:
        waiting = ctx.state.list("waiting")
        if ctx.now_ms < timer.at_ms or timer.at_ms != ctx.state.pop("at"):
            ctx.state.list("bad").append(f"{timer} fires at {ctx.now_ms}")
        ctx.produce("told", {"k": ctx.key, "ids": list(waiting.get())})
        waiting.set([])


class Told(Computation):
    inputs: ClassVar = {"told": lambda value: value["k"]}

    def record(self, ctx: Context, record: Record) -> None:
        if record.timestamp_ms < ctx.watermark and not ctx.late:
            ctx.state.list("bad").append(f"{record.value} was in time, and is late")
        ctx.state.list("told").append(record.value["ids"])


class Mixed:
    """One schedule. In half of them the log is polled, and grows; in a third two clients push.

    Attributes:
        partitions: Of the log.
    """

    partitions: ClassVar[tuple[str, ...]] = ("",)

    def __init__(self, seed: int, chances: Chances | None = None, records: int = 6) -> None:
        self.chance = random.Random(seed)
        self.is_fixed = False
        self.grows = seed % 2 == 0
        self.processes = ("a", "b") if seed % 3 == 0 else ("",)
        self.simulation = Simulation(self._pipeline(), seed, chances)
        size = records // len(self.partitions)
        self.logs = {
            name: [self._record(f"p{name}", n) for n in range(size)] for name in self.partitions
        }
        self.pushed = {
            process: [self._record(f"r{process}", n) for n in range(records // 2)]
            for process in self.processes
        }
        # Two push side by side for one process.
        self.retired = {
            (process, part): self._sends(records[part::2])
            for process, records in self.pushed.items()
            for part in (0, 1)
        }
        self.sizes = TINY if seed % 5 else {}
        self.judge = Judge(self.simulation)
        users = [partial(self._push, *place) for place in self.retired]
        pulls = [partial(begin_pull, self.simulation, "log", name) for name in self.partitions]
        self.simulation.users += [*users, *pulls, self._replay]

    def _pipeline(self) -> Pipeline:
        idle, dedup = timedelta(milliseconds=IDLE_MS), timedelta(milliseconds=DEDUP_MS)
        poll = timedelta(milliseconds=POLL_MS) if self.grows else None
        readers = {name: partial(self._read, name) for name in self.partitions}
        sources = [
            PushSource("in", processes=self.processes, idle=idle, dedup=dedup),
            PullSource("log", readers.get("", readers), poll=poll),
        ]
        return Pipeline("mix", Notes(self), Told, intervals=2, sources=sources)

    def _record(self, name: str, number: int) -> dict[str, Any]:
        at = max(0, number * 4 - self.chance.randrange(8))
        value = {"k": f"k{self.chance.randrange(KEYS)}", "id": f"{name}{number}", "at": at}
        luck = self.chance.random()
        if luck < 0.1:
            value["poison"] = 1
        elif luck < 0.2:
            del value["k"]
        return value

    def _sends(self, records: list[dict[str, Any]]) -> list[tuple[dict[str, Any], float]]:
        """Return what a client pushes, and how long it waits before each; some of it repeats."""
        sends = [(each, 0.004) for each in records]
        for each in records:
            if self.chance.random() < 0.4:
                sends.append((each, self.chance.choice((0, DEDUP_MS / 2_000, DEDUP_MS / 500))))
        return sends

    # Who uses the pipeline

    def _push(self, process: str, part: int) -> Steps:
        environment = self.simulation.environment(self.simulation.machines[part])
        left = self.retired[process, part]
        while left:
            value, wait_s = left[0]
            yield Pause(wait_s)
            records = [inbound_record(environment, "in", value, value["at"], value["id"])]
            yield from ingest(environment, IngestRequest("in", process, records, value["at"]))
            left.pop(0)
        if not any(self.retired[process, each] for each in (0, 1)):
            yield from ingest(environment, IngestRequest("in", process, [], FOREVER))

    def _read(self, partition: str, clients: Any, position: Any, limit: int) -> Pulled:
        """Read two records at a time; of a log that grows, what is there by now."""
        first, log = position or 0, self.logs[partition]
        now = (self.simulation.now_ms - 1_000_000) // 40 if self.grows else len(log)
        end = min(first + 2, max(now, first), len(log))
        records = [(each, each["at"]) for each in log[first:end]]
        watermark = min((each["at"] for each in log[end:]), default=0)
        watermark += 5 * (end % 3 == 0)  # An estimate that is too high: some will be late.
        return Pulled(records, end, watermark, is_over=end == len(log))

    def _replay(self) -> Steps:
        """Replay what is dead, before what is wrong with it is fixed, and then until none is."""
        environment = self.simulation.environment(self.simulation.machines[0])
        while not self._is_over():
            yield Pause(0.06)
            found = yield Scan(DEAD, "mix:", "mix;", 100)
            for name, _ in found:
                yield from replay(environment, name.removeprefix("mix:"))
            self.is_fixed = self.is_fixed or bool(found) or self._has_come()

    def _has_come(self) -> bool:
        """Return whether all records are in, and out of the inboxes."""
        rows, names = self.simulation.store.rows, Names("mix")
        pulled = [("log", name) for name in self.partitions]
        places = [*pulled, *(("in", process) for process in self.processes)]
        sources = [rows.get(names.source(*place)) for place in places]
        are_over = all(row is not None and row.body.watermark >= FOREVER for row in sources)
        are_sent = are_over and not any(self.retired.values())
        return are_sent and not any(key.kind == CHUNK for key in rows)

    def _is_over(self) -> bool:
        rows = self.simulation.store.rows
        return self._has_come() and not any(key.kind == DEAD for key in rows)

    # What must hold

    def run(self) -> None:
        """Play it to its end.

        Raises:
            Violation: an invariant does not hold.
        """
        with rows_of(self.sizes, ids_in_a_row=2) as patch:
            patch.setattr(sweep, "STALE_MS", STALE_MS)
            self.simulation.run()
        self.judge.judge_rest()
        self._judge_counts()

    def _judge_counts(self) -> None:
        """Check that each record was told of as often as it was accepted: once, in its horizon."""
        accepted = Counter[str]()
        for (_, id_), ats in self.judge.accepted.items():
            accepted[id_] += len(ats)
        truth = Counter({each["id"]: 1 for log in self.logs.values() for each in log})
        for each in [each for records in self.pushed.values() for each in records]:
            truth[each["id"]] = accepted[fingerprint(f"in {each['id']}")]
        told = Counter(
            id_
            for _, state in self.judge.states("told")
            for some in state.get("told", ())
            for id_ in some
        )
        if told != truth or min(truth.values()) < 1:
            raise Violation(f"told {told - truth}, not told {truth - told}, of {truth}")


class Parted(Mixed):
    """The log has partitions, which several machines read at the same time."""

    partitions = ("x", "y")
