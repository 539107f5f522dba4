"""The measured app: a thousand tasks that do nothing, and one more when all have ended.

ours      a batch whose members end through a fork-join queue
tree      a batch of batches of batches
article   the code of "Last to cross the finish line" (D. Hermes, 2012), line by line: an entity per
          task below one parent, and after each task another one that checks whether any is left.
          Our outbox sends its transactional tasks, as Cloud Tasks has none
bare      tasks without any tracking of their end: the limit of the queue and the app
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flask import Flask, request
from google.cloud import ndb

from benchmarks.harness.testbed import app_for
from rollforward import outbox
from rollforward.batches import Completed, TaskBatch, current_member
from rollforward.datastore.transactions import transact
from rollforward.registry import Registry
from rollforward.runtime import Clients
from rollforward.tasks import Task, task


class BenchDone(ndb.Model):
    """A notice that a batch is complete; its key counts repeated notices."""

    count = ndb.IntegerProperty(indexed=False, default=0)


class TaskBatcher(ndb.Model):
    """The article's batch."""

    all_tasks_loaded = ndb.BooleanProperty(default=False)


class BatchTask(ndb.Model):
    """The article's task, below its batch."""

    completed = ndb.BooleanProperty(default=False)


@dataclass(frozen=True)
class Member:
    """A member of a batch."""

    batch: str
    number: int = 0


@dataclass(frozen=True)
class Branch:
    """A member that becomes a batch itself, with its size and the number of levels below it."""

    width: int
    leaves: int
    levels: int


@task("/tasks/bench/noop", queue="bench")
def noop(clients: Clients, args: Member) -> None:
    """Do nothing."""


@task("/tasks/bench/branch", queue="default")
def branch(clients: Clients, args: Branch) -> None:
    """Become a batch."""
    current_member().nest(TREE, branches(args))


@task("/tasks/bench/done", queue="bench")
def done(clients: Clients, args: Completed) -> None:
    """Record that a batch is complete, once for all deliveries of this task."""
    BenchDone(id=f"{args.name}:{args.batch_id}", count=1).put()


def branches(args: Branch) -> list[tuple[Task[Any], Any]]:
    """Return the members of a level of the tree: further batches, or leaves."""
    if args.levels:
        below = Branch(args.width, args.leaves, args.levels - 1)
        return [(branch, below) for _ in range(args.width)]
    return [(noop, Member("tree", number)) for number in range(args.leaves)]


OURS = TaskBatch("ours", members=[noop], on_complete=done)
TREE = TaskBatch("tree", members=[noop, branch], on_complete=done)


# The article's code


@task("/tasks/article/always-complete", queue="bench")
def always_complete(clients: Clients, args: Member) -> None:
    """Run the method, which does nothing, and enqueue its completion."""
    complete.enqueue(clients, args)


@task("/tasks/article/complete", queue="bench")
def complete(clients: Clients, args: Member) -> None:
    """Mark a task as complete, and enqueue the check whether all are."""

    def body() -> None:
        BatchTask(key=_task_key(args.batch, args.number), completed=True).put()
        outbox.enqueue(clients, check_complete, Member(args.batch))

    transact(body)


@task("/tasks/article/check-complete", queue="bench")
def check_complete(clients: Clients, args: Member) -> None:
    """Notify the browser, and clean up, if no task is incomplete; it may notify twice."""
    batcher = ndb.Key(TaskBatcher, args.batch).get()
    if batcher is None or not batcher.all_tasks_loaded:
        return
    tasks = BatchTask.query(ancestor=batcher.key)
    if tasks.filter(BatchTask.completed == False).get(keys_only=True):  # noqa: E712
        return
    row = BenchDone.get_by_id(f"article:{args.batch}") or BenchDone(id=f"article:{args.batch}")
    row.count += 1
    row.put()
    for keys in iter(lambda: tasks.fetch(400, keys_only=True), []):
        ndb.delete_multi(keys)
    batcher.key.delete()


def populate_as_in_the_article(clients: Clients, batch: str, count: int) -> None:
    """Run the article's _PopulateBatch: store the batcher and enqueue its tasks, then Ready."""
    TaskBatcher(id=batch).put()
    for number in range(count):

        def body(number: int = number) -> None:
            BatchTask(key=_task_key(batch, number)).put()
            outbox.enqueue(clients, always_complete, Member(batch, number))

        transact(body)

    def ready() -> None:
        batcher = ndb.Key(TaskBatcher, batch).get()
        batcher.all_tasks_loaded = True
        batcher.put()
        outbox.enqueue(clients, check_complete, Member(batch))

    transact(ready)


def _task_key(batch: str, number: int) -> Any:
    return ndb.Key(TaskBatcher, batch, BatchTask, number + 1)


# The app


def serve() -> Flask:
    """Return the app."""
    batches = (OURS, TREE)
    registry = Registry(*batches, noop, always_complete, complete, check_complete)
    app, clients = app_for(registry)
    starts: dict[str, Callable[[str, int], object]] = {
        "ours": lambda batch, count: _populate(clients, OURS, batch, count),
        "article": lambda batch, count: populate_as_in_the_article(clients, batch, count),
        "bare": lambda batch, count: noop.enqueue_many(
            clients, [Member(batch, number) for number in range(count)]
        ),
        "tree": lambda batch, count: TREE.populate(
            clients, batch, branches(Branch(10, count // 100, 2)), seal=True
        ),
    }

    @app.get("/bench/<design>/<batch>")
    def bench(design: str, batch: str) -> Any:
        starts[design](batch, int(request.args["count"]))
        return "", 204

    return app


def _populate(clients: Clients, batches: TaskBatch, batch: str, count: int) -> None:
    work = [(noop, Member(batch, number)) for number in range(count)]
    batches.populate(clients, batch, work, seal=True)
