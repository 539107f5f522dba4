"""Loads: writers that add to a sum at a chosen rate.

1. `start` commits the load, with the task that begins it. A sum is under one load at a time.
2. `begin` creates a task for each writer.
3. A writer works in steps, a task each: a step inserts its items that are due, one after the other,
   records how far the writer is, and creates the task of the next step, by name.

Each item has an idempotency key, "<load>.<writer>.<number>", so a step that is killed, retried or
delivered twice inserts the same items, and they count once. A writer records
the items whose inserts returned as accepted.

Lost on failure: the latencies of a step that died; no item.
Routes: POST /tasks/sums/begin, /tasks/sums/write.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

import pydantic
from google.cloud import ndb

from models.sums import LoadWriter, SumLoads, loads_key, writer_key
from pipelines.loads import (
    LoadGoesOnError,
    StepWork,
    TimedLoad,
    bucket,
    percentile,
    together,
)
from pipelines.sums.sums import Add, Count, add_up
from rollforward import outbox
from rollforward.datastore import transact
from rollforward.fork_join import OutcomeUnknownError
from rollforward.runtime import Clients
from rollforward.tasks import Unavailable, task

MAX_RATE = 500
MAX_WRITERS = 50
MAX_SECONDS = 20
MAX_RANDOM_AMOUNT = 9
# Few writers take short steps, many take long ones: at most about 25 tasks a second.
MIN_STEP_S = 0.25
STEPS_PER_S = 25
# Limits of a step of a writer that is behind, so that no task is long.
MAX_WORK_S = 5.0
MAX_ITEMS_A_STEP = 250
MAX_STEPS_KEPT = 100
# Shorter than the lifetime of an item's idempotency key.
LAST_STEP_S = 23 * 3600.0
# A form starts its load once, within this time and this number of loads of its sum.
ROWS_FOR_S = 48 * 3600.0
MAX_PAST = 200
MAX_DELETED = 3


@dataclass(frozen=True)
class Load(TimedLoad):
    """Parameters of a load: rate in items a second, writers, duration, start."""

    id: Annotated[str, pydantic.Field(pattern="^[0-9a-f]{32}$")]
    sum: Annotated[str, pydantic.Field(max_length=40)]
    rate: Annotated[int, pydantic.Field(ge=1, le=MAX_RATE)]
    writers: Annotated[int, pydantic.Field(ge=1, le=MAX_WRITERS)]
    seconds: Annotated[int, pydantic.Field(ge=1, le=MAX_SECONDS)]
    started_ms: int
    is_random: bool = False  # Amounts from 1 to 9, derived from the id; else each is 1.

    @property
    def items(self) -> int:
        return self.rate * self.seconds

    @property
    def step_s(self) -> float:
        return max(MIN_STEP_S, self.writers / STEPS_PER_S)

    def items_of(self, writer: int) -> int:
        """Return the number of a writer's items: item i belongs to writer i modulo writers."""
        return len(range(writer, self.items, self.writers))

    def due_ms(self, writer: int, number: int) -> float:
        """Return the due time of a writer's item, in milliseconds since the load began."""
        return (number * self.writers + writer) * 1000 / self.rate

    def amounts(self, writer: int, count: int) -> list[int]:
        """Return the amounts of a writer's first items, the same each time.

        >>> load = Load("0" * 32, "s", 500, 1, 20, 0, is_random=True)
        >>> load.amounts(0, 5)[:3] == load.amounts(0, 3)
        True
        """
        if not self.is_random:
            return [1] * count
        dice = random.Random(f"{self.id}.{writer}")
        return [dice.randint(1, MAX_RANDOM_AMOUNT) for _ in range(count)]

    @property
    def expected(self) -> Count:
        """Items of the whole load, and their total amount."""
        amounts = [sum(self.amounts(w, self.items_of(w))) for w in range(self.writers)]
        return Count(self.items, sum(amounts))


@dataclass(frozen=True)
class WriterStep:
    """One task of a writer."""

    load: Load
    writer: Annotated[int, pydantic.Field(ge=0, lt=MAX_WRITERS)]
    number: int = 0


# Start


def start(clients: Clients, load: Load) -> bool:
    """Start a load of a sum; return False if it was started before.

    Raises:
        LoadGoesOnError: another one is running.
    """

    def body() -> bool:
        witness_key = writer_key(load.sum, load.id, 0)
        loads, witness = ndb.get_multi([loads_key(load.sum), witness_key])
        if witness is not None:
            return False
        loads = loads or SumLoads(key=loads_key(load.sum))
        _close(clients, loads)
        _delete_expired(clients, loads)
        loads.load = asdict(load)
        ndb.put_multi([loads, LoadWriter(key=witness_key)])
        outbox.enqueue(clients, begin, load)
        return True

    return transact(body)


def _close(clients: Clients, loads: SumLoads) -> None:
    """Add up the last load of a sum, in the transaction that replaces it."""
    load = load_of(loads)
    if load is None:
        return
    rows = _rows(load)
    is_over = sum(row.accepted for row in rows) >= load.items
    if not is_over and not load.is_given_up(clients):
        raise LoadGoesOnError(f"{load.sum} is under load")
    loads.items_before += sum(row.accepted for row in rows)
    loads.amount_before += sum(row.amount for row in rows)
    if not is_over:
        # A late writer finds its row closed, and adds to the totals itself.
        for row in rows:
            row.is_closed = True
        ndb.put_multi(rows)


def _delete_expired(clients: Clients, loads: SumLoads) -> None:
    """Delete the rows of expired loads, some at a time, in a transaction."""
    load = load_of(loads)
    past = [*(loads.past or []), *([[load.id, load.writers, load.started_ms]] if load else [])]
    before_ms = (clients.clock.now().timestamp() - ROWS_FOR_S) * 1000
    recent = past[-MAX_PAST:]
    expired = past[:-MAX_PAST] + [entry for entry in recent if entry[2] < before_ms]
    loads.past = [entry for entry in past if entry not in expired[:MAX_DELETED]]
    name = loads.key.id()
    ndb.delete_multi(
        writer_key(name, id_, writer)
        for id_, writers, _ in expired[:MAX_DELETED]
        for writer in range(writers)
    )


def load_of(loads: SumLoads | None) -> Load | None:
    """Return the last load of a sum."""
    return Load(**loads.load) if loads is not None and loads.load else None


def _rows(load: Load) -> list[LoadWriter]:
    keys = [writer_key(load.sum, load.id, writer) for writer in range(load.writers)]
    return [row or LoadWriter(key=key) for key, row in zip(keys, ndb.get_multi(keys), strict=True)]


@task("/tasks/sums/begin", queue="fan-out")
def begin(clients: Clients, load: Load) -> None:
    """Create a task for each writer."""
    steps = [WriterStep(load, writer) for writer in range(load.writers)]
    names = [(load.id, step.writer, step.number) for step in steps]
    write.enqueue_many(clients, steps, names=names)


# Write


@task("/tasks/sums/write", queue="fan-out")
def write(clients: Clients, step: WriterStep) -> None:
    """Insert a writer's items that are due; create the task of its next step."""
    load = step.load
    key = writer_key(load.sum, load.id, step.writer)
    row = key.get() or LoadWriter(key=key)
    # After that the receipts may be deleted, and its items would count twice.
    if row.is_closed or load.age_s(clients) > LAST_STEP_S:
        return
    cost_before, came_ms = clients.meter.cost(), load.age_s(clients) * 1000
    work = _insert(clients, step, row.accepted)
    writes = (clients.meter.cost() - cost_before).writes
    stretch = [round(came_ms), round(load.age_s(clients) * 1000), work.accepted - row.accepted]
    transact(lambda: _record(step, work, stretch, writes))
    if work.error is not None:
        raise Unavailable(str(work.error)) from work.error
    if work.accepted < load.items_of(step.writer):
        _next(clients, step)


def _insert(clients: Clients, step: WriterStep, begin: int) -> StepWork:
    """Insert the due items, one after the other, until none is due or the step is long."""
    load, work, began = step.load, StepWork(begin), time.perf_counter()
    amounts = load.amounts(step.writer, load.items_of(step.writer))
    for number in range(begin, len(amounts)):
        started = time.perf_counter()
        is_long = number - begin >= MAX_ITEMS_A_STEP or started - began > MAX_WORK_S
        if is_long or load.due_ms(step.writer, number) > load.age_s(clients) * 1000:
            break
        try:
            accepted = add_up.insert(
                clients,
                load.sum,
                Add(amounts[number]),
                idempotency_key=f"{load.id}.{step.writer}.{number}",
            )
        except OutcomeUnknownError as error:
            work.error = error
            break
        work.accepted = number + 1
        if accepted.is_duplicate:
            work.repeats += 1
        else:
            work.latencies[bucket((time.perf_counter() - started) * 1000)] += 1
    return work


def _record(step: WriterStep, work: StepWork, stretch: Sequence[int], writes: int) -> None:
    """Record a writer's position, in a transaction; recording it again changes nothing."""
    load = step.load
    key = writer_key(load.sum, load.id, step.writer)
    row = key.get() or LoadWriter(key=key)
    fresh = work.accepted - row.accepted
    if fresh <= 0:
        return
    amount = sum(load.amounts(step.writer, work.accepted))
    if row.is_closed:
        loads = loads_key(load.sum).get()
        loads.items_before += fresh
        loads.amount_before += amount - row.amount
        loads.put()
    row.accepted, row.amount = work.accepted, amount
    row.repeats += work.repeats
    row.writes += writes
    row.latencies = together(row.latencies or {}, work.latencies)
    row.steps = [*(row.steps or []), list(stretch)][-MAX_STEPS_KEPT:]
    row.put()


def _next(clients: Clients, step: WriterStep) -> None:
    """Create the task of a writer's next step; the writers' steps are staggered."""
    load, number = step.load, step.number + 1
    write.enqueue(
        clients,
        WriterStep(load, step.writer, number),
        name=(load.id, step.writer, number),
        at=load.step_at(clients, load.step_s * (number + step.writer / load.writers)),
    )


# Status


@dataclass(frozen=True)
class LoadStatus:
    """Results of the last load of a sum, and the accepted items of earlier loads."""

    load: Load | None
    accepted: Count
    before: Count
    writers: Sequence[LoadWriter]
    repeats: int
    writes: int
    p50_ms: float | None
    p95_ms: float | None
    is_over: bool
    is_given_up: bool

    @property
    def is_moving(self) -> bool:
        return self.load is not None and not self.is_over and not self.is_given_up


def status(clients: Clients, name: str) -> LoadStatus:
    """Return the results of the last load of a sum."""
    loads = loads_key(name).get()
    load = load_of(loads)
    rows = _rows(load) if load else []
    accepted = Count(sum(row.accepted for row in rows), sum(row.amount for row in rows))
    latencies = together(*(row.latencies or {} for row in rows))
    is_over = load is not None and accepted.items >= load.items
    return LoadStatus(
        load,
        accepted,
        Count(loads.items_before, loads.amount_before) if loads else Count(),
        rows,
        sum(row.repeats for row in rows),
        sum(row.writes for row in rows),
        percentile(latencies, 0.50),
        percentile(latencies, 0.95),
        is_over,
        load is not None and not is_over and load.is_given_up(clients),
    )
