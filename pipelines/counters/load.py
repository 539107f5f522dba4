"""Loads: the same clicks for each way of keeping a count, in parallel.

1. `start` commits the load, with the task that begins it. There is one load at a time.
2. `begin` creates a task for each writer of each way.
3. A writer works in steps, a task each: a step counts its clicks that are due, one after the other,
   records how far the writer is, and creates the task of the next step, by name.

Each click has an idempotency key, "<load>.<writer>.<number>", so a step that is killed, retried or
delivered twice counts the same clicks, and they count once. In-memory clicks have none: a step
that is delivered twice may count them twice. A writer that is behind when the load ends takes one
more step, then stops.

Lost on failure: the latencies of a step that died; no click, but those in memory.
Routes: POST /tasks/counters-demo/begin, /tasks/counters-demo/click.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

import pydantic
from google.cloud import ndb

from models.counters import ClickLoads, ClickWriter, loads_key, writer_key
from pipelines.counters.counters import KEY, WAYS, apply_switch
from pipelines.loads import (
    GIVEN_UP_AFTER_S,
    LoadGoesOnError,
    StepWork,
    TimedLoad,
    bucket,
    percentile,
    together,
)
from pipelines.times import now_ms
from rollforward import outbox
from rollforward.counters import OutcomeUnknownError
from rollforward.datastore import transact
from rollforward.runtime import Clients
from rollforward.tasks import Unavailable, task

MAX_RATE = 200
MAX_SECONDS = 30
MAX_WRITERS = 10
# Clicks a second per writer: writers click in parallel, as visitors do.
CLICKS_A_WRITER = 10
STEP_S = 0.5
MAX_STEP = 32


@dataclass(frozen=True)
class ClickLoad(TimedLoad):
    """Parameters of a load: clicks a second for each way, duration, start."""

    id: Annotated[str, pydantic.Field(pattern="^[0-9a-f]{32}$")]
    ways: Annotated[list[str], pydantic.Field(max_length=4)]
    rate: Annotated[int, pydantic.Field(ge=1, le=MAX_RATE)]
    seconds: Annotated[int, pydantic.Field(ge=1, le=MAX_SECONDS)]
    started_ms: int
    is_limited: bool = False

    @property
    def writers(self) -> int:
        """Number of writers of each way."""
        return max(1, min(MAX_WRITERS, self.rate // CLICKS_A_WRITER))

    @property
    def clicks(self) -> int:
        """Number of clicks that each way is to count."""
        return self.rate * self.seconds

    def clicks_of(self, writer: int) -> int:
        """Return the number of a writer's clicks: click i belongs to writer i modulo writers."""
        return len(range(writer, self.clicks, self.writers))

    def due(self, clients: Clients, writer: int) -> int:
        """Return the number of a writer's clicks that are due by now."""
        total = min(self.clicks, int(self.age_s(clients) * self.rate) + 1)
        return len(range(writer, total, self.writers))


@dataclass(frozen=True)
class ClickStep:
    """One task of a writer."""

    load: ClickLoad
    way: Annotated[str, pydantic.Field(max_length=20)]
    writer: Annotated[int, pydantic.Field(ge=0, lt=MAX_WRITERS)]
    number: int = 0
    size: Annotated[int, pydantic.Field(ge=1, le=MAX_STEP)] = 4  # Clicks, at most.


# Start


def start(clients: Clients, load: ClickLoad) -> bool:
    """Start a load; return False if it was started before.

    Raises:
        LoadGoesOnError: another one is running.
    """

    def body() -> bool:
        loads = loads_key().get() or ClickLoads(key=loads_key(), earlier={})
        previous = load_of(loads)
        if previous is not None and previous.id == load.id:
            return False
        if previous is not None:
            _close(clients, loads, previous)
        loads.load = asdict(load)
        loads.put()
        outbox.enqueue(clients, begin, load)
        return True

    return transact(body)


def _close(clients: Clients, loads: ClickLoads, previous: ClickLoad) -> None:
    """Add up the last load, in the transaction that replaces it; delete the rows of the previous.

    A late writer finds its row closed, and adds to the totals itself.
    """
    rows = writers_of(previous)
    if not all(row.has_ended for row in rows) and not previous.is_given_up(clients):
        raise LoadGoesOnError("the counters are under load")
    accepted: Counter[str] = Counter(loads.earlier)
    for row in rows:
        accepted[way_of(row)] += row.accepted
        row.is_closed = True
    loads.earlier = dict(accepted)
    if loads.past:
        ndb.delete_multi([row.key for row in writers_of(ClickLoad(**loads.past))])
    loads.past = loads.load
    loads.past_is_open = not all(row.has_ended for row in rows)
    ndb.put_multi(rows)


def load_of(loads: ClickLoads | None) -> ClickLoad | None:
    """Return the last load."""
    return ClickLoad(**loads.load) if loads is not None and loads.load else None


def writers_of(load: ClickLoad) -> list[ClickWriter]:
    """Return the rows of a load's writers, way by way."""
    keys = [writer_key(load.id, way, w) for way in load.ways for w in range(load.writers)]
    rows = ndb.get_multi(keys)
    return [row or ClickWriter(key=key) for key, row in zip(keys, rows, strict=True)]


def way_of(row: ClickWriter) -> str:
    """Return the way that a writer uses."""
    return str(row.key.id().split("|")[1])


@task("/tasks/counters-demo/begin", queue="fan-out")
def begin(clients: Clients, load: ClickLoad) -> None:
    """Create a task for each writer."""
    steps = [ClickStep(load, way, writer) for way in load.ways for writer in range(load.writers)]
    names = [(load.id, step.way, step.writer, step.number) for step in steps]
    click.enqueue_many(clients, steps, names=names)


# Click


@dataclass
class _Work(StepWork):
    """Result of a step: by second of the load, also its clicks and their conflicts."""

    seconds: dict[int, list[int]] = field(default_factory=dict)

    def count(self, second: int, took_ms: float, conflicts: int, *, is_duplicate: bool) -> None:
        self.accepted += 1
        if is_duplicate:
            self.repeats += 1
            return
        self.latencies[bucket(took_ms)] += 1
        clicks = self.seconds.setdefault(second, [0, 0])
        clicks[0] += 1
        clicks[1] += conflicts


@task("/tasks/counters-demo/click", queue="fan-out")
def click(clients: Clients, step: ClickStep) -> None:
    """Make a writer's clicks that are due; create the task of its next step."""
    load, key = step.load, writer_key(step.load.id, step.way, step.writer)
    row = key.get() or ClickWriter(key=key)
    if row.has_ended or step.way not in WAYS:
        return
    is_last = load.age_s(clients) > load.seconds
    due = min(row.accepted + step.size, load.due(clients, step.writer))
    planned = row.planned if row.is_closed else max(row.planned, due)
    if row.is_closed and row.accepted >= planned:
        return
    if planned > row.planned:
        transact(lambda: _plan(step, planned))
    apply_switch(clients)
    cost_before, began = clients.meter.cost(), time.perf_counter()
    work = _click(clients, step, row.accepted, planned)
    writes = (clients.meter.cost() - cost_before).writes
    is_over = work.error is None and (is_last or work.accepted >= load.clicks_of(step.writer))
    ended_ms = now_ms(clients) if is_over else None
    transact(lambda: _record(step, work, writes, ended_ms))
    if work.error is not None:
        raise Unavailable(str(work.error)) from work.error
    if not is_over:
        _next(clients, step, is_slow=time.perf_counter() - began > STEP_S)


def _click(clients: Clients, step: ClickStep, begin: int, planned: int) -> _Work:
    """Make the clicks that are planned, one after the other."""
    load, work, counter = step.load, _Work(begin), WAYS[step.way]
    # In memory an idempotency key would send each click to the queue.
    has_keys = step.way != "in-memory"
    for number in range(begin, planned):
        started = time.perf_counter()
        once = f"{load.id}.{step.writer}.{number}" if has_keys else None
        try:
            counted = counter.increment(clients, KEY, idempotency_key=once)
        except OutcomeUnknownError as error:
            work.error = error  # The task is retried, and makes the same click.
            break
        took_ms = (time.perf_counter() - started) * 1000
        second = int(min(load.age_s(clients), load.seconds + GIVEN_UP_AFTER_S))
        work.count(second, took_ms, counted.conflicts, is_duplicate=counted.is_duplicate)
    return work


def _plan(step: ClickStep, planned: int) -> None:
    """Record a step's clicks before it makes them, so that they survive its death.

    A retry after the load's end then accepts every click that was counted.
    """
    key = writer_key(step.load.id, step.way, step.writer)
    row = key.get() or ClickWriter(key=key)
    row.planned = max(row.planned, planned)
    row.put()


def _record(step: ClickStep, work: _Work, writes: int, ended_ms: int | None) -> None:
    """Record a writer's position, in a transaction; recording it again changes nothing."""
    has_ended = ended_ms is not None
    key = writer_key(step.load.id, step.way, step.writer)
    row = key.get() or ClickWriter(key=key)
    fresh = work.accepted - row.accepted
    if fresh < 0 or (fresh == 0 and row.has_ended == has_ended):
        return
    if row.is_closed:
        loads = loads_key().get()
        loads.earlier = {**loads.earlier, step.way: loads.earlier.get(step.way, 0) + fresh}
        loads.put()
    row.accepted = work.accepted
    row.has_ended = row.has_ended or has_ended
    row.ended_ms = row.ended_ms or ended_ms
    row.repeats += work.repeats
    row.writes += writes
    row.latencies = together(row.latencies or {}, work.latencies)
    row.seconds = _together(row.seconds or {}, work.seconds)
    row.put()


def _next(clients: Clients, step: ClickStep, *, is_slow: bool) -> None:
    """Create the task of a writer's next step; the writers' steps are staggered.

    A slow writer takes smaller steps, so that it has less to finish when the load ends.
    """
    load, number = step.load, step.number + 1
    size = max(1, step.size // 2) if is_slow else min(MAX_STEP, 2 * step.size)
    click.enqueue(
        clients,
        ClickStep(load, step.way, step.writer, number, size),
        name=(load.id, step.way, step.writer, number),
        at=load.step_at(clients, STEP_S * (number + step.writer / load.writers)),
    )


def _together(*many: Mapping[Any, Sequence[int]]) -> dict[str, list[int]]:
    """Add up clicks and conflicts by second; the keys are strings, as in JSON."""
    total: dict[str, list[int]] = {}
    for by_second in many:
        for second, (clicks, conflicts) in by_second.items():
            sums = total.setdefault(str(second), [0, 0])
            sums[0], sums[1] = sums[0] + clicks, sums[1] + conflicts
    return total


# Status


@dataclass(frozen=True)
class WayStatus:
    """Results of one way.

    Attributes:
        under_way: Clicks of steps that have begun and have not recorded them: each may count.
        open_writers: Writers that have not ended.
    """

    accepted: int
    under_way: int
    repeats: int
    writes: int
    conflicts: int
    p50_ms: float | None
    p95_ms: float | None
    seconds: Mapping[int, Sequence[int]]
    open_writers: int
    ended_ms: int  # Since 1970; 0: none of its writers has ended.

    @property
    def has_ended(self) -> bool:
        return self.open_writers == 0


@dataclass(frozen=True)
class LoadStatus:
    """Results of the last load, and the totals of earlier ones.

    `left_over`: clicks under way of the load before, whose writers had not ended.
    """

    load: ClickLoad | None
    ways: Mapping[str, WayStatus]
    before: Mapping[str, int]
    is_given_up: bool
    left_over: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_moving(self) -> bool:
        is_over = all(way.has_ended for way in self.ways.values())
        return self.load is not None and not is_over and not self.is_given_up

    @property
    def open_writers(self) -> int:
        """Writers that have not ended, of all ways."""
        return sum(way.open_writers for way in self.ways.values())

    def under_way(self, way: str) -> int:
        """Return the clicks of a way that may count and are not recorded as accepted."""
        status = self.ways.get(way)
        return self.left_over.get(way, 0) + (status.under_way if status else 0)

    def rate(self, way: str) -> float:
        """Return the clicks a second of a way, until its last one."""
        status = self.ways[way]
        if self.load is None:
            return 0.0
        lasted_s = (status.ended_ms - self.load.started_ms) / 1000
        return status.accepted / max(float(self.load.seconds), lasted_s)

    def accepted(self, way: str) -> int:
        """Return the clicks of a way accepted by all loads, without forms."""
        status = self.ways.get(way)
        return self.before.get(way, 0) + (status.accepted if status else 0)


def status(clients: Clients) -> LoadStatus:
    """Return the results of the last load."""
    loads = loads_key().get()
    load = load_of(loads)
    rows = writers_of(load) if load else []
    ways = {
        way: _way_status([row for row in rows if way_of(row) == way])
        for way in (load.ways if load else ())
    }
    is_given_up = load is not None and load.is_given_up(clients)
    earlier = (loads.earlier or {}) if loads else {}
    return LoadStatus(load, ways, earlier, is_given_up, _left_over(loads))


def _left_over(loads: ClickLoads | None) -> dict[str, int]:
    """Return the clicks under way of the load before the last one, by way, if it was given up."""
    if loads is None or not loads.past or not loads.past_is_open:
        return {}
    left: Counter[str] = Counter()
    for row in writers_of(ClickLoad(**loads.past)):
        left[way_of(row)] += _under_way(row)
    return left


def _under_way(row: ClickWriter) -> int:
    return 0 if row.has_ended else max(0, row.planned - row.accepted)


def _way_status(rows: Sequence[ClickWriter]) -> WayStatus:
    latencies = together(*(row.latencies or {} for row in rows))
    by_second = _together(*(row.seconds or {} for row in rows))
    seconds = {int(second): totals for second, totals in by_second.items()}
    return WayStatus(
        sum(row.accepted for row in rows),
        sum(_under_way(row) for row in rows),
        sum(row.repeats for row in rows),
        sum(row.writes for row in rows),
        sum(conflicts for _, conflicts in seconds.values()),
        percentile(latencies, 0.50),
        percentile(latencies, 0.95),
        seconds,
        sum(not row.has_ended for row in rows),
        max((row.ended_ms or 0 for row in rows), default=0),
    )
