"""Lateness of a record: it follows from its arrival, and not from the speed of workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from operator import itemgetter
from typing import Any, ClassVar

import pytest

from rollforward.streams import Computation, Context, Pipeline, PushSource, Record, Timer
from rollforward.streams.coordinator import tick
from rollforward.streams.model.records import NEVER
from rollforward.streams.operators.windows import Tumbling, Windowed
from rollforward.streams.storage.remote_calls import Commit, Key, StoredRow
from rollforward.streams.storage.schema import CHUNK, SOURCE, is_late, time_of
from rollforward.streams.watermarks import cut_reader
from tests.infra.runs.soak import BUDGET, IS_SOAK
from tests.rollforward.streams.simulator import schedules
from tests.rollforward.streams.simulator.driver import Came, Desk
from tests.rollforward.streams.simulator.invariants import Judge
from tests.rollforward.streams.simulator.schedules import (
    IDLE_MS,
    REFUSED,
    WINDOW,
    Collect,
    Rekey,
    Schedule,
    found,
)
from tests.rollforward.streams.simulator.store import Steps, Violation

S = 1_000
SCHEDULES = 20_000 if IS_SOAK else 60
LATENESS = 6
HITS = Windowed(
    "hits",
    Tumbling(timedelta(seconds=10)),
    inputs={"in": itemgetter("k")},
    output="out",
    lateness=timedelta(seconds=60),
)


@pytest.mark.parametrize("backlog", [0, 10, 60])
def test_a_record_within_the_lateness_counts_however_far_behind_workers_are(backlog: int) -> None:
    """G7: until it is worked on, it holds the watermark at which it came."""
    desk = Desk(Pipeline("p", HITS, intervals=1))
    desk.push(Came("r0", "a", 102 * S))
    desk.run()
    assert desk.push(Came("late", "late", 70 * S)).late == 1

    for number in range(1, backlog):
        desk.push(Came(f"r{number}", f"a{number}", (102 + 5 * number) * S))
        desk.do(tick(desk.environment))
    assert desk.head.inputs["hits"] == 100 * S
    desk.run()

    status = desk.status().computations["hits"]
    assert (status.late, status.records) == (0, 1 + max(1, backlog))
    assert desk.head.inputs["hits"] == (100 + 5 * max(0, backlog - 1)) * S


class Copied(Computation):
    inputs: ClassVar = {"in": itemgetter("k")}
    outputs = ("copies",)

    def record(self, ctx: Context, record: Record) -> None:
        ctx.produce("copies", record.value)


COPIED_HITS = Windowed(
    "hits",
    Tumbling(timedelta(seconds=10)),
    inputs={"copies": itemgetter("k")},
    output="out",
    lateness=timedelta(seconds=60),
)


def test_a_record_behind_a_stage_is_as_late_as_it_came_beside_whatever_came_later() -> None:
    """G7: one commit writes for records that came at different watermarks."""
    desk = Desk(Pipeline("p", Copied, COPIED_HITS, intervals=1))
    desk.push(Came("r0", "a", 102 * S))
    desk.run()
    desk.push(Came("late", "late", 70 * S))
    desk.push(Came("r1", "a", 302 * S))
    desk.push(Came("later", "later", 250 * S))
    steps = desk.worker("copied")
    desk.finish(steps, desk.until(steps, Commit))

    holds = sorted(time_of(name) for name in desk.rows(CHUNK) if is_late(name))
    assert holds == [100 * S, 300 * S]
    desk.run()
    status = desk.status().computations["hits"]
    assert (status.late, status.records) == (0, 4)


def test_late_records_are_worked_on_while_as_much_as_ever_waits_in_time() -> None:
    """G7: they hold the watermark, so windows would never close."""
    desk = Desk(Pipeline("p", HITS, intervals=1))
    desk.push(Came("r0", "a", 102 * S))
    desk.run()
    desk.push(Came("late", "late", 70 * S))
    worker = desk.worker("hits")
    call = next(worker)
    for number in range(600):
        if number % 2 == 0:
            desk.push(Came(f"r{number}", f"a{number}", (103 + number) * S))
        call = worker.send(desk.simulation.acts[type(call)](call))
        if isinstance(call, Commit) and desk.state("hits", "late"):
            break
        if len(desk.rows(CHUNK)) < 25:
            for copy in range(25):
                desk.push(Came(f"m{number}-{copy}", f"a{copy}", (103 + number) * S))

    assert desk.state("hits", "late")


class Lenient(Computation):
    """Counts per window; records within `LATENESS` lead to further results."""

    name = "windows"
    inputs: ClassVar = {"mid": itemgetter("k")}
    outputs = ("counts",)

    def record(self, ctx: Context, record: Record) -> None:
        start = record.timestamp_ms // WINDOW * WINDOW
        if start + WINDOW + LATENESS <= ctx.watermark:
            ctx.state.list("late").append(record.value["id"])
            ctx.drop_late()
            return
        ctx.state.map("open").add(str(start))
        ctx.set_timer(str(start), start + WINDOW)

    def timer(self, ctx: Context, timer: Timer) -> None:
        count = ctx.state.map("open").pop(timer.tag)
        ctx.produce("counts", {"k": ctx.key, "start": int(timer.tag), "count": count})


ONE = Pipeline("sim", Rekey, Lenient, Collect, sources=[PushSource("in")], intervals=2)
TWO = Pipeline(
    "sim", Rekey, Lenient, Collect, intervals=2,
    sources=[PushSource("in", processes=("a", "b"), idle=timedelta(milliseconds=IDLE_MS))],
)  # fmt: skip


class Floors(Judge):
    """Notes the watermark at which each record came first."""

    floors: dict[str, int]

    def judge(self, commit: Commit, stored: Mapping[Key, StoredRow]) -> None:
        super().judge(commit, stored)
        sources = [row.body for key, row in stored.items() if key.kind == SOURCE]
        if not sources or any(key.kind == SOURCE and not body.last for key, body in commit.inserts):
            return
        floor = max(row.watermark for row in sources)
        if any(row.is_idle for row in sources):
            floor = max(floor, self.head.sources.get("in", 0))
        for key, records in commit.inserts:
            for record in records if key.kind == CHUNK else ():
                self.floors.setdefault(record.id, floor)


class Late(Schedule):
    """Two stages, of which the second one takes late records for a while."""

    def __init__(self, seed: int) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(schedules, "ONE", ONE)
            patch.setattr(schedules, "TWO", TWO)
            super().__init__(seed, records=12)
        self.judge = Floors(self.simulation)
        self.judge.floors = {}
        self.accepted_late = 0

    def _judge_counts(self) -> None:
        """Check that all records were counted, except records beyond the lateness."""
        late = [id_ for _, s in self.judge.states("windows") for id_ in s.get("late", ())]
        got: Counter[Any] = Counter()
        for key, state in self.judge.states("collect"):
            for start, count in state.get("got", ()):
                got[key, start] += count
        poison = [record for record in self.records if {"poison", REFUSED} & {*record}]
        good = [record for record in self.records if record not in poison]
        counted = [record for record in good if record["id"] not in late]
        if got.total() != len(counted):
            raise Violation(f"{got.total()} of {len(counted)} were counted")
        floors = self.judge.floors
        ends = {record["id"]: self.window_of(record) + WINDOW for record in good}
        wrong = [id_ for id_ in late if ends[id_] + LATENESS > floors[id_]]
        if wrong:
            raise Violation(f"{wrong} came within the lateness: {floors}")
        self.accepted_late = sum(ends[record["id"]] <= floors[record["id"]] for record in counted)


def test_what_came_within_the_lateness_counts_in_any_schedule() -> None:
    """G7: by the watermark of its source at its arrival, even if workers are slow or die."""
    accepted = 0
    for seed in BUDGET.plays(range(SCHEDULES)):
        schedule = Late(seed)
        try:
            schedule.run()
        except AssertionError as error:
            raise AssertionError(f"schedule {seed}: {error}") from error
        accepted += schedule.accepted_late
    assert accepted


def passed_by(schedule: Late, patch: pytest.MonkeyPatch) -> None:
    """Late records hold no watermark."""
    real = cut_reader.scan_inboxes

    def blind(*args: Any) -> Steps:
        seen = yield from real(*args)
        for content in seen.values():
            content.late = NEVER
        return seen

    patch.setattr(cut_reader, "scan_inboxes", blind)


def passed_downstream(schedule: Late, patch: pytest.MonkeyPatch) -> None:
    """Late records hold the watermark of their computation, and not of its readers."""
    real = cut_reader.Output

    def output(low: int, reached: int) -> cut_reader.Output:
        return real(low, low)

    patch.setattr(cut_reader, "Output", output)


@pytest.mark.parametrize(
    "variant", [passed_by, passed_downstream], ids=lambda variant: variant.__name__
)
def test_a_watermark_that_passes_late_records_is_noticed(variant: Any) -> None:
    """G7: what each part of that is for."""
    assert found(Late, variant, range(400)) is not None
