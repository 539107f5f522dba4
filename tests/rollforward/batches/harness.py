"""Batches for tests: members that do as their label says, and callbacks that are written down."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from google.cloud import ndb

from rollforward.batches import Completed, Policy, TaskBatch, current_member
from rollforward.batches.adding.populate import addition_name
from rollforward.batches.entities import (
    BatchPage,
    BatchResults,
    BatchState,
    BatchWork,
    page_id,
    page_key,
    results_key,
    state_key,
    work_key,
)
from rollforward.fork_join.entities import WorkPack
from rollforward.outbox.entities import OutboxTask
from rollforward.runtime import Clients
from rollforward.runtime.messages import Message, TaskQueue
from rollforward.tasks import Reject, Task, task
from tests.infra.neighbour_rows import elsewhere, untouched
from tests.infra.world import Services, World


@dataclass(frozen=True)
class Note:
    """A member: what becomes of it says its label."""

    label: str


@dataclass(frozen=True)
class Branch:
    """A member that becomes a batch of so many members, down to so many levels below."""

    label: str
    width: int
    levels: int = 0
    is_rejected: bool = False  # It rejects itself when it has become a batch.
    bad: int = 0  # How many of the leaves fail, the first time.


class Mended(ndb.Model):
    """What is here fails no more."""


class Told(ndb.Model):
    """What a callback was told, by its idempotency key."""

    said = ndb.JsonProperty()


RAN: Counter[str] = Counter()
CALLED: Counter[str] = Counter()  # By idempotency key.


@task("/tasks/note", queue="fan-out", max_attempts=2)
def note(clients: Clients, args: Note) -> Any:
    """Return what the label asks for; labels that begin with "bad" fail until they are mended."""
    RAN[f"{current_member().batch_id}/{args.label}"] += 1
    is_mended = Mended.get_by_id("all") is not None
    if args.label.startswith("bad") and not is_mended:
        raise Reject(f"{args.label} is rejected")
    if args.label.startswith("slow-bad") and not is_mended:
        raise ValueError(f"{args.label} fails")
    if args.label.startswith("adds"):
        current_member().add([(note, Note(f"added by {args.label}"))])
    if args.label.startswith("emoji"):
        raise Reject("\U0001f600" * 500)
    if args.label.startswith("half"):  # As JavaScript cuts an emoji in two.
        half = "a guest called \ud83d"
        if args.label == "half a result":
            return half
        raise Reject(half)
    return {"label": args.label} if args.label.startswith("says") else None


@task("/tasks/branch", queue="fan-out")
def branch(clients: Clients, args: Branch) -> None:
    RAN[f"{current_member().batch_id}/{args.label}"] += 1
    if args.levels:
        work: list[tuple[Task[Any], Any]] = [
            (branch, replace(args, label=f"{args.label}.{i}", levels=args.levels - 1))
            for i in range(args.width)
        ]
    else:
        work = [
            (note, Note(f"{'bad' if i < args.bad else 'leaf'}{args.label}.{i}"))
            for i in range(args.width)
        ]
    current_member().nest(TREES, work)
    if args.is_rejected:
        raise Reject(f"{args.label} is rejected")


@task("/tasks/tell", queue="default")
def tell(clients: Clients, args: Completed) -> None:
    """Write down a completion, under its idempotency key, unless it fails."""
    CALLED[args.idempotency_key] += 1
    if "fails" in args.batch_id and Mended.get_by_id("all") is None:
        raise Reject(f"the callback of {args.batch_id} is rejected")
    completion = {
        name: getattr(args, name) for name in ("outcome", "members", "done", "failed", "cancelled")
    }
    Told(id=args.idempotency_key, said=completion).put()


NOTES = TaskBatch("notes", members=[note, branch], on_complete=tell)
TREES = TaskBatch("trees", members=[note, branch], on_complete=tell)
BEST = TaskBatch("best", members=[note], on_complete=tell, policy=Policy.best_effort())
FAST = TaskBatch("fast", members=[note, branch], on_complete=tell, policy=Policy.fail_fast())
TWO = TaskBatch("two", members=[note], on_complete=tell, policy=Policy.done_at(2))
ALL = (NOTES, TREES, BEST, FAST, TWO)


@dataclass
class Recorder:
    """A task queue that remembers the names of the callbacks it was asked for."""

    queue: TaskQueue
    names: dict[str, set[str]] = field(default_factory=dict)

    def create(self, message: Message) -> bool:
        self._note(message)
        return self.queue.create(message)

    def create_all(self, messages: Sequence[Message]) -> list[bool | Exception]:
        for message in messages:
            self._note(message)
        return self.queue.create_all(messages)

    def _note(self, message: Message) -> None:
        if message.path.endswith("/completed"):
            names = self.names.setdefault(tell.read(message.body).idempotency_key, set())
            names.add(message.name or f"unnamed {len(names)}")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.queue, name)


# Beside the batch "b" of the notes: their keys begin like its key, or are the same elsewhere.
NEIGHBOURS = ("notes:b-2", "notes:b1", "note:b")


@contextmanager
def neighbours(world: World) -> Iterator[None]:
    """Put batches beside those of a test, with the same pages; in the end they are as they were."""
    with world.context():
        rows = [row for batch in NEIGHBOURS for row in _beside(batch)]
        for row in _beside("notes:b"):
            row.key = elsewhere(row.key)
            rows.append(row)
    with untouched(world, rows):
        yield


def _beside(batch: str) -> list[Any]:
    """Return the rows of a batch of which nothing is due.

    One of its members waits, one is done, and one has failed.
    """
    late = datetime.datetime(2100, 1, 1)  # noqa: DTZ001  Datastore's are naive.
    page = page_id(batch, addition_name(""), 0, "")
    return [
        BatchState(
            key=state_key(batch),
            sealed=True,
            members=3,
            done=1,
            failed=1,
            policy=Policy.all().kind,
            keep_s=3600.0,
            created=late,
            due=late,
        ),
        BatchWork(
            key=work_key(page),
            tasks=[["/tasks/batches/notes/note", "fan-out"]],
            members=[[0, '{"label": "beside"}']] * 3,
            first=0,
            size=3,
            digest="beside",
        ),
        BatchPage(key=page_key(page), letters=".df", results=1),
        BatchResults(key=results_key(page, 0), results=[[2, 1, False, "fails beside"]]),
    ]


def rows_here(kind: type[ndb.Model]) -> list[Any]:
    """Return the rows of a kind, neighbours left out."""
    prefixes = tuple(f"{batch}:" for batch in NEIGHBOURS)
    return [row for row in kind.query() if not f"{row.key.id()}:".startswith(prefixes)]


def batch_world(services: Services) -> World:
    """A world with the batches above; its task queue remembers callbacks."""
    world = World(services, batches=ALL)
    object.__setattr__(world.clients, "tasks", Recorder(world.clients.tasks))
    RAN.clear()
    CALLED.clear()
    return world


def notes(*labels: str) -> list[tuple[Task[Any], Any]]:
    return [(note, Note(label)) for label in labels]


def mend() -> None:
    """Let what failed go through from now on."""
    Mended(id="all").put()


def told(batches: TaskBatch, batch_id: str) -> list[dict[str, Any]]:
    """Return what the callbacks of a batch were told, by generation."""
    rows = [Told.get_by_id(f"{batches.name}:{batch_id}:{generation}") for generation in (1, 2, 3)]
    return [row.said for row in rows if row is not None]


def callbacks(world: World) -> dict[str, int]:
    """Return by how many different tasks each completion was told: 1, if all is well."""
    recorder: Any = world.clients.tasks
    return {key: len(names) for key, names in recorder.names.items()}


def is_acknowledged(batches: TaskBatch, batch_id: str) -> bool:
    """Return whether no callback of a batch is to be enqueued again."""
    state = state_key(batches.declaration.key(batch_id)).get()
    return state.due is None and not state.unacked


def outcomes(batches: TaskBatch, batch_id: str) -> list[str]:
    """Return what became of the members, in order."""
    return [member.outcome for member in batches.results(batch_id)]


def is_quiet() -> bool:
    """Return whether nothing waits to be folded or relayed."""
    return WorkPack.query().get() is None and OutboxTask.query().get() is None


def rows_of(batch: str) -> Counter[str]:
    """Return how many rows there are of a batch, by kind."""
    counts: Counter[str] = Counter()
    for kind in (BatchState, BatchWork, BatchPage, BatchResults):
        names = [row.key.id() for row in rows_here(kind)]
        counts[kind._get_kind()] = sum(name.startswith(batch) for name in names)
    return counts


def deliver_next(world: World, queue: str) -> int | None:
    """Deliver the task of a queue that is due first."""
    due = world.engine.due(world.engine.place.queue_name(queue))
    return world.deliver(due[0].task_name)


def deliver_all(world: World, queue: str) -> None:
    """Deliver what is due in one queue, and what that makes due there."""
    while world.engine.due(world.engine.place.queue_name(queue)):
        deliver_next(world, queue)
