"""Pipelines on Datastore and Cloud Tasks."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any, ClassVar

import pytest

from rollforward.datastore.transactions import transact
from rollforward.runtime import Clients
from rollforward.streams import (
    Computation,
    Context,
    Pipeline,
    Pulled,
    PullSource,
    PushedRecord,
    PushSource,
    Record,
    Timer,
    driver,
)
from rollforward.streams.driver import Engine
from rollforward.streams.entities import (
    StreamChunk,
    StreamIds,
    StreamInterval,
    StreamSlab,
    StreamState,
)
from rollforward.streams.model.errors import BadRecordError, UnknownStreamError
from rollforward.streams.stream_tasks import QUEUE, TICKS_QUEUE
from rollforward.testing.injection import Crash
from tests.infra.world import Services, World
from tests.rollforward.streams.harness import (
    PACE,
    WEBLOG,
    dead,
    hits,
    is_drained,
    resumed,
    stream_world,
    windows,
)

one_emulator = pytest.mark.parametrize("services", ["firestore"], indirect=True)


def test_records_become_windows_when_the_watermark_passes_them(world: World) -> None:
    """G1, G2, G3: each record counts once, each window is written once."""
    pushed = hits(("a", "/", 1_000), ("b", "/x", 2_000), ("c", "/", 59_999), ("d", "/", 60_000))
    with world.context():
        accepted = WEBLOG.push(world.clients, "requests", pushed)
    assert (accepted.records, accepted.late, accepted.watermark) == (4, 0, 58_000)
    world.settle()
    assert windows(world) == {}

    with world.context():
        WEBLOG.push(world.clients, "requests", hits(("e", "/", 62_000)))
    world.settle()
    assert windows(world) == {"0": [["/", 2], ["/x", 1]]}

    with world.context():
        late = WEBLOG.push(world.clients, "requests", hits(("f", "/", 59_000), ("e", "/", 62_000)))
        WEBLOG.close(world.clients, "requests")
    world.settle()
    with world.context():
        assert is_drained()
        status = WEBLOG.status(world.clients)
    assert late.late == 1
    assert windows(world) == {"0": [["/", 2], ["/x", 1]], "60000": [["/", 2]]}
    of_hits = status.computations["hits"]
    assert (of_hits.records, of_hits.late, of_hits.repeated, of_hits.waiting) == (5, 1, 1, 0)
    assert status.computations["minutes"].records == 3
    assert status.sources["requests"].records == 7


def test_a_dead_record_is_replayed_when_its_computation_takes_it(world: World) -> None:
    """G7: a replay works on it again; here it fails again."""
    clients = world.clients
    with world.context():
        WEBLOG.push(clients, "requests", hits(("p", "/", 1_000), poison=1))
        WEBLOG.push(clients, "requests", [PushedRecord("q", {"no": "path"}, 1_000)])
    world.settle()
    with world.context():
        letters = WEBLOG.dead_letters(clients)
        failed = {letter.error.partition(":")[0]: letter for letter in letters}
        assert set(failed) == {"ValueError", "no key"}
        assert failed["ValueError"].value == {"path": "/", "poison": 1}
        assert WEBLOG.replay(clients, failed["ValueError"].id)
        assert WEBLOG.discard(clients, failed["no key"].id)
        assert not WEBLOG.replay(clients, failed["no key"].id)
    world.settle()
    with world.context():
        assert dead() == 1
        assert WEBLOG.status(clients).computations["hits"].dead == 2


def test_an_id_is_forgotten_after_its_horizon_and_not_before(services: Services) -> None:
    """G6: the horizon is stated, and storage is bounded by it."""
    short = Pipeline(
        "short", *WEBLOG.computations.values(), intervals=1,
        sources=[PushSource("requests", dedup=timedelta(minutes=10))],
    )  # fmt: skip
    world = stream_world(services, short)
    repeated = []
    for wait_s in (0, 599, 700):
        world.clock.sleep(wait_s)
        with world.context():
            short.push(world.clients, "requests", hits(("a", "/", 1_000)))
        world.settle()
        with world.context():
            repeated.append(short.status(world.clients).computations["hits"].repeated)
            assert len(StreamIds.query().fetch(keys_only=True)) == 1
    assert repeated == [0, 1, 1]


def test_what_a_transaction_pushes_comes_in_with_its_commit(world: World) -> None:
    """And not at all without."""
    clients = world.clients

    def body(*, breaks: bool) -> None:
        WEBLOG.push_in_transaction(clients, "requests", {"path": "/t"}, 1_000)
        WEBLOG.push_in_transaction(clients, "requests", {"path": "/t"}, 2_000)
        if breaks:
            raise LookupError

    with world.context():
        transact(lambda: body(breaks=False))
        with pytest.raises(LookupError):
            transact(lambda: body(breaks=True))
    world.settle()
    with world.context():
        WEBLOG.close(clients, "requests")
    world.settle()
    assert windows(world) == {"0": [["/t", 2]]}


def read_lines(clients: Clients, position: Any, limit: int) -> Pulled:
    start = position or 0
    lines = [({"path": f"/{n % 3}"}, n * 1_000) for n in range(start, min(start + 50, 130))]
    return Pulled(lines, start + len(lines), is_over=start + len(lines) == 130)


def test_a_source_is_pulled_to_its_end(services: Services) -> None:
    """Position and records are one commit, so a delivery that comes twice adds nothing."""
    pulled = Pipeline(
        "pulled", *WEBLOG.computations.values(), sources=[PullSource("requests", read_lines)]
    )
    world = stream_world(services, pulled)
    world.doubles = True
    with world.context():
        pulled.pull(world.clients, "requests")
    world.settle()
    assert windows(world, pulled) == {
        str(start): [[f"/{n}", counted] for n in range(3)]
        for start, counted in ((0, 20), (60_000, 20))
    } | {"120000": [["/0", 4], ["/1", 3], ["/2", 3]]}


class Keeper(Computation):
    """Keeps values of any size; reminds by processing-time timers."""

    inputs: ClassVar = {"notes": lambda note: note["key"]}
    outputs = ("reminders",)

    def record(self, ctx: Context, record: Record) -> None:
        if record.value.get("kills"):
            raise Crash
        ctx.state["text"] = record.value["text"] * record.value.get("times", 1)
        if "remind" in record.value:
            ctx.set_timer("remind", ctx.now_ms + record.value["remind"], processing_time=True)

    def timer(self, ctx: Context, timer: Timer) -> None:
        ctx.state["text"] = "reminded"


KEEPER = Pipeline("keeper", Keeper, intervals=1)


def note(world: World, *keys: str, **fields: Any) -> None:
    records = [
        PushedRecord(f"{world.clock.time_s} {key}", {"key": key, **fields}, 1) for key in keys
    ]
    with world.context():
        KEEPER.push(world.clients, "notes", records)
    world.settle(patience_s=10)


@one_emulator
def test_large_states_and_many_keys_find_their_place(services: Services) -> None:
    """G8: a slab that has grown is cut, a large state has a row of its own, and goes with it."""
    world = stream_world(services, KEEPER)
    keys = [f"k{n}" for n in range(100)]
    note(world, *keys, text="x" * 900)
    note(world, "large", text="x" * 50_000)
    with world.context():
        assert len(StreamSlab.query().fetch(keys_only=True)) > 1
        assert len(StreamState.query().fetch(keys_only=True)) == 1
        assert {key for key, _ in KEEPER.states(world.clients, "keeper")} == {*keys, "large"}
        assert len(KEEPER.state(world.clients, "keeper", "large")["text"]) == 50_000

    note(world, "large", text="small")
    with world.context():
        assert StreamState.query().get() is None
        assert KEEPER.state(world.clients, "keeper", "large") == {"text": "small"}
        assert KEEPER.state(world.clients, "keeper", "k7") == {"text": "x" * 900}


@one_emulator
def test_a_batch_that_is_too_large_for_a_commit_is_worked_on_in_parts(services: Services) -> None:
    """G8: eight states of 800 KB."""
    world = stream_world(services, KEEPER)
    keys = [f"k{n}" for n in range(8)]
    note(world, *keys, text="x" * 100_000, times=8)
    with world.context():
        assert is_drained()
        assert {key for key, _ in KEEPER.states(world.clients, "keeper")} == set(keys)
        assert dead() == 0


@one_emulator
def test_a_state_that_no_row_can_hold_is_a_dead_letter(services: Services) -> None:
    """G8, G7: 800 KB of text, in which a row needs two bytes for each character."""
    world = stream_world(services, KEEPER)
    note(world, "quotes", text='"', times=400_000)
    note(world, "plain", text="x")
    with world.context():
        assert dict(KEEPER.states(world.clients, "keeper")) == {"plain": {"text": "x"}}
        [letter] = KEEPER.dead_letters(world.clients)
        assert (letter.key, "a state must have at most" in letter.error) == ("quotes", True)


@one_emulator
def test_a_record_that_kills_its_workers_is_a_dead_letter_in_the_end(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G7: its neighbours are worked on."""
    monkeypatch.setattr(driver, "StreamConfig", lambda: replace(PACE, lease_ms=1_000))
    world = stream_world(services, KEEPER)
    keys = ("a", "bad", "c")
    records = [
        PushedRecord(key, {"key": key, "text": key, "kills": key == "bad"}, at)
        for at, key in enumerate(keys)
    ]
    with world.context():
        KEEPER.push(world.clients, "notes", records)
    world.settle(rounds=400, patience_s=30, revives=True)
    with world.context():
        assert dict(KEEPER.states(world.clients, "keeper")) == {
            "a": {"text": "a"}, "c": {"text": "c"}
        }  # fmt: skip
        [letter] = KEEPER.dead_letters(world.clients)
        assert (letter.key, "workers died" in letter.error) == ("bad", True)


@one_emulator
def test_a_timer_of_the_clock_wakes_its_interval(services: Services) -> None:
    """G4: by a task of its own, without a sweep."""
    world = stream_world(services, KEEPER)
    note(world, "a", text="noted", remind=3_600_000)
    with world.context():
        assert KEEPER.state(world.clients, "keeper", "a") == {"text": "noted"}
    world.settle()
    with world.context():
        assert KEEPER.state(world.clients, "keeper", "a") == {"text": "reminded"}


@one_emulator
def test_a_sender_that_dies_before_it_wakes_its_reader_is_made_up_for(services: Services) -> None:
    """By the sweep, which finds pending records without a worker."""
    world = stream_world(services)
    with world.context():
        WEBLOG.push(world.clients, "requests", hits(("a", "/", 1)))
        WEBLOG.close(world.clients, "requests")
    world.engine.reset()
    assert windows(world) == {}

    world.sweep()
    world.settle()
    assert windows(world) == {"0": [["/", 1]]}


@one_emulator
def test_a_queue_that_is_purged_loses_no_record(services: Services) -> None:
    """G1: a purged task's name stays taken, so the sweep wakes by other names."""
    world = stream_world(services)
    with world.context():
        WEBLOG.push(world.clients, "requests", hits(("a", "/", 1)))
        WEBLOG.close(world.clients, "requests")
    for queue in (QUEUE, TICKS_QUEUE):
        world.engine.purge_queue(world.engine.place.queue_name(queue))
    world.settle()
    assert windows(world) == {}

    world.sweep()
    world.settle()
    assert windows(world) == {"0": [["/", 1]]}


@one_emulator
def test_what_is_at_rest_costs_nothing(services: Services) -> None:
    """No task is left, and a sweep wakes nothing."""
    world = stream_world(services)
    with world.context():
        WEBLOG.push(world.clients, "requests", hits(("a", "/", 1)))
    world.settle()
    assert [*world.live_tasks(QUEUE), *world.live_tasks(TICKS_QUEUE)] == []

    world.sweep()
    assert [*world.live_tasks(QUEUE), *world.live_tasks(TICKS_QUEUE)] == []


@one_emulator
def test_a_worker_that_lost_its_interval_writes_nothing(services: Services) -> None:
    """G5: the lease has ended, another worker has come and gone, and then the first one commits."""
    from rollforward.streams.workers.worker import RunResult, Worker

    world = stream_world(services, KEEPER)
    with world.context():
        KEEPER.push(world.clients, "notes", [PushedRecord("1", {"key": "a", "text": "first"}, 1)])
        engine = Engine(world.clients, KEEPER)
        steps = Worker(engine.environment, "keeper", 0).run()
        call = next(steps)
        while type(call).__name__ != "Commit" or len(call.puts) + len(call.inserts) == 1:
            call = steps.send(engine._handle(call))
        world.clock.sleep(31)
    world.settle()
    with world.context():
        stored = StreamInterval.query().get().body
        assert stored["records"] == 1
        assert engine.run(resumed(steps, call)) is RunResult.LEASED
        assert StreamInterval.query().get().body == stored
        assert StreamChunk.query().get() is None


@one_emulator
def test_what_cannot_come_in_is_refused_and_changes_nothing(services: Services) -> None:
    world = stream_world(services)
    with world.clients.context():
        for stream, record, process in (
            ("requests", PushedRecord("a", {"path": "/"}, -1), ""),
            ("requests", PushedRecord("", {"path": "/"}, 1), ""),
            ("requests", PushedRecord("a", {1, 2}, 1), ""),
            ("requests", PushedRecord("a", {"path": "/"}, 1), "unknown"),
            ("hits", PushedRecord("a", {"path": "/"}, 1), ""),
        ):
            with pytest.raises((BadRecordError, UnknownStreamError)):
                WEBLOG.push(world.clients, stream, [record], process=process)
        with pytest.raises(BadRecordError):
            WEBLOG.push(world.clients, "requests", hits(*[("a", "/", 1)] * 501))
        with pytest.raises(BadRecordError):
            WEBLOG.pull(world.clients, "requests")
        with pytest.raises(BadRecordError):
            transact(
                lambda: WEBLOG.push_in_transaction(world.clients, "requests", {"path": "/"}, -1)
            )
        assert not any(
            kind.query().get() for kind in (StreamChunk, StreamInterval)
        )  # Not even the first rows were made.
