"""Dead tasks (dead letters): what was given up, why, and a second chance.

A task has one dead task, by its queue and name: dead-lettered again, it is counted in the same row.
Cloud Tasks frees a name one day. A later task of that name, with another body, takes no open dead
task's place.

A replay is a task itself, so any caller that may create tasks may ask for it: it enqueues the dead
task's body again under a new name.

Route: POST /tasks/dead/replay {"dead_task_id": "..."}.
"""

from __future__ import annotations

import datetime
import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from google.cloud import ndb

from rollforward.datastore.transactions import Transaction, current_transaction, transact
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import naive_utc
from rollforward.runtime.messages import DeadTaskLane, Message
from rollforward.runtime.texts import both_ends, storable
from rollforward.tasks.dead_task_entities import DeadTask, error_class, open_dead_tasks
from rollforward.tasks.declaration import Task, hashed_name, queue_of
from rollforward.tasks.errors import Reject, UnknownQueueError
from rollforward.tasks.stored import arguments, cancellation
from rollforward.tasks.stored.names import MAX_BODY_BYTES, MAX_TASK_BYTES
from rollforward.tracing import current_traceparent, trace_headers

log = logging.getLogger(__name__)

MAX_REASON_CHARS = 8_000
MAX_ERROR_CHARS = 100
MAX_LISTED = 1_000
MAX_NAME_BYTES = 1_500  # Of a key in Datastore.


def dead_letter(
    clients: Clients,
    *,
    path: str,
    queue: str,
    task_name: str,
    body: bytes,
    reason: str,
    error: str = "",
    deliveries: int = 0,
) -> str:
    """Keep a task that can never work as a dead task; return its id.

    Args:
        error: The class of its last error; "": the reason begins with it.
    """
    if not _is_replayable(body):  # Its beginning is enough to look at.
        body = body[:MAX_BODY_BYTES]
    call_id = clients.new_id()
    digest = hashlib.sha256(body).hexdigest()
    now_utc, traceparent = naive_utc(clients.clock.now()), current_traceparent()

    def keep() -> str:
        dead = _row_of(queue, task_name, call_id, digest)
        dead_id: str = dead.key.id()
        if dead.counted_by == call_id:
            return dead_id  # Counted before; the commit's reply was lost.
        dead.created = dead.created or now_utc
        dead.counted_by, dead.digest = call_id, digest
        dead.count += 1
        dead.updated, dead.deliveries = now_utc, deliveries
        dead.traceparent = traceparent or None
        kept = arguments.hold(body, dead_id, MAX_BODY_BYTES)
        _fill(dead, path, queue, task_name, kept, reason, error)
        dead.put()
        cancellation.note_death(arguments.envelope_of(body).handle, dead_id)
        return dead_id

    dead_id = transact(keep)
    _log_death(path, reason, dead_id, error)
    return dead_id


def _row_of(queue: str, task_name: str, call_id: str, digest: str) -> DeadTask:
    """Return the dead task of a task, in a transaction: by its queue and name; it may be new.

    A later task of the name is another one, by its body. As long as the dead task of the first one
    is open, it has a dead task of its own.
    """
    first_id = hashed_name(queue, task_name) if task_name else call_id
    own_id = hashed_name(queue, first_id, digest)
    first, own = ndb.get_multi([ndb.Key(DeadTask, first_id), ndb.Key(DeadTask, own_id)])
    if own is None and first is not None and first.is_of_another(digest):
        return DeadTask(id=own_id)
    return own or first or DeadTask(id=first_id)


def dead_letter_in_transaction(
    clients: Clients,
    *,
    dead_id: str,
    path: str,
    queue: str,
    body: bytes,
    reason: str,
    deliveries: int = 0,
    lane_task: str = "",
) -> None:
    """Keep what can never work as a dead task, in the commit that takes it from its place.

    Args:
        dead_id: Chosen before the transaction, and dead-lettered once.
        deliveries: How often its work was tried; 0: unknown.
        lane_task: Its id in a lane, into which a replay goes back; "": it waited in none.
    """
    now_utc = naive_utc(clients.clock.now())
    dead = DeadTask(id=dead_id, created=now_utc, updated=now_utc, count=1, counted_by=dead_id)
    dead.lane_task, dead.deliveries = lane_task or None, deliveries
    dead.traceparent = current_traceparent() or None
    _fill(dead, path, queue, dead_id, body, reason, "")
    dead.put()
    transaction = current_transaction()
    transaction.hook("dead tasks", lambda: _Deaths(transaction)).by_id[dead_id] = path, reason


class _Deaths:
    """Dead tasks of a transaction, each an entry of the log when it may be committed.

    One too many does less harm than one too few: alerts look for them.
    """

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self.by_id: dict[str, tuple[str, str]] = {}

    def on_retry(self, cause: Exception) -> None:
        if self._transaction.doubt is None:  # Else an attempt before may be committed.
            self.by_id.clear()

    def on_commit(self) -> None:
        for dead_id, (path, reason) in self.by_id.items():
            _log_death(path, reason, dead_id)

    def on_outcome_unknown(self) -> None:
        if self._transaction.doubt is not None:
            self.on_commit()


def _log_death(path: str, reason: str, dead_id: str, error: str = "") -> None:
    """Log that there is a dead task, with the fields that alerts and searches look for."""
    fields = {"error_class": error or error_class(reason), "dead_task": dead_id}
    log.error("dead-lettered %r: %s", path[:100], reason, extra=fields)


def _fill(
    dead: DeadTask, path: str, queue: str, task_name: str, body: bytes, reason: str, error: str
) -> None:
    dead.path, dead.queue, dead.task_name = path, queue, task_name
    dead.body = body.decode(errors="replace")
    dead.reason = both_ends(reason, MAX_REASON_CHARS)
    dead.error = storable(error or error_class(reason), MAX_ERROR_CHARS)
    dead.list_open()


def _is_replayable(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return len(body) <= MAX_TASK_BYTES


@dataclass(frozen=True)
class ReplayDeadTask:
    """Arguments of a replay: the dead task to run again."""

    dead_task_id: str


def replay(clients: Clients, args: ReplayDeadTask, tasks: Mapping[str, Task[Any]]) -> None:
    """Enqueue a dead task's body again, then mark it as dealt with.

    The name holds the replay's number, so a repeated delivery of this task creates one task.
    """
    if not 0 < len(args.dead_task_id.encode()) <= MAX_NAME_BYTES:
        raise Reject(
            f"dead_task_id must have 1 to {MAX_NAME_BYTES} bytes, got {args.dead_task_id!r:.100}"
        )
    dead = DeadTask.get_by_id(args.dead_task_id)
    if dead is None:
        raise Reject(f"there is no dead task {args.dead_task_id}")
    if dead.resolved:
        return
    if dead.path not in tasks:
        raise Reject(f"no task is declared for {dead.path}")
    if dead.lane_task:
        transact(lambda: _replay_into_lane(clients, args.dead_task_id, tasks))
        return
    deadline_s, queue = tasks[dead.path].deadline_s, queue_of_replay(dead, tasks)
    body, name = dead.body.encode(), replay_name(dead)
    headers = trace_headers()
    clients.tasks.create(
        Message(dead.path, queue, body, name, headers=headers, deadline_s=deadline_s)
    )
    now_utc = naive_utc(clients.clock.now())
    transact(lambda: _resolve(clients, args.dead_task_id, dead.replays, queue, now_utc))


def _replay_into_lane(clients: Clients, dead_id: str, tasks: Mapping[str, Task[Any]]) -> None:
    dead = DeadTask.get_by_id(dead_id)
    if dead is None or dead.resolved:
        return
    lane = lane_of(dead, tasks)
    if lane is None:
        raise Reject(f"no lane is declared for {dead.lane_id}")
    put_back(clients, dead, lane)  # It has the arguments now, and they do not expire.
    dead.replays += 1
    dead.resolve(naive_utc(clients.clock.now()))
    dead.put()


def lane_of(dead: DeadTask, tasks: object) -> DeadTaskLane | None:
    """Return the key of the lane that a dead task waited in; None: the app does not declare it.

    Args:
        tasks: The tasks of the app by path, with the tasks of its lanes.
    """
    path = f"/tasks/lanes/{dead.lane_id.partition('|')[0]}"
    key_of = getattr(tasks.get(path), "key_of", None) if isinstance(tasks, Mapping) else None
    return key_of(dead.lane_id) if key_of is not None else None


def put_back(clients: Clients, dead: DeadTask, lane: DeadTaskLane) -> None:
    """Let the task of a dead task wait in its lane again, in this transaction."""
    message = Message(dead.path, dead.queue, dead.body.encode(), headers=trace_headers())
    lane.replay_in_transaction(
        clients, message, dead_id=dead.key.id(), lane_task=str(dead.lane_task)
    )


def replay_name(dead: DeadTask) -> str:
    """Return the name of the task that replays a dead task: one for each of its replays."""
    return hashed_name("replay", dead.key.id(), dead.replays)


def queue_of_replay(dead: DeadTask, tasks: object) -> str:
    """Return the queue of a dead task, or the one that the app declares now if that is gone.

    Args:
        tasks: The tasks of the app by path.
    """
    is_gone = dead.error == UnknownQueueError.__name__
    return (is_gone and queue_of(tasks, dead.path)) or str(dead.queue)


def _resolve(
    clients: Clients, dead_id: str, replays: int, queue: str, now_utc: datetime.datetime
) -> None:
    dead = DeadTask.get_by_id(dead_id)
    if dead is not None and dead.replays == replays:
        # The replay may be dead by now, and need the arguments itself.
        if DeadTask.get_by_id(hashed_name(queue, replay_name(dead))) is None:
            arguments.release(clients, dead.body.encode())
        dead.replays += 1
        dead.resolve(now_utc)
        dead.put()


def replay_task(tasks: Mapping[str, Task[Any]]) -> Task[ReplayDeadTask]:
    """Return the task that replays, for the tasks that are known."""
    return Task(
        "/tasks/dead/replay",
        "default",
        ReplayDeadTask,
        lambda clients, args: replay(clients, args, tasks),
        max_attempts=5,
    )


def count_open() -> int:
    """Return how many dead tasks are open, counting up to 1,000."""
    return len(open_dead_tasks().fetch(MAX_LISTED, keys_only=True))
