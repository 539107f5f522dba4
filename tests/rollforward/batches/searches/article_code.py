"""The article's batches, line by line: what they send twice is what ours must not.

Source: D. Hermes, "Last to cross the finish line: part three", 2012. Its transactional tasks are
created with the commit, in one step, as they were there.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from google.cloud import ndb

from rollforward.runtime.messages import Message
from tests.infra.memory_datastore import Memory
from tests.infra.model_checking.stepwise import ROWS, Call, Run, rows
from tests.rollforward.batches.searches.stepwise_batches import of_kind

MEMBERS = 2


class TaskBatcher(ndb.Model):
    all_tasks_loaded = ndb.BooleanProperty(default=False)


class BatchTask(ndb.Model):
    completed = ndb.BooleanProperty(default=False)


class Sent(ndb.Model):
    """How often the browser was told that all is complete."""

    count = ndb.IntegerProperty(default=0)


def populate(clients: Any) -> None:
    """_PopulateBatch: the batcher, its tasks, each with the task that runs it, then Ready."""
    rows("put", lambda memory: memory.put(TaskBatcher(id="b")))
    for number in range(MEMBERS):

        def body(number: int = number) -> str:
            BatchTask(id=f"b{number}").put()
            return "always-complete"

        _transact(clients, body, [str(number)])
    _transact(clients, _ready, [])


def deliver(clients: Any, message: Message) -> None:
    """Run a deferred method."""
    method, *arguments = json.loads(message.body)
    if method == "always-complete":  # The method itself changes nothing here.
        clients.tasks.create_many([_task("complete", *arguments)])
    elif method == "complete":
        _transact(clients, lambda: _complete(arguments[0]), arguments)
    else:
        check_complete(clients)


def _ready() -> str:
    batcher = ndb.Key(TaskBatcher, "b").get() or TaskBatcher(id="b")
    batcher.all_tasks_loaded = True
    batcher.put()
    return "check"


def _complete(number: str) -> str:
    BatchTask(id=f"b{number}", completed=True).put()
    return "check"


def check_complete(clients: Any) -> None:
    """CheckComplete: tell the browser, and clean up, if no task is incomplete."""
    batcher = ndb.Key(TaskBatcher, "b").get()
    if batcher is None or not batcher.all_tasks_loaded:
        return
    if rows("query", lambda memory: [t for t in of_kind(memory, BatchTask) if not t.completed]):
        return
    rows("send", _send)
    keys = rows("query", lambda memory: [task.key for task in of_kind(memory, BatchTask)])
    rows("delete", lambda memory: [memory.delete(key) for key in keys])
    ndb.Key(TaskBatcher, "b").delete()


def _send(memory: Memory) -> None:
    sent = memory.get(ndb.Key(Sent, "b")) or Sent(id="b")
    sent.count += 1
    memory.put(sent)


def _transact(clients: Any, body: Callable[[], str], arguments: list[str]) -> None:
    outcome = Run.current.ask(Call(ROWS, "transaction"), body)
    clients.tasks.create_many([_task(outcome, *arguments)])


def _task(*parts: str) -> Message:
    body = json.dumps(parts)
    return Message("/deferred", "default", body.encode(), body)
