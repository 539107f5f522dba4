"""Deliveries of tasks: authenticate the caller, check the arguments, call the function, answer.

One endpoint for all, so that a stranger cannot tell a task that exists from one that does
not. How a delivery ends:

    done                      204, or on a laptop 200 with its log lines
    can never work            kept as a dead task, 204
    waits for a time          created again for that time, 204
    lost its race             409: it is retried
    another version's task    as one that waits; a dead task when it was unknown for an hour
    a service is unavailable  503: it is retried, and the queue slows down
    anything else             422: it is retried
    it has failed often       422, and nothing is done: it is retried when it is due again

Only 503 slows the queue down, and with it all other tasks (ADR 0010).

After `max_attempts` failures of its own (422, or a worker that died over it) a task becomes a dead
task. Failures for other reasons do not count, however often they happen.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

from flask import Blueprint, jsonify, request
from flask.typing import ResponseReturnValue
from google.api_core import exceptions as rpc_errors

from rollforward import telemetry
from rollforward.app_code import APP_ERRORS, run_app
from rollforward.datastore.transactions import TRANSIENT
from rollforward.flask import spans
from rollforward.flask.context import clients, registry, request_notes, settings
from rollforward.flask.endpoints import delivery_log
from rollforward.flask.endpoints.delivery_log import DeliveryLines
from rollforward.flask.endpoints.delivery_metrics import measured, note_outcome
from rollforward.flask.guards.auth import tasks_only
from rollforward.fork_join import OutcomeUnknownError
from rollforward.runtime.texts import describe_error, error_with_stack
from rollforward.tasks import attempts, dead_tasks, waits
from rollforward.tasks.attempts import FAILED, LOST_RACE, RetryLaterError, TaskDelivery
from rollforward.tasks.declaration import Task
from rollforward.tasks.errors import (
    ArgumentsGoneError,
    BadArgumentsError,
    EndedError,
    OtherVersionError,
    Reject,
    Retry,
    TooLargeError,
    Unavailable,
)
from rollforward.tasks.stored import deliveries
from rollforward.tasks.stored.names import MAX_TASK_BYTES
from rollforward.telemetry.metrics import Outcome

log = logging.getLogger(__name__)

bp = Blueprint("rollforward_tasks", __name__)

ANY_METHOD = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]

MAX_DETAIL_CHARS = 2_000
MAX_STACK_CHARS = 20_000
_MAX_DUE_S = 1e11  # The year 5138.

_DONE = "", 204
MUST_WAIT = (Retry, rpc_errors.Aborted)
UNAVAILABLE_ERRORS = (Unavailable, OutcomeUnknownError, *TRANSIENT)


@bp.route("/tasks/<path:rest>", methods=ANY_METHOD, provide_automatic_options=False)
@tasks_only
def deliver(rest: str) -> ResponseReturnValue:
    """Handle one delivery."""
    if request.method != "POST":
        return "", 405, {"Allow": "POST"}
    # Not from the stream: a hook of the app that logs bodies has read it to its end.
    delivery = _delivery(request.get_data()[: MAX_TASK_BYTES + 1])
    clients().meter.delivered(len(delivery.body))
    with attempts.delivery_context(delivery), measured(delivery, _header("TaskETA")):
        return _respond(delivery)


def _respond(delivery: TaskDelivery) -> ResponseReturnValue:
    task = registry().tasks.get(delivery.path)
    if task is None:
        return _wait_for_a_version(delivery, "no task is declared for this path")
    if len(delivery.body) > MAX_TASK_BYTES:
        reason = f"TooLargeError: it has more than {MAX_TASK_BYTES} bytes; the rest is not kept"
        return _dead_letter(delivery, reason)
    try:
        args = task.read(deliveries.begin(clients(), delivery.body))
    except EndedError as error:
        log.info("%s: %s", task.path, error)
        return "", 204
    except (TooLargeError, ArgumentsGoneError) as error:
        return _dead_letter(delivery, describe_error(error))
    except BadArgumentsError as error:
        return _wait_for_a_version(delivery, f"BadArgumentsError: {error}")
    except UNAVAILABLE_ERRORS as error:
        log.warning("%s: its arguments cannot be read: %s", task.path, error)
        note_outcome(Outcome.UNAVAILABLE)
        return _response(503, f"a service is unavailable: {describe_error(error)}")
    run = request_notes()["task_run"] = _run_of(args)
    spans.describe(run=run)
    with telemetry.in_run(run):
        return _deliver(task, args, delivery)


def _run_of(args: Any) -> str:
    """Return the run or batch that a task works for, by the names that arguments give it."""
    run = getattr(args, "run_id", None) or getattr(args, "batch_id", None)
    return run if isinstance(run, str) else ""


def _deliver(task: Task[Any], args: Any, delivery: TaskDelivery) -> ResponseReturnValue:
    try:
        failures = attempts.begin(clients(), delivery)
    except RetryLaterError as error:
        note_outcome(Outcome.BACKED_OFF)
        return _response(FAILED, str(error))
    if failures >= task.max_attempts:
        reason = f"{failures} deliveries failed, or ended without a response"
        return _give_up(task, args, delivery, reason)
    with delivery_log.capture(_task_of(delivery)) as lines:
        try:
            run_app(task.work, clients(), args)
        except (Reject, BadArgumentsError, TooLargeError) as error:
            return _give_up(task, args, delivery, describe_error(error), type(error).__name__)
        except OtherVersionError as error:
            give_up = partial(_give_up, task, args, delivery)
            return _wait_for_a_version(delivery, describe_error(error), give_up)
        except MUST_WAIT as error:
            log.info("%s waits: %s", task.path, error)
            after_s = error.after_s if isinstance(error, Retry) else None
            return _wait(delivery, after_s, describe_error(error), lines)
        except UNAVAILABLE_ERRORS as error:
            log.warning("%s: a service is unavailable: %s", task.path, error)
            attempts.end_later(clients(), delivery)
            note_outcome(Outcome.UNAVAILABLE)
            return _response(503, f"a service is unavailable: {describe_error(error)}", log=lines)
        except APP_ERRORS as error:
            log.exception("%s failed", task.path)
            return _failed(task, args, delivery, error, lines)
    attempts.finish_delivery(delivery)
    deliveries.finish(clients(), delivery.body)
    delivery_log.end(lines)
    return _response(200, "", log=lines) if lines.captured else ("", 204)


def _task_of(delivery: TaskDelivery) -> str:
    """Return the short name of what was delivered, with its queue."""
    queue, name = (waits.short_name(text) for text in (delivery.queue, _header("TaskName")))
    return f"{queue}/{name}" if name else ""


def _failed(
    task: Task[Any], args: Any, delivery: TaskDelivery, error: BaseException, lines: DeliveryLines
) -> ResponseReturnValue:
    stack = "".join(traceback.format_exception(error))
    failures = attempts.fail(clients(), delivery, describe_error(error))
    if failures >= task.max_attempts:
        reason = f"gave up after {failures} failures: {error_with_stack(error)}"
        answer = _give_up(task, args, delivery, reason, type(error).__name__)
        if answer != _DONE or not settings().is_local:
            return answer
        return _response(200, describe_error(error), stack=stack, log=lines)
    note_outcome(Outcome.FAILED)
    spans.fail(describe_error(error))
    return _response(FAILED, describe_error(error), stack=stack, log=lines)


def _wait(
    delivery: TaskDelivery, after_s: float | None, reason: str, lines: DeliveryLines
) -> ResponseReturnValue:
    """Retry a task soon, or create it again for its time."""
    if after_s is None:
        attempts.end_later(clients(), delivery)
        note_outcome(Outcome.LOST_RACE)
        return _response(LOST_RACE, f"it waits: {reason}", log=lines)
    note_outcome(Outcome.WAITING)
    answer = _reschedule(delivery, after_s, reason, lines)
    attempts.end_waiting(clients(), delivery, after_s)
    return answer


def _reschedule(
    delivery: TaskDelivery, after_s: float, reason: str, lines: DeliveryLines | None = None
) -> ResponseReturnValue:
    try:
        is_created = waits.reschedule(clients(), delivery, after_s)
    except UNAVAILABLE_ERRORS as error:
        log.warning("%s is postponed later: %s", delivery.path[:100], error)
        note_outcome(Outcome.UNAVAILABLE)
        return _response(503, f"a service is unavailable: {describe_error(error)}", log=lines)
    if not is_created:
        return _response(LOST_RACE, f"it waits: {reason}", log=lines)
    detail = f"it waits for {after_s:g} s, as a new task: {reason}"
    return _response(200 if settings().is_local else 204, detail, log=lines)


def _response(
    status: int, detail: str, *, stack: str = "", log: DeliveryLines | None = None
) -> ResponseReturnValue:
    """Return a status; on a laptop also its reason and the log, which the console shows."""
    if not settings().is_local:
        return "", status
    if log is not None:
        delivery_log.end(log)
    body = {
        "detail": detail[:MAX_DETAIL_CHARS],
        "traceback": stack[-MAX_STACK_CHARS:],
        "log": log.captured if log is not None else [],
    }
    return jsonify({key: value for key, value in body.items() if value}), status


def _wait_for_a_version(
    delivery: TaskDelivery, reason: str, give_up: Callable[[str], ResponseReturnValue] | None = None
) -> ResponseReturnValue:
    """Delay a task unknown to this version: during a deployment two versions serve at once.

    Many may wait, as after a rollback, so each is a planned wait that slows no queue.
    """
    if attempts.is_old(clients(), delivery):
        return give_up(reason) if give_up is not None else _dead_letter(delivery, reason)
    log.warning("%r waits for another version: %s", delivery.path[:100], reason)
    note_outcome(Outcome.OTHER_VERSION)
    after_s = waits.version_wait_s(delivery.waits)
    return _reschedule(delivery, after_s, f"it waits for another version: {reason}")


def _give_up(
    task: Task[Any], args: Any, delivery: TaskDelivery, reason: str, error_class: str = ""
) -> ResponseReturnValue:
    """Keep a task as a dead task, unless its declaration handles that."""
    if task.on_give_up is None:
        return _dead_letter(delivery, reason, error_class)
    try:
        run_app(task.on_give_up, clients(), args, reason)
    except MUST_WAIT as error:
        log.info("%s is given up later: %s", task.path, error)
        note_outcome(Outcome.LOST_RACE)
        return _response(LOST_RACE, f"it waits: {describe_error(error)}")
    except UNAVAILABLE_ERRORS as error:
        log.warning("%s is given up later: %s", task.path, error)
        note_outcome(Outcome.UNAVAILABLE)
        return _response(503, f"a service is unavailable: {describe_error(error)}")
    except APP_ERRORS as error:
        log.exception("the handler of a task that was given up failed: %r", delivery.path[:100])
        note_outcome(Outcome.FAILED)
        return _response(FAILED, describe_error(error))
    note_outcome(Outcome.DEAD)
    spans.fail(reason)
    fields = {"error_class": error_class}
    log.error("gave up %r: %s", delivery.path[:100], reason, extra=fields)
    attempts.discard(delivery)
    deliveries.give_up(clients(), delivery.body)
    return _DONE


def _dead_letter(delivery: TaskDelivery, reason: str, error_class: str = "") -> ResponseReturnValue:
    dead_id = dead_tasks.dead_letter(
        clients(),
        path=delivery.path,
        queue=delivery.queue,
        task_name=delivery.task_name,
        body=delivery.body,
        reason=reason,
        error=error_class,
        deliveries=delivery.number + 1,
    )
    note_outcome(Outcome.DEAD)
    spans.describe(dead_task=dead_id)
    spans.fail(reason)
    attempts.discard(delivery)
    return _DONE


def _delivery(body: bytes) -> TaskDelivery:
    retries = _header("TaskRetryCount")
    headers = dict(request.headers)
    first_name, waited = waits.continued(headers)
    return TaskDelivery(
        path=request.path,
        queue=_header("QueueName"),
        task_name=first_name or _header("TaskName"),
        body=body,
        number=int(retries) if retries.isdecimal() else 0,
        last_answer=_header("TaskPreviousResponse"),
        waits=waited,
        due_s=_due_s(_header("TaskETA")),
        born=waits.born_of(headers),
    )


def _header(name: str) -> str:
    """Return a header of the queue about this delivery; the caller is authenticated."""
    for prefix in ("X-CloudTasks-", "X-AppEngine-"):
        if value := request.headers.get(prefix + name):
            return value
    return ""


def _due_s(eta: str) -> float:
    """Return when a delivery was due by the queue's clock; 0: its header does not say.

    >>> [_due_s(eta) for eta in ("1900000000.25", "inf", "nan", "-1", "")]
    [1900000000.25, 0.0, 0.0, 0.0, 0.0]
    """
    try:
        due_s = float(eta)
    except ValueError:
        return 0.0
    return due_s if 0 < due_s < _MAX_DUE_S else 0.0
