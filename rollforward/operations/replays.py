"""A dead task replayed or deleted: once, in one commit."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from rollforward.datastore.transactions import current_transaction, transact
from rollforward.fork_join.parked import discard_in_transaction
from rollforward.outbox.enqueue import enqueue_message
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import naive_utc
from rollforward.runtime.messages import Message
from rollforward.runtime.texts import has_unpaired_surrogate
from rollforward.tasks.dead_task_entities import DeadTask
from rollforward.tasks.dead_tasks import (
    MAX_NAME_BYTES,
    lane_of,
    put_back,
    queue_of_replay,
    replay_name,
)
from rollforward.tasks.declaration import deadline_of
from rollforward.tasks.stored import arguments, cancellation
from rollforward.tracing import trace_headers


class UnknownDeadTaskError(LookupError):
    """There is no dead task of this id."""


class DeadTaskRefusedError(Exception):
    """A dead task that cannot be replayed; the text says why."""


def get_dead_task(dead_id: str) -> DeadTask:
    """Return a dead task.

    Raises:
        UnknownDeadTaskError: there is none.
    """
    dead: DeadTask | None = None
    if not has_unpaired_surrogate(dead_id) and 0 < len(dead_id.encode()) <= MAX_NAME_BYTES:
        dead = DeadTask.get_by_id(dead_id)
    if dead is None:
        raise UnknownDeadTaskError(dead_id)
    return dead


def replay_dead_task(
    clients: Clients,
    dead_id: str,
    *,
    known_paths: Collection[str] | None = None,
    args: bytes | None = None,
) -> None:
    """Enqueue the task of a dead task again; one that was replayed stays as it is.

    Args:
        known_paths: Paths of the tasks that the app delivers; None: as the clients know them.
        args: Other arguments as JSON, which the dead task keeps; None: those that it has.

    Raises:
        UnknownDeadTaskError: there is none.
        DeadTaskRefusedError: no task is declared for its path, its arguments are in rows, or it
            was replayed with other ones.
    """
    paths = clients.task_paths if known_paths is None else known_paths

    def replay() -> None:
        dead = get_dead_task(dead_id)
        body = dead.body if args is None else _with_arguments(dead, args)
        if dead.resolved and dead.body != body:
            raise DeadTaskRefusedError("it was replayed already, with other arguments")
        if not dead.resolved:
            dead.body = body
            replay_in_transaction(clients, dead, paths)

    transact(replay)


def replay_in_transaction(
    clients: Clients, dead: DeadTask, known_paths: Collection[str] | None = None
) -> None:
    """Enqueue the task of an open dead task, and take it from the lists.

    Raises:
        DeadTaskRefusedError: no task is declared for its path.
    """
    if known_paths is not None and dead.path not in known_paths:
        raise DeadTaskRefusedError(f"no task is declared for {dead.path}")
    if dead.lane_task:
        lane = lane_of(dead, clients.task_paths)
        if lane is None:
            raise DeadTaskRefusedError(f"no lane is declared for {dead.lane_id}")
        put_back(clients, dead, lane)  # It has the arguments now, and they do not expire.
        _resolve(clients, dead)
        return
    tasks = clients.task_paths if known_paths is None else known_paths
    message = Message(
        *(dead.path, queue_of_replay(dead, tasks)),
        *(dead.body.encode(), replay_name(dead)),
        headers=trace_headers(),
        deadline_s=deadline_of(clients, dead.path),
    )
    enqueue_message(clients, message)
    arguments.release(clients, dead.body.encode())
    _resolve(clients, dead)


def _with_arguments(dead: DeadTask, args: bytes) -> str:
    """Return the body of a dead task with other arguments."""
    envelope = arguments.envelope_of(dead.body.encode())
    if envelope.stored:
        raise DeadTaskRefusedError("its arguments are in rows of their own: replay it as it is")
    return replace(envelope, args=args).body.decode()


def _resolve(clients: Clients, dead: DeadTask) -> None:
    dead.replays += 1
    dead.resolve(naive_utc(clients.clock.now()))
    dead.put()


def delete_dead_task(clients: Clients, dead_id: str) -> None:
    """Delete a dead task: what it was to do is not done.

    Raises:
        UnknownDeadTaskError: there is none.
        DeadTaskRefusedError: it was replayed, so its task runs.
    """

    was_there = False

    def delete() -> None:
        nonlocal was_there
        try:
            dead = get_dead_task(dead_id)
        except UnknownDeadTaskError:
            # An attempt before this one may have taken effect, and its reply was lost.
            if was_there and current_transaction().doubt is not None:
                return
            raise
        if dead.resolved:
            raise DeadTaskRefusedError("it was replayed already")
        was_there = True
        delete_in_transaction(clients, dead)

    transact(delete)


def delete_in_transaction(clients: Clients, dead: DeadTask) -> None:
    """Delete an open dead task with its parked item, and let its arguments expire.

    A key that it blocks goes on.
    """
    lane = lane_of(dead, clients.task_paths) if dead.lane_task else None
    if lane is not None:
        lane.unblock_in_transaction(clients, dead_id=dead.key.id())
    body = dead.body.encode()
    arguments.release(clients, body)
    cancellation.abandon(clients, arguments.envelope_of(body).handle)
    discard_in_transaction(clients, dead)
    dead.key.delete()
