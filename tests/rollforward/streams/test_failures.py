"""Failures to survive, one by one: crashes, repeats, disorder, zombies, clocks.

Each is played on the real code in the simulator; the random schedules mix them. On the services,
tests/rollforward/streams/under_faults/test_streams.py breaks each remote call.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar

import pytest

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
)
from rollforward.streams.coordinator import tick
from rollforward.streams.exchange.pulling import pull
from rollforward.streams.exchange.wakeups import wake_intervals
from rollforward.streams.storage.remote_calls import (
    ChangedError,
    Commit,
    CreateTasks,
    OutcomeUnknownError,
    Pause,
)
from rollforward.streams.storage.schema import CHUNK, IDS
from rollforward.streams.workers.worker import RunResult
from tests.infra.runs.soak import IS_SOAK
from tests.rollforward.streams.scenarios.full_pipeline import Mixed
from tests.rollforward.streams.simulator.accidents import NO_FAULTS, UnavailableError
from tests.rollforward.streams.simulator.driver import Came, Desk, is_batch
from tests.rollforward.streams.simulator.schedules import Schedule

WINDOW = 10
FAULTS = (
    "crash_before",
    "crash_after",
    "crash_amid",
    "lost",
    "refused",
    "zombie",
    "stall",
    "machine",
)
# Which calls `make test` breaks: one in so many.
STRIDE = 1 if IS_SOAK else 12


def key_of(value: Any) -> str:
    return str(value["k"])


class Tally(Computation):
    """Counts per key and window; writes each window when it is over."""

    inputs: ClassVar = {"in": key_of}
    outputs = ("counts",)

    def record(self, ctx: Context, record: Record) -> None:
        start = record.timestamp_ms // WINDOW * WINDOW
        if start + WINDOW <= ctx.watermark:
            ctx.drop_late()
            return
        ctx.state.map("open").add(str(start))
        ctx.set_timer(str(start), start + WINDOW)

    def timer(self, ctx: Context, timer: Timer) -> None:
        count = ctx.state.map("open").pop(timer.tag)
        ctx.produce("counts", {"k": ctx.key, "window": [int(timer.tag), count]})


class Written(Computation):
    """All windows of a key, as they come."""

    inputs: ClassVar = {"counts": key_of}

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.list("windows").append(record.value["window"])


def tally(**options: Any) -> Desk:
    source = PushSource("in", disorder=timedelta(0), **options)
    return Desk(Pipeline("tally", Tally, Written, sources=[source], intervals=1))


def windows(desk: Desk, key: str = "a") -> Any:
    return desk.state("written", key).get("windows", [])


@pytest.mark.one_of("faults between steps", 4)
@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_between_any_two_steps_changes_no_total(kind: str) -> None:
    """A: of workers, ticks, sources, replays and the very first commit; then all comes to rest."""
    for play in (Schedule, Mixed):
        calm = play(6, NO_FAULTS, 4)
        calm.run()
        for at in range(1 + FAULTS.index(kind) % STRIDE, calm.simulation.calls + 1, STRIDE):
            schedule = play(6, NO_FAULTS, 4)
            schedule.simulation.broken = {at: kind}
            schedule.run()


@pytest.mark.parametrize("is_committed", [False, True])
def test_a_worker_whose_connection_fails_gives_its_lease_back(is_committed: bool) -> None:
    """A: the next task need not wait for 15 s, whether or not the batch was committed."""
    desk = tally()
    desk.push(Came("1", "a", 1))
    steps = desk.worker("tally")
    call: Any = desk.until(steps, Commit, of=2)
    assert is_batch(call)
    if is_committed:
        desk.simulation.acts[Commit](call)

    call, failed = steps.throw(OutcomeUnknownError()), 0
    while not (isinstance(call, Pause) and failed > 2):
        if isinstance(call, Pause):
            call = steps.send(None)
        else:
            call, failed = steps.throw(UnavailableError()), failed + 1
    assert desk.interval("tally").owner

    with pytest.raises(UnavailableError):
        desk.finish(steps, call)
    assert not desk.interval("tally").owner
    desk.push(Came("2", "a", 12), watermark=FOREVER)
    desk.run()
    assert windows(desk) == [[0, 1], [10, 1]]


# B: repeats


def test_every_task_that_comes_again_ten_minutes_later_changes_nothing() -> None:
    """B: its work is done."""
    desk = tally()
    created: list[Any] = []
    create = desk.simulation.acts[CreateTasks]
    desk.simulation.acts[CreateTasks] = lambda call: (created.extend(call.wakes), create(call))[1]
    desk.push(Came("1", "a", 1), Came("2", "a", 12), watermark=FOREVER)
    desk.run()
    status = desk.status()

    desk.wait(600)
    desk.simulation.wakes += [(desk.simulation.now_ms, wake) for wake in created]
    desk.run()

    assert created
    assert desk.status() == status
    assert windows(desk) == [[0, 1], [10, 1]]


def test_one_id_on_two_streams_is_two_records() -> None:
    """B: an id belongs to its stream."""

    class Both(Tally):
        inputs: ClassVar = {"in": key_of, "on": key_of}

    desk = Desk(Pipeline("both", Both, Written, intervals=1))
    for stream in ("in", "on", "in"):
        desk.push(Came("1", "a", 1), stream=stream)
    for stream in ("in", "on"):
        desk.push(stream=stream, watermark=FOREVER)
    desk.run()

    assert windows(desk) == [[0, 2]]
    assert desk.status().computations["both"].repeated == 1


# C: disorder


def test_an_old_chunk_that_comes_after_newer_ones_is_in_time() -> None:
    """C: as long as its source's watermark has not passed it."""
    desk = tally(processes=("fast", "slow"))
    desk.push(Came("1", "a", 35), process="fast", watermark=35)
    desk.run()
    desk.push(Came("2", "a", 3), process="slow", watermark=3)
    desk.run()
    assert windows(desk) == []
    for process in ("fast", "slow"):
        desk.push(process=process, watermark=FOREVER)
    desk.run()

    assert windows(desk) == [[0, 1], [30, 1]]
    assert desk.status().computations["tally"].late == 0


def test_a_timer_waits_for_a_record_just_before_it_that_lies_in_an_inbox() -> None:
    """C: the watermark does not pass pending records, at any order of steps."""
    desk = tally()
    desk.push(Came("1", "a", 1), watermark=1)
    desk.run()
    steps = desk.worker("tally")
    desk.push(Came("2", "a", 9), watermark=9)
    call = desk.until(steps, Commit, of=2)
    desk.push(watermark=25)
    for _ in range(3):
        desk.do(tick(desk.environment))

    assert desk.head.inputs["tally"] <= 9
    desk.finish(steps, call)
    desk.run()
    assert windows(desk) == [[0, 2]]


# D: zombies


@pytest.mark.parametrize("does_work", [True, False])
def test_a_worker_that_wakes_after_another_took_its_interval_writes_nothing(
    does_work: bool,
) -> None:
    """D, G5: also if the other one has written none of the rows that it writes."""
    desk = tally()
    desk.push(Came("1", "a", 1), watermark=1)
    dead_worker = desk.worker("tally")
    late = desk.until(dead_worker, Commit, of=2)
    desk.wait(16)
    successor = desk.worker("tally", machine=1)
    if does_work:
        assert desk.do(successor) is RunResult.DONE
    else:
        desk.simulation.acts[Commit](desk.until(successor, Commit))
    rows = dict(desk.simulation.store.rows)

    assert desk.finish(dead_worker, late) is RunResult.LEASED
    assert desk.simulation.store.rows == rows


def test_a_tick_that_wakes_late_publishes_nothing() -> None:
    """D, G3: others have moved the watermark meanwhile."""
    desk = tally()
    desk.push(Came("1", "a", 1), watermark=1)
    late_tick = tick(desk.environment)
    late = desk.until(late_tick, Commit)
    desk.push(Came("2", "a", 40), watermark=40)
    desk.run()
    head = desk.head

    desk.finish(late_tick, late)
    assert desk.head == head
    assert head.inputs["tally"] == 40


def test_a_reader_that_wakes_at_an_old_position_lets_nothing_in() -> None:
    """D, G1: another reader is ahead. The late one fails, and its task is retried."""
    log = [({"k": "a"}, at) for at in range(8)]

    def read(clients: Any, position: Any, limit: int) -> Pulled:
        start = position or 0
        return Pulled(log[start : start + 3], start + 3, is_over=start + 3 >= len(log))

    desk = Desk(Pipeline("log", Tally, Written, sources=[PullSource("in", read)], intervals=1))
    late_reader = pull(desk.environment, "in")
    late = desk.until(late_reader, Commit, of=2)
    desk.do(pull(desk.environment, "in"))

    with pytest.raises(ChangedError):
        desk.finish(late_reader, late)
    desk.run()
    assert windows(desk) == [[0, 8]]


def test_a_process_that_slept_does_not_count_on_what_it_remembers() -> None:
    """D: another machine has worked on the interval since."""
    desk = tally()
    for number, machine in enumerate((0, 1, 0)):
        desk.push(Came(str(number), "a", 1), Came("same", "a", 1), watermark=1)
        assert desk.do(desk.worker("tally", machine=machine)) is RunResult.DONE
    desk.push(watermark=FOREVER)
    desk.run()

    assert windows(desk) == [[0, 4]]
    assert desk.status().computations["tally"].repeated == 2
    assert len(desk.rows(IDS)) == 1
    assert desk.rows(CHUNK) == []


def test_a_worker_that_may_not_have_given_its_interval_up_has_its_task_come_again() -> None:
    """G: no other task is created for a leased interval."""
    desk = tally()
    desk.push(Came("1", "a", 1), watermark=1)
    steps = desk.worker("tally")
    release = desk.until(steps, Commit, of=3)

    def refuse(call: Commit) -> Any:
        raise OutcomeUnknownError

    desk.simulation.acts[Commit] = refuse
    with pytest.raises(OutcomeUnknownError):
        desk.finish(steps, release)
    assert desk.interval("tally").owner


def test_workers_that_died_are_not_held_against_an_interval_that_others_left_alive() -> None:
    """I, G7: only those in a row make its first record a dead letter."""
    desk = tally()
    desk.push(watermark=1)
    for _ in range(2):
        desk.simulation.acts[Commit](desk.until(desk.worker("tally"), Commit))
        desk.wait(16)
    crash_count = desk.interval("tally").crash_count
    assert desk.do(desk.worker("tally")) is RunResult.DONE

    assert (crash_count, desk.interval("tally").crash_count) == (1, 0)


# G: wake-ups and queues


def test_ten_thousand_rings_for_one_interval_make_one_task() -> None:
    """G: the interval's generation names it."""
    desk = tally()
    desk.push(Came("1", "a", 1))
    desk.simulation.wakes.clear()
    desk.simulation.used.clear()
    for _ in range(10_000):
        desk.simulation.machines[0].caches.clear()  # Each wake-up is of another process.
        desk.do(wake_intervals(desk.environment, [("tally", 0)]))

    assert len(desk.simulation.wakes) == 1


@pytest.mark.parametrize("call", [CreateTasks, Commit])
def test_an_outage_of_a_minute_delays_and_loses_nothing(call: type[Any]) -> None:
    """G, H: of the queue, or of all commits. An acquired interval waits for its lease."""
    desk = tally()
    ends_ms, real = desk.simulation.now_ms + 60_000, desk.simulation.acts[call]

    def fail(asked: Any) -> Any:
        if desk.simulation.now_ms < ends_ms:
            raise UnavailableError if call is CreateTasks else OutcomeUnknownError
        return real(asked)

    desk.push(Came("1", "a", 1), Came("2", "a", 12), watermark=FOREVER)
    desk.simulation.acts[call] = fail
    desk.run()

    assert desk.simulation.now_ms > ends_ms
    assert windows(desk) == [[0, 1], [10, 1]]


def test_an_outage_before_the_first_row_is_there_is_told_and_not_waited_for() -> None:
    """H: who pushes tries again, when it likes."""
    desk = tally()
    real = desk.simulation.acts[Commit]

    def refuse(call: Commit) -> Any:
        raise OutcomeUnknownError

    desk.simulation.acts[Commit] = refuse
    with pytest.raises(ChangedError):
        desk.push(Came("1", "a", 1))
    desk.simulation.acts[Commit] = real
    desk.push(Came("1", "a", 1), watermark=FOREVER)
    desk.run()

    assert windows(desk) == [[0, 1]]


@pytest.mark.parametrize("failure", ["purged", "late"])
def test_a_queue_that_is_purged_or_stands_for_ten_minutes_loses_nothing(failure: str) -> None:
    """G: the sweep replaces lost tasks; late ones find nothing to do."""
    desk = tally()
    desk.push(Came("1", "a", 1), Came("2", "a", 12), watermark=FOREVER)
    wakes = desk.simulation.wakes
    wakes[:] = [(at + 600_000, wake) for at, wake in wakes] if failure == "late" else []
    desk.run()

    assert windows(desk) == [[0, 1], [10, 1]]
    assert desk.simulation.wakes == []
