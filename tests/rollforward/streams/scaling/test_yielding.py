"""Workers that give way to intervals that wait for one, and not for ever."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest

from rollforward.streams import Computation, Context, Pipeline, PushSource, Record
from rollforward.streams.coordinator import tick
from rollforward.streams.graph.environment import StreamConfig
from rollforward.streams.model.slots import slot_of
from rollforward.streams.scaling.yielding import MAX_WAIT_MS, should_yield, unserved
from rollforward.streams.storage.remote_calls import Pause
from rollforward.streams.storage.schema import Head, Interval
from tests.rollforward.streams.simulator.driver import Came, Desk

HALF = 2**15
KEYS = [f"k{n}" for n in range(50)]
LOWER = next(key for key in KEYS if slot_of(key) < HALF)
UPPER = next(key for key in KEYS if slot_of(key) >= HALF)
TICK_S, CALL_MS = 0.25, 20


class Counts(Computation):
    inputs: ClassVar = {"in": lambda value: str(value["k"])}

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.counter("seen").add(1)


PIPELINE = Pipeline("way", Counts, sources=[PushSource("in")], intervals=2)
Meanwhile = Callable[["Trickle"], None]


class Trickle:
    """Room for one worker, which the lower interval has; no worker takes the upper one."""

    def __init__(self) -> None:
        self.desk = Desk(PIPELINE)
        self.desk.simulation.config = StreamConfig()
        self.pushed = 0
        self.push(LOWER)
        self.push(UPPER)
        self.desk.run()
        self.began_ms = self.ticked_ms = self.desk.simulation.now_ms
        self.ends_s: list[float] = []  # Of the runs at the lower interval.

    @property
    def now_s(self) -> float:
        return (self.desk.simulation.now_ms - self.began_ms) / 1000

    def push(self, key: str) -> None:
        self.pushed += 1
        self.desk.push(Came(f"{self.pushed}", key, self.pushed))

    def play(self, seconds: float, meanwhile: Meanwhile = lambda trickle: None) -> None:
        """Let a few records a second come to the lower interval, with a worker all the time."""
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.push(LOWER)
            for _ in self._pauses():
                self.push(LOWER)
                if self.desk.simulation.now_ms - self.ticked_ms > 1000 * TICK_S:
                    self.ticked_ms = self.desk.simulation.now_ms
                    self.desk.do(tick(self.desk.environment))
                    meanwhile(self)
                if self.now_s >= until_s:
                    return
            self.ends_s.append(self.now_s)

    def _pauses(self) -> Iterator[None]:
        """Run a worker of the lower interval to its end, with a stop at each pause."""
        simulation = self.desk.simulation
        steps = self.desk.worker("counts")
        answer: Any = None
        while True:
            try:
                call = steps.send(answer)
            except StopIteration:
                return
            simulation.now_ms += CALL_MS
            if isinstance(call, Pause):
                simulation.now_ms += int(1000 * call.seconds)
                answer = None
                yield
            else:
                answer = simulation.acts[type(call)](call)

    def serve_upper(self) -> None:
        simulation = self.desk.simulation
        simulation.do(simulation.worker(self.desk.environment, "counts", HALF).run())


def runs(trickle: Trickle, from_s: float, to_s: float) -> int:
    return sum(from_s <= end_s < to_s for end_s in trickle.ends_s)


def test_a_worker_with_a_trickle_stays_while_nobody_waits() -> None:
    """G4: for as long as ever."""
    trickle = Trickle()
    trickle.play(30)
    assert runs(trickle, 0, 30) <= 2
    assert trickle.desk.head.unserved.keys() <= {"counts:0000"}


def test_a_worker_with_a_trickle_gives_way_to_an_interval_that_waits() -> None:
    """G4: after a second, and again as long as the other one is served now and then."""
    trickle = Trickle()
    trickle.push(UPPER)

    served_s = [0.0]

    def serve(_: Trickle) -> None:
        if trickle.now_s > served_s[-1] + 20:
            served_s.append(trickle.now_s)
            trickle.serve_upper()
            trickle.push(UPPER)

    trickle.play(90, serve)

    assert all(runs(trickle, from_s, from_s + 10) > 5 for from_s in range(0, 90, 10))
    assert trickle.desk.state("counts", UPPER)["seen"] == len(served_s)


def test_nobody_gives_way_for_long_to_an_interval_that_nobody_can_work_on() -> None:
    """G4: its code is gone, or reads none of its rows: all others would end again and again."""
    trickle = Trickle()
    trickle.push(UPPER)
    trickle.play(90)
    assert runs(trickle, 0, 30) > 10
    assert runs(trickle, 35, 90) <= 4
    assert trickle.desk.head.unserved.keys() >= {"counts:8000"}


def test_that_an_interval_is_taken_again_and_again_is_no_reason_to_give_way() -> None:
    """G4: its worker ends at once with an error, as one does whose code cannot read a row."""
    trickle = Trickle()
    trickle.push(UPPER)

    def take(_: Trickle) -> None:
        simulation = trickle.desk.simulation
        worker = simulation.worker(trickle.desk.environment, "counts", HALF)
        simulation.do(worker.acquire())
        simulation.do(worker._release_after_error())

    trickle.play(90, take)

    assert trickle.desk.simulation.store.rows[names("counts", HALF)].body.seq > 100
    assert runs(trickle, 35, 90) <= 4


def names(computation: str, lo: int) -> object:
    return Desk(PIPELINE).environment.names.interval(computation, lo)


def test_an_idle_worker_does_not_linger_while_others_wait() -> None:
    desk = Desk(PIPELINE)
    desk.simulation.config = StreamConfig()
    desk.push(Came("1", LOWER, 1), Came("2", UPPER, 1))
    for _ in range(2):
        desk.do(tick(desk.environment))
        desk.wait(2)
    paused = [call for call in calls(desk) if isinstance(call, Pause)]
    assert sum(pause.seconds for pause in paused) <= desk.simulation.config.gather_s


def calls(desk: Desk) -> list[object]:
    """Return the remote calls of a worker of the lower interval."""
    yielded, steps, answer = list[object](), desk.worker("counts"), None
    while True:
        try:
            call = steps.send(answer)
        except StopIteration:
            return yielded
        yielded.append(call)
        is_pause = isinstance(call, Pause)
        answer = None if is_pause else desk.simulation.acts[type(call)](call)


@pytest.mark.parametrize(
    ("waits_ms", "counts"),
    [(0, False), (999, False), (1_000, True), (MAX_WAIT_MS - 1, True), (MAX_WAIT_MS, False)],
)
def test_an_interval_counts_after_a_second_and_for_half_a_minute(
    waits_ms: int, counts: bool
) -> None:
    """Between two tasks each interval has no worker for a moment, for which no other yields."""
    desk = Desk(PIPELINE)
    now_ms = desk.environment.now_ms()
    head = Head(unserved={"counts:0000": (0, now_ms - waits_ms)})
    assert should_yield(desk.environment, head) is counts


def test_what_waits_is_noted_from_when_it_began_or_last_got_something_done() -> None:
    place = "counts", 0
    entries = unserved(Head(), [place], {place: Interval(0, records=3)}, 1_000)
    assert entries == {"counts:0000": (3, 1_000)}
    head = Head(unserved=entries)
    leased = Interval(0, records=3, seq=9, gen=9)
    assert unserved(head, [place], {place: leased}, 5_000) == entries
    done = unserved(head, [place], {place: Interval(0, records=4)}, 5_000)
    assert done == {"counts:0000": (4, 5_000)}
    assert unserved(head, [], {}, 5_000) == {}
    # The clock of the tick before was ahead.
    assert unserved(head, [place], {place: leased}, 400) == {"counts:0000": (3, 400)}
