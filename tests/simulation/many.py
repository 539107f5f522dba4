"""Many schedules, on several processors: how many an hour, and what their faults have covered."""

from __future__ import annotations

import gc
import itertools
import logging
import multiprocessing
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from tests.infra import fast_keys
from tests.simulation.faults import KINDS
from tests.simulation.schedule import Simulator, play_or_shrink

PLACES_OF = 40  # One schedule in so many is described call by call, which takes time.
SHOWN = 5


@dataclass
class Played:
    """What a process has played.

    Attributes:
        calls: All remote calls of all schedules.
        cpu_s: The time of its processor, without the time of its start.
        places: Who makes which call, as far as one schedule in PLACES_OF shows it.
        broken: Those places with the kinds of fault that struck there.
    """

    schedules: int = 0
    calls: int = 0
    sweeps: int = 0
    cpu_s: float = 0.0
    places: set[str] = field(default_factory=set)
    broken: set[tuple[str, str]] = field(default_factory=set)
    met: Counter[str] = field(default_factory=Counter)

    def add(self, other: Played) -> None:
        """Add what another process has played."""
        self.schedules += other.schedules
        self.calls += other.calls
        self.sweeps += other.sweeps
        self.cpu_s += other.cpu_s
        self.places |= other.places
        self.broken |= other.broken
        self.met += other.met

    def report(self, took_s: float) -> Iterator[str]:
        """Yield lines for a person."""
        count = max(1, self.schedules)
        an_hour = 3600 * count / took_s
        yield (
            f"{self.schedules:,} schedules in {took_s:.0f} s: {an_hour:,.0f} an hour, "
            f"{1000 * self.cpu_s / count:,.0f} ms of a processor, {self.calls / count:,.0f} calls "
            f"and {self.sweeps / count:.1f} sweeps each"
        )
        yield "met: " + ", ".join(f"{count:,} {kind}" for kind, count in self.met.most_common())
        could = {(place, kind) for place in self.places for kind in KINDS} | self.broken
        yield f"covered: {len(self.broken):,} of {len(could):,} pairs of a call and a kind of fault"
        for place, kind in sorted(could - self.broken)[:: max(1, len(could) // SHOWN)]:
            yield f"  never tried: {kind} at {place}"


def play(first: int, step: int, schedules: int, ends_at: float) -> Played:
    """Play every so many-th seed, until there are enough of them or the time is up."""
    fast_keys.make_fast()
    logging.disable(logging.CRITICAL)
    simulator, played = Simulator(), Played()
    gc.collect()
    gc.freeze()  # What is there stays: no collection looks at it again.
    began_s = time.process_time()
    line = simulator.world.line
    for number, seed in enumerate(itertools.count(first, step)):
        if (schedules and number >= schedules) or time.time() > ends_at:
            break
        line.is_traced = number % PLACES_OF == 0
        one = play_or_shrink(simulator, seed)
        played.add(
            Played(
                schedules=1,
                calls=one.calls,
                sweeps=one.sweeps,
                places=set(line.made),
                broken={(place, kind.partition(":")[0]) for kind, place in one.met},
                met=Counter(kind.partition(":")[0] for kind, _ in one.met),
            )
        )
    played.cpu_s = time.process_time() - began_s
    simulator.close()
    return played


def play_many(first: int, schedules: int, minutes: float, processes: int) -> Iterator[str]:
    """Play seeds in several processes; yield a report.

    Args:
        schedules: How many; 0: as many as the minutes allow.
        minutes: How long at most; 0: as long as it takes.

    Raises:
        BrokenPromiseError: with the command that plays the least of the schedule again.
    """
    began_s, played = time.time(), Played()
    ends_at = began_s + 60 * minutes if minutes else float("inf")
    each = -(-schedules // processes)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        one = partial(play, step=processes, schedules=each, ends_at=ends_at)
        for part in pool.map(one, range(first, first + processes)):
            played.add(part)
    yield from played.report(time.time() - began_s)
