"""Changes that operators ask for, each with its entry in the audit trail; pages and API share them.

A change that is refused ends in `ChangeRefusedError`, with a status and a sentence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict

from flask import current_app

from rollforward.console.access import Caller
from rollforward.flask.context import CONSOLE, clients, registry
from rollforward.operations import (
    DeadTaskFilter,
    DeadTaskRefusedError,
    UnknownDeadTaskError,
    delete_dead_task,
    recorded,
    replay_dead_task,
    start_bulk,
)
from rollforward.operations.bulk import BULK_VERBS, MAX_SELECTED, BulkVerb
from rollforward.tasks import hashed_name
from rollforward.tasks.runs import VERBS, RunRefusedError, RunVerb, UnknownRunError

NO_RUN = "There is no such run."
NO_DEAD_TASK = "There is no such dead task, or no more."
RESULTS: dict[BulkVerb, str] = {"replay": "replayed", "delete": "deleted"}
# Datastore takes no longer names, and patterns put the names of their rows in front.
MAX_ID_BYTES = 1_000


class ChangeRefusedError(Exception):
    """A change that cannot be made: a status, and the reason for people and programs."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


def caller() -> Caller:
    """Return who sends the current request."""
    operator: Caller | None = current_app.extensions[CONSOLE].caller()
    if operator is None:
        raise ChangeRefusedError(404, "")
    return operator


def change_dead_task(dead_id: str, verb: str) -> str:
    """Replay or delete one dead task; return what became of it.

    Raises:
        ChangeRefusedError: nothing was changed.
    """
    chosen = bulk_verb(verb)
    with _recorded(f"{verb} dead task", dead_id):
        try:
            if chosen == "replay":
                replay_dead_task(clients(), dead_id, known_paths=registry().tasks)
            else:
                delete_dead_task(clients(), dead_id)
        except UnknownDeadTaskError:
            raise ChangeRefusedError(404, NO_DEAD_TASK) from None
        except DeadTaskRefusedError as error:
            raise ChangeRefusedError(409, f"It cannot be replayed: {error}.") from None
    return RESULTS[chosen]


def change_dead_tasks(
    verb: str, chosen: DeadTaskFilter | None, ids: Sequence[str], idempotency_key: str | None
) -> str:
    """Start a run that replays or deletes many dead tasks; return the run's id.

    Args:
        idempotency_key: The same key, verb and choice are the same run.

    Raises:
        ChangeRefusedError: nothing was changed.
    """
    known_verb = bulk_verb(verb)
    if len(ids) > MAX_SELECTED or (chosen is None and not ids):
        raise ChangeRefusedError(400, f"Select 1 to {MAX_SELECTED} dead tasks, or a filter.")
    if any(not 0 < len(dead_id.encode(errors="replace")) <= MAX_ID_BYTES for dead_id in ids):
        raise ChangeRefusedError(400, f"An id of a dead task has 1 to {MAX_ID_BYTES} bytes.")
    choice = ", ".join(ids) if ids else _words(chosen)
    key = idempotency_key or clients().new_id()
    run_id = hashed_name("dead-tasks", verb, choice, key)
    with _recorded(f"{verb} dead tasks", f"{choice} (run {run_id})"):
        return start_bulk(clients(), known_verb, chosen, ids=ids, run_id=run_id)


def control_run(pattern: str, run_id: str, verb: str) -> str:
    """Cancel, resume or retry a run; return the id of the run to look at.

    Raises:
        ChangeRefusedError: nothing was changed.
    """
    known_verb: RunVerb | None = next((name for name in VERBS if name == verb), None)
    if known_verb is None or not run_id:
        raise ChangeRefusedError(
            404, f"A run is told what to do by {', '.join(f':{name}' for name in VERBS)}."
        )
    if len(run_id.encode()) > MAX_ID_BYTES:
        raise ChangeRefusedError(404, NO_RUN)
    with _recorded(f"{verb} run", f"{pattern}/{run_id}"):
        try:
            return registry().control_run(clients(), pattern, run_id, known_verb)
        except UnknownRunError:
            raise ChangeRefusedError(404, NO_RUN) from None
        except RunRefusedError as error:
            reason = f"This run cannot be told to {verb}: {error}."
            raise ChangeRefusedError(409, reason) from None


def sweep_outbox() -> None:
    """Create the tasks of rows that wait longer than they should."""
    with _recorded("sweep outbox", "outbox"):
        registry().sweep(clients(), "outbox")


def bulk_verb(verb: str) -> BulkVerb:
    """Return a verb of dead tasks.

    Raises:
        ChangeRefusedError: it is none.
    """
    for name in BULK_VERBS:
        if name == verb:
            return name
    verbs = ", ".join(f":{name}" for name in BULK_VERBS)
    raise ChangeRefusedError(404, f"Dead tasks are told what to do by {verbs}.")


@contextmanager
def _recorded(action: str, target: str) -> Iterator[None]:
    operator = caller()
    name, role = operator.name, operator.role
    with recorded(clients(), operator=name, role=role, action=action, target=target):
        yield


def _words(chosen: DeadTaskFilter | None) -> str:
    fields = asdict(chosen or DeadTaskFilter())
    parts = [f"{name}={value}" for name, value in fields.items() if value]
    return " ".join(parts) or "all"
