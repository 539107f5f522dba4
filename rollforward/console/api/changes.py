"""Changes that operators ask for, each with its entry in the audit trail; pages and API share them.

A change that is refused ends in `ChangeRefusedError`, with a status and a sentence.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, TypeVar

from flask import current_app

from rollforward.console.access import Caller
from rollforward.flask.context import CONSOLE, clients, registry
from rollforward.lanes.listing import LANE_VERBS, key_named
from rollforward.lanes.rows.entities import quoted
from rollforward.operations import (
    DeadTaskFilter,
    DeadTaskRefusedError,
    UnknownDeadTaskError,
    delete_dead_task,
    recorded,
    replay_dead_task,
    start_bulk,
)
from rollforward.operations.audit import Outcome
from rollforward.operations.bulk import BULK_VERBS, MAX_SELECTED, BulkVerb
from rollforward.operations.entities import DONE
from rollforward.operations.failed_runs import JOB as FAILED_RUNS_JOB
from rollforward.operations.failed_runs import start_failed_runs
from rollforward.operations.letters import start_letters
from rollforward.operations.queue_control import (
    MAX_PER_S,
    QUEUE_VERBS,
    QueueDeniedError,
    QueueRefusedError,
)
from rollforward.operations.queue_control import control_queue as control_queue_of
from rollforward.operations.waiting import CannotListError, forget_queue_states
from rollforward.runtime.clock import ANY_TIME, TimeRange
from rollforward.tasks import hashed_name
from rollforward.tasks.pattern import SteppedPattern
from rollforward.tasks.runs import (
    LETTER_VERBS,
    MAX_STEP_BYTES,
    VERBS,
    LetterQuery,
    LetterRefusedError,
    LetterVerb,
    RunRefusedError,
    UnknownLetterError,
    UnknownRunError,
)

V = TypeVar("V", bound=str)

NO_RUN = "There is no such run."
NO_FAILED_RUNS = "There is no such pattern, or its runs do not fail: they have failed items."
NO_KEY = "There is no such lane, or there can be no such key."
NO_LETTER = "There is no such dead letter, or no more."
NO_LETTERS = "There is no such pipeline or pull queue."
NO_DEAD_TASK = "There is no such dead task, or no more."
RESULTS: dict[BulkVerb | LetterVerb, str] = {"replay": "replayed", "delete": "deleted"}
_RATE = f'A rate is a number of tasks a second, more than 0 and at most {MAX_PER_S:g}: "max_per_s".'
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
    with recorded_change(f"{verb} dead task", dead_id):
        try:
            if chosen == "replay":
                replay_dead_task(clients(), dead_id, known_paths=registry().tasks)
            else:
                delete_dead_task(clients(), dead_id)
        except UnknownDeadTaskError:
            raise ChangeRefusedError(404, NO_DEAD_TASK) from None
        except DeadTaskRefusedError as error:
            reason = f"It cannot be {RESULTS[chosen]}: {error}."
            raise ChangeRefusedError(409, reason) from None
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
    with recorded_change(f"{verb} dead tasks", f"{choice} (run {run_id})"):
        return start_bulk(clients(), known_verb, chosen, ids=ids, run_id=run_id)


def change_letter(pattern: str, part: str, letter_id: str, verb: str) -> str:
    """Replay or delete one dead letter of a pipeline or a pull queue; return what became of it.

    Raises:
        ChangeRefusedError: nothing was changed.
    """
    chosen = letter_verb(verb)
    with recorded_change(f"{verb} dead letter", f"{pattern}/{part}: {letter_id}"):
        try:
            registry().change_letter(clients(), pattern, part, letter_id, chosen)
        except UnknownLetterError:
            raise ChangeRefusedError(404, NO_LETTER) from None
        except UnknownRunError:
            raise ChangeRefusedError(404, NO_LETTERS) from None
        except LetterRefusedError as error:
            raise ChangeRefusedError(409, f"It cannot be replayed: {error}.") from None
    return RESULTS[chosen]


def change_letters(
    pattern: str,
    part: str,
    verb: str,
    ids: Sequence[str],
    idempotency_key: str | None,
    *,
    died: TimeRange = ANY_TIME,
) -> str:
    """Start a run that replays or deletes dead letters; return the run's id.

    Args:
        ids: Those that were selected; none: all that are dead now.
        died: Of all only those that died in this time.
        idempotency_key: The same key, verb and choice are the same run.

    Raises:
        ChangeRefusedError: nothing was changed.
    """
    chosen = letter_verb(verb)
    if len(ids) > MAX_SELECTED or not all(0 < len(name.encode()) <= MAX_ID_BYTES for name in ids):
        raise ChangeRefusedError(400, f"Select 1 to {MAX_SELECTED} dead letters.")
    try:
        registry().letters(clients(), pattern, part, LetterQuery(limit=1))
    except UnknownRunError:
        raise ChangeRefusedError(404, NO_LETTERS) from None
    chosen_words = [f"{name}={at}" for name, at in vars(died).items() if at]
    words = f"{pattern}/{part}: {', '.join(ids) or ' '.join(chosen_words) or 'all'}"
    run_id = hashed_name("dead-letters", words, verb, idempotency_key or clients().new_id())
    with recorded_change(f"{verb} dead letters", f"{words} (run {run_id})"):
        start_letters(
            *(clients(), registry().jobs, chosen, pattern, part),
            ids=ids,
            died=died,
            run_id=run_id,
        )
    return run_id


def letter_verb(verb: str) -> LetterVerb:
    """Return a verb of dead letters.

    Raises:
        ChangeRefusedError: it is none.
    """
    return _known_verb(verb, LETTER_VERBS, "Dead letters are")


def control_run(
    pattern: str,
    run_id: str,
    verb: str,
    *,
    from_step: str = "",
    runs: int = 0,
    idempotency_key: str | None = None,
) -> str:
    """Cancel, resume or retry a run; return the id of the run to look at.

    Args:
        from_step: The first step to run again; "": the failed one.
        runs: The expected number of its runs, or else it is refused; 0: any.
        idempotency_key: The same key and step are the same retry, or cancellation, of steps.

    Raises:
        ChangeRefusedError: nothing was changed.
    """
    known_verb = _known_verb(verb if run_id else "", VERBS, "A run is")
    if len(run_id.encode(errors="replace")) > MAX_ID_BYTES:
        raise ChangeRefusedError(404, NO_RUN)
    if len(from_step.encode(errors="replace")) > MAX_STEP_BYTES:
        raise ChangeRefusedError(400, f"A step has a name of at most {MAX_STEP_BYTES} bytes.")
    target = f"{pattern}/{run_id}" + (f" from the step {from_step}" if from_step else "")
    with recorded_change(f"{verb} run", target):
        try:
            return registry().control_run(
                *(clients(), pattern, run_id, known_verb),
                from_step=from_step,
                runs=runs,
                request_id=_request_id(verb, from_step, idempotency_key),
            )
        except UnknownRunError:
            raise ChangeRefusedError(404, NO_RUN) from None
        except RunRefusedError as error:
            reason = f"This run does not take {verb}: {error}."
            raise ChangeRefusedError(409, reason) from None


def _request_id(verb: str, from_step: str, idempotency_key: str | None) -> str:
    """Return the id of a request: another step is another one, as another choice is."""
    if not idempotency_key:
        return ""
    return hashed_name(verb, *([from_step] if from_step else []), idempotency_key)


def retry_failed_runs(
    pattern: str, name: str, ids: Sequence[str], idempotency_key: str | None
) -> str:
    """Start a run that retries failed runs of a pattern; return the run's id.

    Args:
        name: One flow, for example; "": all.
        ids: Those that were selected; none: all that have failed.
        idempotency_key: The same key and choice are the same run.

    Raises:
        ChangeRefusedError: nothing was changed.
    """
    if not isinstance(registry().patterns.get(pattern), SteppedPattern):
        raise ChangeRefusedError(404, NO_FAILED_RUNS)
    if len(ids) > MAX_SELECTED or (name and ids):
        raise ChangeRefusedError(400, f"Select 1 to {MAX_SELECTED} runs, or those of a name.")
    if name and all(part.name != name for part in registry().parts(pattern)):
        raise ChangeRefusedError(404, f"There is no such name among the app's {pattern}.")
    sizes = [len(text.encode(errors="replace")) for text in (*ids, name or "all")]
    if not all(0 < size <= MAX_ID_BYTES for size in sizes):
        raise ChangeRefusedError(400, f"An id or a name has 1 to {MAX_ID_BYTES} bytes.")
    words = f"{pattern}: {', '.join(ids) or name or 'all'}"
    run_id = hashed_name("failed-runs", words, idempotency_key or clients().new_id())
    job = registry().jobs[FAILED_RUNS_JOB]
    with recorded_change("retry failed runs", f"{words} (run {run_id})"):
        start_failed_runs(clients(), job, pattern, name=name, ids=ids, run_id=run_id)
    return run_id


def control_queue(queue: str, verb: str, max_per_s: float | None = None) -> None:
    """Pause, resume or purge a queue of the app, or set its rate.

    Raises:
        ChangeRefusedError: nothing was changed.
        google.api_core.exceptions.GoogleAPICallError: it is unknown whether it was.
    """
    known_verb = _known_verb(verb, QUEUE_VERBS, "A queue is")
    if queue not in queue_names():
        raise ChangeRefusedError(404, f"No task of this app goes to a queue {queue!r:.100}.")
    rate = max_per_s or 0.0
    if (known_verb == "rate") != (max_per_s is not None) or not 0 <= rate <= MAX_PER_S:
        raise ChangeRefusedError(400, _RATE)
    if known_verb == "rate" and not rate:
        raise ChangeRefusedError(400, f"{_RATE} To stop a queue, pause it.")
    words = f"{queue}: {rate:g}/s" if known_verb == "rate" else queue
    action = "set rate of queue" if known_verb == "rate" else f"{verb} queue"
    with recorded_change(action, words):
        try:
            control_queue_of(clients(), queue, known_verb, max_per_s=rate)
        except CannotListError as error:
            raise ChangeRefusedError(501, str(error)) from None
        except QueueDeniedError as error:
            raise ChangeRefusedError(403, f"{error}.") from None
        except QueueRefusedError as error:
            raise ChangeRefusedError(409, f"{error}.") from None
        finally:
            forget_queue_states(clients())


def control_lane(name: str, key: str, verb: str) -> dict[str, Any]:
    """Pause, resume or drain a key of a lane; return its state before, or the counts of a drain.

    Raises:
        ChangeRefusedError: nothing was changed.
        google.api_core.exceptions.GoogleAPICallError: it is unknown whether it was.
    """
    known_verb = _known_verb(verb, LANE_VERBS, "A key of a lane is")
    try:
        lane_key = key_named(registry().parts("lanes"), f"{name}|{quoted(key)}")
    except UnknownRunError:
        raise ChangeRefusedError(404, NO_KEY) from None
    with recorded_change(f"{verb} lane", f"{name}: {key}") as outcome:
        if known_verb == "drain":
            drained = lane_key.drain(clients())
            outcome.result = f"{DONE}: {drained.deleted} deleted, {drained.at_work} running"
            return asdict(drained)
        before = lane_key.state()
        was = "blocked" if before.blocked_by else "paused" if before.is_paused else "open"
        if known_verb == "pause":
            lane_key.pause(clients())
        else:
            lane_key.resume(clients())
        outcome.result = f"{DONE}: it was {was}, with {before.waiting} tasks"
        return {"was": was, "waiting": before.waiting}


def queue_names() -> Collection[str]:
    """Return the queues that tasks of the app go to; other queues are not changed."""
    return {task.queue for task in registry().tasks.values()}


def sweep_outbox() -> None:
    """Create the tasks of rows that wait longer than they should."""
    with recorded_change("sweep outbox", "outbox"):
        registry().sweep(clients(), "outbox")


def bulk_verb(verb: str) -> BulkVerb:
    """Return a verb of dead tasks.

    Raises:
        ChangeRefusedError: it is none.
    """
    return _known_verb(verb, BULK_VERBS, "Dead tasks are")


def _known_verb(verb: str, verbs: Sequence[V], subject: str) -> V:
    """Return a verb that is among some; end the request with 404 and their names if it is not."""
    for name in verbs:
        if name == verb:
            return name
    names = ", ".join(f":{name}" for name in verbs)
    raise ChangeRefusedError(404, f"{subject} changed by {names}.")


@contextmanager
def recorded_change(action: str, target: str) -> Iterator[Outcome]:
    """Put a change by the current caller on record."""
    operator = caller()
    name, role = operator.name, operator.role
    with recorded(clients(), operator=name, role=role, action=action, target=target) as outcome:
        yield outcome


def _words(chosen: DeadTaskFilter | None) -> str:
    fields = asdict(chosen or DeadTaskFilter())
    parts = [f"{name}={value}" for name, value in fields.items() if value]
    return " ".join(parts) or "all"
