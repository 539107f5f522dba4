"""Partitions of a pull source: each has a position, a watermark and a reader of its own."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any, ClassVar

import pytest

from rollforward.runtime import Clients
from rollforward.streams import (
    FOREVER,
    Computation,
    Context,
    Pipeline,
    Pulled,
    PullSource,
    Record,
    sweep,
)
from rollforward.streams.connectors.sinks import EffectSink
from rollforward.streams.coordinator import tick
from rollforward.streams.driver import tasks_of
from rollforward.streams.exchange.pulling import pull
from rollforward.streams.graph.head import read_head
from rollforward.streams.model.errors import MissingCodeError, UnknownStreamError
from rollforward.streams.model.limits import Limits
from rollforward.streams.pushes import PushLater, push_task
from rollforward.streams.storage.remote_calls import ChangedError, Commit, CreateTasks
from rollforward.streams.stream_tasks import Pull
from rollforward.tasks.errors import OtherVersionError
from tests.infra.world import Services
from tests.rollforward.streams.harness import WEBLOG, stream_world
from tests.rollforward.streams.simulator.driver import Desk

MINUTE_S = 60
one_emulator = pytest.mark.parametrize("services", ["firestore"], indirect=True)


class Seen(Computation):
    """Lists the records of each key, with their partition, and those that came late."""

    inputs: ClassVar = {"log": lambda value: value["k"]}

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.list("late" if ctx.late else "seen").append(record.value["n"])


class Logs:
    """Logs by partition, which grow while a test runs.

    Attributes:
        times: By partition, the times of the records that can be read by now.
        over: The partitions that end with these.
    """

    def __init__(self, *names: str) -> None:
        self.times: dict[str, list[int]] = {name: [] for name in names}
        self.over = set[str]()

    def read(self, name: str, clients: Any, position: Any, limit: int) -> Pulled:
        first, times = position or 0, self.times[name]
        end = min(first + min(limit, 2), len(times))
        records = [({"k": name, "n": n}, times[n]) for n in range(first, end)]
        return Pulled(records, end, is_over=name in self.over and end == len(times))

    def source(self, *names: str, **options: Any) -> PullSource:
        readers = {name: partial(self.read, name) for name in names or self.times}
        return PullSource("log", readers, disorder=timedelta(0), **options)


def desk_of(source: PullSource, **options: Any) -> Desk:
    desk = Desk(Pipeline("parted", Seen, intervals=1, sources=[source], **options))
    desk.simulation.sweeps = False
    return desk


def deploy(desk: Desk, source: PullSource) -> None:
    """Replace the code by one with another source."""
    desk.pipeline = Pipeline("parted", Seen, intervals=1, sources=[source])
    desk.simulation.pipeline = desk.pipeline


def read_all(desk: Desk, *names: str) -> None:
    for name in names:
        desk.do(pull(desk.environment, "log", name))
    desk.do(tick(desk.environment))


def seen(desk: Desk, key: str, kind: str = "seen") -> list[int]:
    desk.do(desk.worker("seen"))
    numbers: list[int] = desk.state("seen", key).get(kind, [])
    return numbers


def test_the_slowest_partition_that_has_not_ended_determines_the_watermark() -> None:
    """G19: however far another one is; one that has ended determines nothing."""
    logs, reached = Logs("a", "b"), []
    desk = desk_of(logs.source())
    logs.times["a"] += [10, 20, 30, 40]
    read_all(desk, "a", "b")
    reached.append(desk.head.sources["log"])
    logs.times["b"] += [5]
    read_all(desk, "b")
    reached.append(desk.head.sources["log"])
    logs.over.add("b")
    read_all(desk, "b")
    reached.append(desk.head.sources["log"])
    logs.over.add("a")
    read_all(desk, "a")
    reached.append(desk.head.sources["log"])

    assert reached == [0, 5, 40, FOREVER]
    assert (seen(desk, "a"), seen(desk, "b")) == ([0, 1, 2, 3], [0])


def test_a_partition_that_nobody_reads_is_waited_for() -> None:
    """G19: its reader may be late, and what it then brings is in time, after any time."""
    logs = Logs("a", "b")
    desk = desk_of(logs.source(), limits=Limits(max_drift=timedelta(milliseconds=50)))
    logs.times = {"a": [10], "b": [5, 7]}
    read_all(desk, "a", "b")
    for number in range(4):
        desk.wait(MINUTE_S)
        logs.times["a"].append(20 + number)
        read_all(desk, "a")
    before = desk.head.sources["log"]
    logs.times["b"].append(8)
    read_all(desk, "b")

    assert (before, desk.head.sources["log"]) == (7, 8)
    assert (seen(desk, "b"), seen(desk, "b", "late")) == ([0, 1, 2], [])
    logs.times["a"].append(100)
    read_all(desk, "a")
    assert "ahead of log:b" in desk.head.paused["log:a"]


def test_a_partition_that_the_code_no_longer_has_is_ignored_after_a_minute() -> None:
    """Its task tells other code, which may still have it."""
    logs = Logs("a", "b")
    desk = desk_of(logs.source())
    logs.times = {"a": [10], "b": [5]}
    read_all(desk, "a", "b")

    deploy(desk, logs.source("a"))
    with pytest.raises(MissingCodeError, match="no partition 'b' in this version"):
        desk.do(pull(desk.environment, "log", "b"))
    reached = []
    for seconds in (59, 2):
        desk.wait(seconds)
        logs.times["a"].append(11)
        read_all(desk, "a")
        reached.append(desk.head.sources["log"])

    assert reached == [5, 11]


def test_tasks_of_a_source_that_only_another_version_has_wait_for_it() -> None:
    """G15: they have not failed; and those of one that was removed come to an end."""
    nobody: Any = None
    pull_task = tasks_of(desk_of(Logs("a").source()).pipeline).pull
    for name in ("gone", "gone/a", "log/gone", "log"):
        with pytest.raises(OtherVersionError, match="has no"):
            pull_task.work(nobody, Pull(name))
    for place in (("gone", ""), ("requests", "gone")):
        with pytest.raises(OtherVersionError, match="has no"):
            push_task(WEBLOG).work(nobody, PushLater(*place, "id", {}, 1))


def test_a_partition_that_is_added_brings_all_its_records() -> None:
    """G19: what is behind the watermark is late, and the watermark waits for it from then on."""
    logs = Logs("a", "b")
    desk = desk_of(logs.source("a"))
    logs.times = {"a": [10, 20], "b": [5, 15, 25, 35]}
    read_all(desk, "a")

    deploy(desk, logs.source())
    read_all(desk, "b", "b")
    logs.times["a"].append(90)
    read_all(desk, "a")

    assert (seen(desk, "b"), seen(desk, "b", "late")) == ([2, 3], [0, 1])
    assert desk.head.sources["log"] == 35


def test_two_that_read_an_added_partition_at_once_double_nothing() -> None:
    """G19: one makes its row; the other one finds that, and its task comes again."""
    logs = Logs("a", "b")
    desk = desk_of(logs.source("a"))
    logs.times = {"a": [1], "b": [5, 15, 25]}
    read_all(desk, "a")
    deploy(desk, logs.source())
    first = pull(desk.environment, "log", "b")
    call = desk.until(first, Commit)
    read_all(desk, "b")
    with pytest.raises(ChangedError):
        desk.finish(first, call)
    read_all(desk, "b")

    assert seen(desk, "b") == [0, 1, 2]


def test_records_of_two_partitions_have_different_ids_at_a_weak_sink() -> None:
    """G14: each is the number in its own partition, by its name."""
    sink = EffectSink("log", lambda clients, record: None, weak=True)
    logs = Logs("a", "b")
    desk = desk_of(logs.source(), sinks=[sink])
    logs.times = {"a": [1, 2, 3], "b": [1, 2, 3]}
    read_all(desk, "a", "b")
    desk.run()

    ids = [record.id for _, record in desk.simulation.handed]
    assert len(ids) == len(set(ids)) == 6


def test_the_sweep_finds_each_partition_without_a_reader() -> None:
    """G4: also one that was added; one that is being read or has ended is none."""
    logs = Logs("a", "b", "d")
    poll = timedelta(seconds=10)
    desk = desk_of(logs.source(poll=poll))
    created: list[Any] = []
    logs.over.add("d")
    desk.do(read_head(desk.environment))
    begun = desk.do(sweep.wake_sources(desk.environment))
    read_all(desk, "a", "b", "d")
    desk.wait(MINUTE_S + 11)
    read_all(desk, "a")
    logs.times["c"] = [1]
    deploy(desk, logs.source(poll=poll))
    desk.simulation.acts[CreateTasks] = lambda call: created.extend(call.wakes)

    assert begun == 0  # Nobody has asked for it yet.
    assert desk.do(sweep.wake_sources(desk.environment)) == 2
    assert [wake.target for wake in created] == [("log/b", -1), ("log/c", -1)]


def test_a_partition_without_a_record_yet_pauses_no_other() -> None:
    """G11: however far the others come, and although it is read all the time."""
    logs = Logs("a", "b")
    limits = Limits(max_drift=timedelta(seconds=1))
    desk = desk_of(logs.source(poll=timedelta(seconds=10)), limits=limits)
    for number in range(4):
        logs.times["a"].append(number * 10_000 + 1)
        read_all(desk, "b", "a")
        desk.wait(MINUTE_S)

    assert desk.head.paused == {}
    assert desk.head.sources["log"] == 0
    logs.times["b"].append(5)
    read_all(desk, "b")
    assert "ahead of log:b" in desk.head.paused["log:a"]


@pytest.mark.parametrize("names", [[], [""], ["a/b"], ["A"], [f"p{n}" for n in range(101)]])
def test_partitions_have_names(names: list[str]) -> None:
    with pytest.raises(TypeError, match=r"log: .*`read`"):
        PullSource("log", {name: lambda clients, position, limit: Pulled([], 0) for name in names})


@one_emulator
def test_partitions_are_read_by_tasks_of_their_own(services: Services) -> None:
    """G1: each delivery twice; a position can be asked for by the partition's name."""
    logs = Logs("a", "b", "c")
    logs.over |= {*logs.times}
    for offset, times in enumerate(logs.times.values()):
        times += [10 * n + offset for n in range(7)]
    pipeline = Pipeline(
        "partitions-on-services", Seen, intervals=2, sources=[logs.source()],
        limits=Limits(waiting_rows=2),
    )  # fmt: skip
    world = stream_world(services, pipeline)
    world.doubles = True
    with world.context():
        pipeline.pull(world.clients, "log")
    world.settle()

    with world.context():
        clients: Clients = world.clients
        states = dict(pipeline.states(clients, "seen"))
        positions = [pipeline.position(clients, "log", partition=name) for name in "abc"]
        status = pipeline.status(clients)
        with pytest.raises(UnknownStreamError, match="no process 'd'"):
            pipeline.position(clients, "log", partition="d")
    assert states == {name: {"seen": list(range(7))} for name in "abc"}
    assert positions == [7, 7, 7]
    assert status.sources["log"].position == {"a": 7, "b": 7, "c": 7}
    assert status.computations["seen"].records == 21
    assert status.computations["seen"].watermark >= FOREVER
