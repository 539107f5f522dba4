"""Failures of time to survive: wrong clocks, late records, leaps of watermarks, many timers."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import ClassVar

import pytest

from rollforward.streams import FOREVER, Computation, Context, Pipeline, PushSource, Record, Timer
from rollforward.streams.coordinator import tick
from rollforward.streams.model.limits import Limits
from rollforward.streams.model.records import NEVER
from rollforward.streams.storage.dedup import MAX_PART
from rollforward.streams.storage.remote_calls import Commit
from rollforward.streams.storage.schema import DEAD, IDS
from rollforward.streams.topology.changes import attach
from tests.rollforward.streams.simulator.accidents import NO_FAULTS
from tests.rollforward.streams.simulator.driver import Came, Desk
from tests.rollforward.streams.test_failures import Tally, Written, key_of, tally, windows

HOUR_MS = 3_600_000
IN_2023 = 1_690_000_000_000


# E: clocks


@pytest.mark.parametrize("skew_ms", [-600_000, 600_000])
def test_a_machine_whose_clock_is_ten_minutes_wrong_changes_no_result(skew_ms: int) -> None:
    """E: and who waits for its lease does not wait for its clock."""
    desk = tally()
    desk.simulation.machines[1].skew_ms = skew_ms
    desk.push(Came("1", "a", 1), Came("2", "a", 12), watermark=13)
    dead = desk.worker("tally", machine=1)
    desk.simulation.acts[Commit](desk.until(dead, Commit))  # It has the lease, and dies.
    began_ms = desk.simulation.now_ms
    desk.push(Came("1", "a", 1), Came("3", "a", 14), watermark=FOREVER)
    desk.run()

    assert windows(desk) == [[0, 1], [10, 2]]
    assert desk.simulation.now_ms - began_ms < 120_000


@pytest.mark.parametrize("is_known", [True, False])
def test_nobody_waits_for_the_lease_of_a_worker_that_is_known_to_be_dead(is_known: bool) -> None:
    """M4: its task is redelivered to another process of its instance, which continues at once."""
    desk = tally()
    desk.push(Came("1", "a", 1), watermark=FOREVER)
    dead = desk.worker("tally")
    desk.simulation.acts[Commit](desk.until(dead, Commit))  # It has the lease, and dies.

    desk.simulation.chances = replace(NO_FAULTS, mistaken=float(is_known))
    desk.do(desk.worker("tally", machine=1))

    assert desk.status().computations["tally"].records == int(is_known)


@pytest.mark.parametrize("is_known", [True, False])
def test_the_watermarks_wake_an_interval_whose_worker_is_known_to_be_dead(is_known: bool) -> None:
    """M4: tasks before the death was known have left it to the lease."""
    desk = tally()
    desk.push(Came("1", "a", 1), watermark=FOREVER)
    dead = desk.worker("tally")
    desk.simulation.acts[Commit](desk.until(dead, Commit))  # It has the lease, and dies.
    desk.do(desk.worker("tally", machine=1))
    desk.simulation.wakes.clear()

    desk.simulation.chances = replace(NO_FAULTS, mistaken=float(is_known))
    desk.do(tick(desk.environment))

    woken = [wake.target for _, wake in desk.simulation.wakes]
    assert (("tally", 0) in woken) == is_known


def test_a_clock_that_is_put_back_an_hour_changes_no_result() -> None:
    """E: with a lease and ids of the hour before."""
    desk = tally(dedup=timedelta(minutes=10))
    for machine in desk.simulation.machines:
        machine.skew_ms = HOUR_MS
    desk.push(Came("2", "a", 2), watermark=2)
    desk.run()
    desk.push(Came("1", "a", 1), watermark=2)
    dead = desk.worker("tally")
    desk.until(dead, Commit, of=2)
    for machine in desk.simulation.machines:
        machine.skew_ms = 0
    began_ms = desk.simulation.now_ms
    desk.push(Came("2", "a", 2), Came("3", "a", 3), watermark=FOREVER)
    desk.run()

    assert windows(desk) == [[0, 3]]
    assert desk.status().computations["tally"].repeated == 1
    assert desk.simulation.now_ms - began_ms < 120_000


def test_ids_are_known_for_their_horizon_after_the_last_of_their_row_by_whatever_clock() -> None:
    """E, G6: a machine whose clock is behind does not age what others have accepted."""
    desk = tally(dedup=timedelta(minutes=10))
    behind = desk.simulation.machines[1]
    behind.skew_ms = -300_000
    desk.push(Came("1", "a", 1), watermark=1)
    desk.do(desk.worker("tally"))
    desk.push(Came("2", "a", 1), watermark=1)
    desk.do(desk.worker("tally", machine=1))
    desk.wait(400)
    desk.push(Came("1", "a", 1), watermark=FOREVER)
    desk.run()

    assert windows(desk) == [[0, 2]]


def test_an_id_is_known_for_its_horizon_although_the_first_of_its_row_is_older() -> None:
    """G6: ids that came later into a row make all of it known for longer."""
    desk = tally(dedup=timedelta(minutes=10))
    for id_ in "12":
        desk.push(Came(id_, "a", 1), watermark=1)
        desk.do(desk.worker("tally"))
        desk.wait(400)
    desk.push(Came("2", "a", 1), watermark=FOREVER)
    desk.run()

    assert windows(desk) == [[0, 2]]


def test_records_of_years_ago_and_of_tomorrow_make_no_other_late() -> None:
    """E: the watermark follows records and no clock, but not into the future."""
    desk = Desk(Pipeline("tally", Tally, Written, intervals=1))
    desk.simulation.now_ms = IN_2023 + 365 * 24 * HOUR_MS
    result = desk.push(Came("1", "a", IN_2023), Came("2", "a", IN_2023 + 5))
    assert result.row.body.watermark == IN_2023 + 5 - 2_000
    desk.run()

    desk = Desk(Pipeline("tally", Tally, Written, intervals=1))
    now_ms = desk.simulation.now_ms
    desk.push(Came("1", "a", now_ms + 24 * HOUR_MS))
    assert desk.push(Came("2", "a", now_ms + 59_000)).late == 0


def test_a_worker_that_is_slow_makes_nothing_late() -> None:
    """E: what is pending holds the watermark back, for as long as it takes."""
    desk = tally()
    for at in range(0, 100, 5):
        desk.push(Came(f"r{at}", "a", at), watermark=at)
        desk.do(tick(desk.environment))
        desk.wait(60)
    desk.simulation.wakes.clear()
    desk.push(watermark=FOREVER)
    desk.run()

    assert windows(desk) == [[start, 2] for start in range(0, 100, 10)]
    assert desk.status().computations["tally"].late == 0


# F: late data


def test_a_late_record_is_counted_as_such_and_moves_no_watermark_back() -> None:
    """F, G3, G7: also one whose source had promised that it would not come."""
    desk = tally()
    desk.push(Came("1", "a", 25), watermark=25)
    desk.run()
    inputs = desk.head.inputs
    result = desk.push(Came("2", "a", 3))
    desk.do(tick(desk.environment))
    assert (result.late, desk.head.inputs) == (1, inputs)
    desk.push(watermark=30)
    desk.do(tick(desk.environment))
    assert desk.head.inputs["tally"] == 25  # It holds the watermark at which it came.
    desk.run()
    assert desk.head.inputs["tally"] == 30

    desk.push(watermark=FOREVER)
    desk.run()
    assert windows(desk) == [[20, 1]]
    assert desk.status().computations["tally"].late == 1


def test_what_a_process_brings_that_was_missing_is_late_behind_the_watermark_only() -> None:
    """F, G3: it is counted, and left out after its idle time; what follows is in time."""
    desk = tally(processes=("here", "away"), idle=timedelta(seconds=30))
    desk.push(Came("1", "a", 25), process="here", watermark=25)
    desk.run()
    assert desk.head.inputs["tally"] == 0
    for _ in range(2):
        desk.wait(16)
        desk.push(Came("2", "a", 45), process="here", watermark=45)
        desk.run()
    assert desk.status().sources["in"].idle == ("away",)

    late_push = desk.push(Came("3", "a", 3), Came("4", "a", 46), process="away", watermark=46)
    for process in ("here", "away"):
        desk.push(process=process, watermark=FOREVER)
    desk.run()

    assert late_push.late == 1
    assert windows(desk) == [[20, 1], [40, 2]]


def test_a_process_that_is_held_back_for_longer_than_its_idle_time_is_not_left_out() -> None:
    """G3, G11: backpressure made it idle, so its later records are on time."""
    source = PushSource(
        "in", processes=("here", "away"), disorder=timedelta(0), idle=timedelta(seconds=30)
    )
    limits = Limits(max_drift=timedelta(milliseconds=10))
    desk = Desk(Pipeline("tally", Tally, Written, sources=[source], intervals=1, limits=limits))
    desk.push(Came("1", "a", 25), process="here", watermark=25)
    for number in range(4):
        desk.push(process="away", watermark=number)
        desk.do(tick(desk.environment))
        desk.wait(20)
    seen = desk.status().sources["in"]
    assert (seen.idle, list(seen.paused)) == ((), ["here"])

    desk.push(process="away", watermark=60)
    desk.do(tick(desk.environment))
    assert desk.push(Came("2", "a", 26), process="here", watermark=26).late == 0
    for process in ("here", "away"):
        desk.push(process=process, watermark=FOREVER)
    desk.run()

    assert windows(desk) == [[20, 2]]


def test_a_late_record_after_its_state_was_forgotten_begins_anew() -> None:
    """F: with an empty state."""

    class Brief(Computation):
        inputs: ClassVar = {"in": key_of}
        ttl = timedelta(milliseconds=10)

        def record(self, ctx: Context, record: Record) -> None:
            ctx.state.counter("seen").add(1)

    desk = Desk(Pipeline("brief", Brief, intervals=1))
    desk.push(Came("1", "a", 1), watermark=1)
    desk.run()
    assert desk.state("brief", "a") == {"seen": 1}
    desk.push(watermark=50)
    desk.run()
    assert desk.state("brief", "a") == {}
    desk.push(Came("2", "a", 45))
    desk.simulation.wakes.clear()
    desk.do(desk.worker("brief"))

    assert desk.state("brief", "a") == {"seen": 1}


# J: watermarks and timers


def test_nothing_at_all_and_intervals_without_a_key_come_to_their_end() -> None:
    """J: an empty interval holds no watermark."""
    desk = Desk(Pipeline("tally", Tally, Written, intervals=8))
    desk.push(watermark=FOREVER)
    desk.run()
    assert set(desk.head.inputs.values()) == {FOREVER}

    desk = Desk(Pipeline("tally", Tally, Written, intervals=8))
    desk.push(Came("1", "a", 5), watermark=5)
    desk.run()
    desk.push(watermark=30)
    desk.run()
    assert windows(desk) == [[0, 1]]


def test_a_leap_over_thousands_of_windows_writes_each_of_them_in_order() -> None:
    """J, G2, G4: in as many commits as it takes."""
    desk = tally()
    ats = range(0, 20_000, 10)
    for start in range(0, len(ats), 500):
        part = ats[start : start + 500]
        desk.push(*(Came(f"r{at}", "a", at) for at in part), watermark=0)
    desk.push(watermark=FOREVER)
    desk.run()

    assert windows(desk) == [[at, 1] for at in ats]


def test_a_worker_takes_over_an_interval_with_thousands_of_timers() -> None:
    """J: it reads the slabs that are due, and no others."""
    desk = tally()
    keys = [f"k{number}" for number in range(3_000)]
    for start in range(0, len(keys), 500):
        part = [Came(key, key, 10 * start) for key in keys[start : start + 500]]
        desk.push(*part, watermark=0)
    desk.run()
    slabs = desk.interval("tally").slabs
    assert desk.status().computations["tally"].timers == 0

    desk.simulation.machines[1].caches.clear()
    desk.push(watermark=15)
    desk.do(tick(desk.environment))
    desk.do(desk.worker("tally", machine=1))

    assert len(slabs) > 10
    assert desk.status().computations["tally"].timers == 500


def test_timers_of_the_clock_come_one_after_the_other_without_a_sweep() -> None:
    """J, G4: each of them has a task of its own."""

    class Alarms(Computation):
        inputs: ClassVar = {"in": key_of}

        def record(self, ctx: Context, record: Record) -> None:
            for minutes in (1, 2, 3):
                ctx.set_timer(str(minutes), ctx.now_ms + 60_000 * minutes, processing_time=True)

        def timer(self, ctx: Context, timer: Timer) -> None:
            ctx.state.list("rung").append(timer.tag)

    desk = Desk(Pipeline("alarms", Alarms, intervals=1))
    desk.simulation.sweeps = False
    desk.push(Came("1", "a", 1), watermark=1)
    desk.run()

    assert desk.state("alarms", "a") == {"rung": ["1", "2", "3"]}
    assert desk.interval("alarms").processing_due == NEVER


def test_a_task_that_comes_before_its_timer_by_the_worker_s_clock_does_no_harm() -> None:
    """C: the timer fires once, when its clock has come so far."""

    class Alarm(Computation):
        inputs: ClassVar = {"in": key_of}

        def record(self, ctx: Context, record: Record) -> None:
            ctx.set_timer("ring", ctx.now_ms + 60_000, processing_time=True)

        def timer(self, ctx: Context, timer: Timer) -> None:
            ctx.state.list("rung").append(ctx.now_ms >= timer.at_ms)

    desk = Desk(Pipeline("alarm", Alarm, intervals=1))
    desk.push(Came("1", "a", 1), watermark=1)
    desk.do(desk.worker("alarm"))
    for machine in desk.simulation.machines:
        machine.skew_ms = -90_000
    desk.wait(61)
    desk.do(desk.worker("alarm"))
    assert desk.state("alarm", "a") == {}
    desk.run()

    assert desk.state("alarm", "a") == {"rung": [True]}


def test_a_computation_that_is_attached_begins_at_the_watermark_of_what_it_reads() -> None:
    """J, G3: what was in time is in time for it, too; who does not know it leaves it alone."""
    source = PushSource("in", disorder=timedelta(0))
    old_pipeline = Pipeline("grows", Tally, Written, sources=[source], intervals=1)
    desk = Desk(old_pipeline)
    desk.push(Came("1", "a", 25), watermark=25)
    desk.run()

    class Second(Tally):
        outputs = ("seconds",)

    class Seconds(Written):
        inputs: ClassVar = {"seconds": key_of}

    desk.simulation.pipeline = Pipeline(
        "grows", Tally, Written, standby=[Second, Seconds], sources=[source], intervals=1
    )
    for name in ("second", "seconds"):
        desk.do(attach(desk.environment, name, None))
    assert desk.head.inputs["second"] == desk.head.inputs["seconds"] == 25
    desk.push(Came("2", "a", 31), watermark=31)
    desk.run()
    assert desk.head.inputs["second"] == 31
    inputs = desk.head.inputs
    desk.simulation.pipeline = old_pipeline
    desk.do(tick(desk.environment))
    assert desk.head.inputs == inputs


# H: sizes


def test_what_a_hook_may_write_counts_for_each_reader() -> None:
    """H, G8: four readers of one large output do not make a commit too large."""

    class Loud(Computation):
        inputs: ClassVar = {"in": key_of}
        outputs = ("loud",)

        def record(self, ctx: Context, record: Record) -> None:
            for _ in range(record.value["times"]):
                ctx.produce("loud", {"k": "a", "text": "x" * 100_000})

    readers = [type(f"Reader{n}", (Computation,), {"inputs": {"loud": key_of}}) for n in range(4)]
    desk = Desk(Pipeline("loud", Loud, *readers, intervals=1))
    desk.push(Came("1", "a", 1), times=9)
    desk.push(Came("2", "a", 1), times=2)
    desk.run()

    assert desk.status().computations["reader3"].records == 2
    assert len(desk.rows(DEAD)) == 1


def test_ids_take_bounded_room_whatever_comes() -> None:
    """H, G6: rows of at most 500 ids, which go when they have served."""
    desk = tally(dedup=timedelta(minutes=10))
    for batch in range(4):
        part = [Came(f"{batch}.{n}", "a", 1) for n in range(400)]
        desk.push(*part, watermark=1)
        desk.run()
        desk.wait(400)

    sizes = [part.size for part in desk.interval("tally").ids]
    assert max(sizes) <= MAX_PART
    assert len(desk.rows(IDS)) == len(sizes) == 3
