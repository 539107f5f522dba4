"""Weak computations and sinks: what may be weak, and which way their records take."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from rollforward.streams import (
    Computation,
    Context,
    Pipeline,
    PullSource,
    Record,
    StreamTest,
    Timer,
)
from rollforward.streams.connectors.sinks import EffectSink
from rollforward.streams.coordinator import tick
from rollforward.streams.exchange.effect_pool import MAX_THREADS, EffectPool
from rollforward.streams.exchange.ingest import IngestRequest, inbound_record, ingest
from rollforward.streams.inspection.dead_letters import replay
from rollforward.streams.model.errors import NotIdempotentError, WeakError
from rollforward.streams.model.sink import Sink
from rollforward.streams.scaling.resharding import split
from rollforward.streams.storage.inbox import has_ids
from rollforward.streams.storage.remote_calls import CallEffects, Commit, StoredRow, TooLargeError
from rollforward.streams.storage.schema import CHUNK, DEAD, InboxRecord, Interval
from tests.infra.world import Services
from tests.rollforward.streams.harness import PACE, stream_world
from tests.rollforward.streams.scenarios.weak_sources import ACTED, COLOURS, acted, colours, heard
from tests.rollforward.streams.simulator.driver import Came, Desk

one_emulator = pytest.mark.parametrize("services", ["firestore"], indirect=True)


def by_key(value: Any) -> str:
    return str(value["k"])


class Pass(Computation):
    """Hands each record on."""

    weak = idempotent = True
    inputs: ClassVar = {"in": by_key}
    outputs = ("passed",)

    def record(self, ctx: Context, record: Record) -> None:
        ctx.produce("passed", record.value)


class Seen(Computation):
    inputs: ClassVar = {"passed": by_key}
    outputs = ("seen",)

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.counter("seen").add(1)
        ctx.produce("seen", record.value)


class Shout(Pass):
    inputs: ClassVar = {"seen": by_key}
    outputs = ("shouts",)

    def record(self, ctx: Context, record: Record) -> None:
        ctx.produce("shouts", record.value)


class Heard(Computation):
    inputs: ClassVar = {"shouts": by_key}

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.counter("heard").add(1)


def nothing(clients: Any, record: Any) -> None:
    """Do nothing outside."""


PIPELINE = Pipeline("weak", Pass, Seen, intervals=1)


# What may be weak


class Careless(Pass):
    idempotent = False


class Timed(Pass):
    def timer(self, ctx: Context, timer: Timer) -> None: ...


class Fading(Pass):
    ttl = timedelta(hours=1)


class Dropping(Pass):
    late = "drop"


class Hasty(Pass):
    percentile = 90


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Careless, "idempotent"),
        (Timed, "timers"),
        (Fading, "ttl"),
        (Dropping, "late records"),
        (Hasty, "percentile"),
    ],
)
def test_a_computation_that_has_to_be_durable_cannot_be_weak(
    kind: type[Computation], message: str
) -> None:
    """G14: it is refused when it is declared, and the text has the reason."""
    with pytest.raises(TypeError, match=message):
        Pipeline("weak", kind)


def test_a_sink_that_writes_or_follows_from_a_state_cannot_be_weak() -> None:
    """G14: what it writes is in a commit; what a state led to may never have been committed."""

    class Writing(Sink):
        weak = idempotent = True

    with pytest.raises(TypeError, match="cannot be weak"):
        Pipeline("weak", Pass, sinks=[Writing("passed")])
    with pytest.raises(TypeError, match="reads the output of seen"):
        Pipeline("weak", Pass, Seen, sinks=[EffectSink("seen", nothing, weak=True)])
    Pipeline("weak", Pass, Seen, sinks=[EffectSink("passed", nothing, weak=True)])


@pytest.mark.parametrize(
    "does",
    [
        lambda ctx: ctx.state.counter("n").add(1),
        lambda ctx: ctx.set_timer("t", 5_000),
        lambda ctx: ctx.drop_late(),
    ],
    ids=["state", "timer", "count"],
)
def test_a_weak_hook_keeps_nothing(does: Any) -> None:
    """G14: a state, a timer or a count would have to be durable: the record is a dead letter."""

    class Keeping(Pass):
        def record(self, ctx: Context, record: Record) -> None:
            does(ctx)

    test = StreamTest(Pipeline("weak", Keeping))
    test.push("in", {"k": "a"}, timestamp_ms=1_000)

    [(_, failure)] = test.dead
    assert WeakError.__name__ in failure.error


def test_a_hook_that_writes_something_else_the_second_time_is_noticed_in_a_test() -> None:
    """A weak computation works on a record again after faults: it has to lead to the same."""

    class Counting(Pass):
        calls = 0

        def record(self, ctx: Context, record: Record) -> None:
            Counting.calls += 1
            ctx.produce("passed", {**record.value, "call": Counting.calls})

    with pytest.raises(NotIdempotentError):
        StreamTest(Pipeline("weak", Counting)).push("in", {"k": "a"}, timestamp_ms=1_000)

    test = StreamTest(PIPELINE)
    test.push("in", {"k": "a"}, timestamp_ms=1_000)
    assert [output.value for output in test.read("seen")] == [{"k": "a"}]


# Which way records take


def test_a_record_passes_a_weak_stage_in_the_commit_that_lets_it_in() -> None:
    """G14: it is in the inbox of the strong reader then, and nowhere else."""
    desk = Desk(PIPELINE)

    desk.push(Came("r-1", "a", 1_000))

    assert [name.split(":")[1] for name in desk.rows(CHUNK)] == ["seen"]
    desk.run()
    assert desk.state("seen", "a") == {"seen": 1}
    status = desk.status().computations
    assert (status["pass"].records, status["pass"].inlined, status["seen"].records) == (1, 1, 1)


def test_a_record_that_is_pushed_again_counts_once_behind_a_weak_stage() -> None:
    """G14, G6: a result has one id, which follows from its input, on each way that it takes."""
    desk = Desk(PIPELINE)

    desk.push(Came("r-0", "a", 1_000), Came("r-1", "a", 1_000))
    desk.simulation.config = replace(desk.simulation.config, max_inlined=0)
    desk.push(Came("r-1", "a", 1_000), Came("r-2", "a", 1_000))
    assert sorted(name.split(":")[1] for name in desk.rows(CHUNK)) == ["pass", "seen"]
    desk.run()

    assert desk.state("seen", "a") == {"seen": 3}
    assert desk.interval("seen").repeated == 1


def test_a_dead_record_that_is_pushed_again_and_replayed_counts_once() -> None:
    """G14, G7: what a replay leads to has the names that it would have had."""

    class Fussy(Pass):
        name, max_attempts = "pass", 1
        is_fixed = False

        def record(self, ctx: Context, record: Record) -> None:
            if not Fussy.is_fixed:
                raise ValueError("not yet")
            super().record(ctx, record)

    desk = Desk(Pipeline("weak", Fussy, Seen, intervals=1))
    for _ in range(2):  # The second one fails, too, when it is replayed the first time.
        desk.push(Came("r-1", "a", 1_000))
        desk.run()
        [dead] = desk.rows(DEAD)
        desk.do(replay(desk.environment, dead.partition(":")[2]))
        desk.run()
    Fussy.is_fixed = True
    [dead] = desk.rows(DEAD)

    desk.do(replay(desk.environment, dead.partition(":")[2]))
    desk.push(Came("r-1", "a", 1_000))
    desk.run()

    assert not desk.rows(DEAD)
    assert desk.state("seen", "a") == {"seen": 1}


def test_workers_that_died_pass_nothing_on() -> None:
    """G7: a weak hook may have killed them: the record goes to its own inbox, and they live."""
    desk = Desk(Pipeline("weak", Seen, Shout, Heard, intervals=1))
    desk.push(Came("r-1", "a", 1_000), stream="passed")
    key = desk.environment.names.interval("seen", 0)
    store = desk.simulation.store
    crashed: Interval = store.rows[key].body._replace(owner="dead", crash_count=2)
    store.rows[key] = store.rows[key]._replace(body=crashed)

    # It takes the interval, and notes the record before it works on that.
    call = desk.until(steps := desk.worker("seen"), Commit, of=3)

    assert isinstance(call, Commit)
    assert [k.name.split(":")[1] for k, _ in call.inserts if k.kind == CHUNK] == ["shout"]
    desk.finish(steps, call)
    desk.run()
    assert desk.state("heard", "a") == {"heard": 1}


def test_an_inbox_that_was_left_waits_for_senders_in_front_of_weak_stages() -> None:
    """G14, G10: they write to it, too, and one may be at work under the layout of before."""
    desk = Desk(Pipeline("weak", Seen, Shout, Heard, intervals=1))
    desk.push(Came("r-1", "a", 1_000), stream="passed")
    call = desk.until(steps := desk.worker("seen"), Commit, of=2)

    desk.do(split(desk.environment, "heard", 2**15))
    for _ in range(5):
        desk.do(tick(desk.environment))
        assert desk.head.retired["heard"]
    desk.finish(steps, call)
    desk.run()

    assert not desk.head.retired
    assert desk.state("heard", "a") == {"heard": 1}


def test_a_chunk_has_ids_if_any_of_its_letters_has() -> None:
    """G1: downstream of a weak stage a chunk mixes pushed records and others."""
    records = tuple(InboxRecord("k", 0, "in", id_, "{}") for id_ in ("", "r-1"))
    assert has_ids([("n", StoredRow(records, 1))])
    assert not has_ids([("n", StoredRow(records[:1], 1))])


def test_what_is_too_large_behind_a_weak_stage_is_let_in_as_it_came() -> None:
    """G8: a hook may write more than it gets, and a push cannot be cut."""
    desk = Desk(PIPELINE)
    desk.push(Came("r-0", "a", 1_000))
    pushed = inbound_record(desk.environment, "in", {"k": "a"}, 1_000, "r-1")
    steps = ingest(desk.environment, IngestRequest("in", "", [pushed]))

    desk.until(steps, Commit)
    desk.finish(steps, steps.throw(TooLargeError()))

    assert sorted(name.split(":")[1] for name in desk.rows(CHUNK)) == ["pass", "seen"]
    desk.run()
    assert desk.state("seen", "a") == {"seen": 2}


def test_what_a_worker_cannot_commit_behind_a_weak_stage_goes_into_its_inbox() -> None:
    """G8: before the batch is cut, down to one record."""
    desk = Desk(Pipeline("weak", Seen, Shout, Heard, intervals=1))
    desk.simulation.config = replace(desk.simulation.config, max_records=1)
    desk.push(Came("r-1", "a", 1_000), Came("r-2", "a", 1_000), stream="passed")
    desk.until(steps := desk.worker("seen"), Commit, of=2)

    desk.finish(steps, steps.throw(TooLargeError()))

    assert {name.split(":")[1] for name in desk.rows(CHUNK)} == {"shout"}
    desk.run()
    assert desk.state("heard", "a") == {"heard": 2}


# Sinks that act outside


@pytest.fixture
def world(services: Services) -> Iterator[Any]:
    ACTED.clear()
    yield stream_world(services, COLOURS)
    ACTED.clear()


@one_emulator
def test_a_weak_sink_has_acted_when_the_push_returns(world: Any) -> None:
    """G14: no worker has run, no task was created for it, and nothing waits for it."""
    with world.context():
        COLOURS.push(world.clients, "in", colours("a", "b"))

        assert set(acted()) == {"a", "b"}
        status = COLOURS.status(world.clients).computations["outside"]
        assert (status.inlined, status.waiting) == (2, 0)
    world.settle()
    assert len(ACTED) == 2


@one_emulator
def test_a_sink_that_hangs_is_waited_for_until_its_record_is_durable(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G14: the push returns all the same, and the sink acts by a task, under the same name."""
    go_on, config = threading.Event(), replace(PACE, effect_ms=10)
    hung, effect = [], COLOURS.sinks[0].effect

    def hang(clients: Any, record: Any) -> None:
        if go_on.is_set():  # The task.
            effect(clients, record)
        else:
            hung.append(record)
            go_on.wait()

    monkeypatch.setattr(COLOURS.sinks[0], "effect", hang)
    world.clients.process_state.clear()
    world.clients.process_state.get_or_create("streams config", lambda: config)
    with world.context():
        COLOURS.push(world.clients, "in", colours("a"))
        assert COLOURS.status(world.clients).computations["outside"].waiting == 1
    go_on.set()
    world.settle()

    assert [record.id for record in ACTED] == [record.id for record in hung]
    with world.context():
        assert heard(world.clients) == {1: 2}


class Hanging(Sink):
    def __init__(self, go_on: threading.Event) -> None:
        super().__init__("in", name="hanging")
        self.go_on, self.begun = go_on, 0

    def act(self, clients: Any, record: Any) -> None:
        self.begun += 1
        self.go_on.wait()


def test_sinks_that_hang_take_a_few_threads_and_no_more() -> None:
    """G14: memory is bounded; when they come back, there is room again."""
    go_on, pool = threading.Event(), EffectPool()
    sink, clients = Hanging(go_on), SimpleNamespace(context=nullcontext)
    call = CallEffects([(("hanging", 1), n) for n in range(3)], 0.001)

    done = [pool.deliver_all(clients, {("hanging", 1): sink}, call) for _ in range(MAX_THREADS + 3)]  # type: ignore[arg-type]

    assert not any(done)
    assert sink.begun == MAX_THREADS
    go_on.set()
    for thread in threading.enumerate():
        if thread.daemon and thread.name == "the sink hanging":
            thread.join()
    call = CallEffects(call.effects, 60)
    assert pool.deliver_all(clients, {("hanging", 1): sink}, call) == (0, 1, 2)  # type: ignore[arg-type]
    assert sink.begun == MAX_THREADS + 3


def test_while_no_thread_can_start_records_wait_and_later_ones_need_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """G14: the push is accepted, and its records go into the sink's inbox."""
    go_on, pool = threading.Event(), EffectPool()
    go_on.set()
    sink, clients = Hanging(go_on), SimpleNamespace(context=nullcontext)
    call = CallEffects([(("hanging", 1), 0)], 60)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        for _ in range(MAX_THREADS + 1):
            assert pool.deliver_all(clients, {("hanging", 1): sink}, call) == ()  # type: ignore[arg-type]

    assert pool.deliver_all(clients, {("hanging", 1): sink}, call) == (0,)  # type: ignore[arg-type]


def test_pulled_records_have_names_at_weak_sinks_and_need_no_ids_elsewhere() -> None:
    """G14: a read that is repeated finds the same records, under the same names."""
    assert PIPELINE.weak_sink_streams == frozenset()
    source = PullSource("in", lambda clients, position, limit: None)  # type: ignore[arg-type, return-value]
    sink = EffectSink("passed", nothing, weak=True)
    pipeline = Pipeline("weak", Pass, sources=[source], sinks=[sink])
    assert pipeline.weak_sink_streams == {"in"}
    assert pipeline.dedup_ms("pass") == 0
    assert PIPELINE.dedup_ms("seen") == PIPELINE.dedup_ms("pass") > 0
