"""Tasks that an operator enqueues by hand, and dead tasks replayed with other arguments."""

from __future__ import annotations

from typing import Any

from rollforward.console.api.changes import NO_DEAD_TASK, ChangeRefusedError, recorded_change
from rollforward.flask.context import clients, registry
from rollforward.operations import DeadTaskRefusedError, UnknownDeadTaskError, replay_dead_task
from rollforward.runtime.idempotency import digest_of
from rollforward.tasks import Task

NO_TASK = "The app declares no task of this path itself."


def declared_tasks() -> dict[str, Task[Any]]:
    """Return the tasks that the app declares itself, by path; patterns have others."""
    return {task.path: task for task in registry().parts("tasks")}


def declared_task(path: str) -> Task[Any]:
    """Return a task that the app declares itself.

    Raises:
        ChangeRefusedError: there is none of this path.
    """
    task = declared_tasks().get(path)
    if task is None:
        raise ChangeRefusedError(404, NO_TASK)
    return task


def enqueue_task(task: Task[Any], body: bytes, delay_s: float, key: str) -> None:
    """Enqueue a task with checked arguments; the same form enqueues them once.

    A browser that goes back shows the form with the same key. Other arguments or another delay are
    another intent.

    Args:
        key: Of the form.

    Raises:
        ChangeRefusedError: nothing was enqueued.
    """
    text = body.decode()
    with recorded_change("enqueue task", f"{task.path}: {text}"):
        name = "console", key, digest_of(f"{delay_s} {text}")
        task.enqueue(clients(), task.read(body), name=name, delay_s=delay_s)


def replay_edited(dead_id: str, body: bytes) -> None:
    """Replay a dead task with other arguments, which it keeps from then on.

    Raises:
        ChangeRefusedError: nothing was changed.
    """
    with recorded_change("edit and replay dead task", f"{dead_id}: {body.decode()}"):
        try:
            replay_dead_task(clients(), dead_id, known_paths=registry().tasks, args=body)
        except UnknownDeadTaskError:
            raise ChangeRefusedError(404, NO_DEAD_TASK) from None
        except DeadTaskRefusedError as error:
            raise ChangeRefusedError(409, f"It cannot be replayed: {error}.") from None
