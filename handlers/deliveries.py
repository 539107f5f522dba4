"""Deliveries of tasks: prove the caller, check the arguments, call the function, answer.

One endpoint for all, so that a stranger cannot tell a task that exists from one that does
not. How a delivery ends:

    done                      204
    can never work            parked as a dead task, 204
    lost its race             429: come again
    a service is unwell       503: come again, and slow down
    anything else             500: come again

After `max_attempts` deliveries a task is parked instead of coming again, except while a
service is unwell: that is not the task's fault.
"""

from __future__ import annotations

import logging
import traceback
from typing import Any

from flask import Blueprint, request
from flask.typing import ResponseReturnValue
from google.api_core import exceptions as rpc_errors

from handlers.access import tasks_only
from handlers.wiring import clients, registry
from pipelines import dead_tasks
from pipelines.tasks import (
    MOST_BODY_BYTES,
    BadArgumentsError,
    Park,
    Task,
    TooLargeError,
    Unwell,
    Wait,
)

log = logging.getLogger(__name__)

bp = Blueprint("deliveries", __name__)

ANY_METHOD = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]

MUST_WAIT = (Wait, rpc_errors.Aborted)
UNWELL = (
    Unwell,
    rpc_errors.ServiceUnavailable,
    rpc_errors.InternalServerError,
    rpc_errors.DeadlineExceeded,
    rpc_errors.ResourceExhausted,
    rpc_errors.Unknown,
    rpc_errors.RetryError,
)


@bp.route("/tasks/<path:rest>", methods=ANY_METHOD, provide_automatic_options=False)
@tasks_only
def deliver(rest: str) -> ResponseReturnValue:
    """Do what one delivery asks for."""
    if request.method != "POST":
        return "", 405
    if (request.content_length or 0) > MOST_BODY_BYTES:
        return "", 413
    task = registry().tasks.get(request.path)
    if task is None:
        return _park("no task is declared for this path")
    if _retries() >= task.max_attempts and not _last_answer():
        return _park(f"{_retries()} deliveries ended without an answer")
    return _deliver(task)


def _deliver(task: Task[Any]) -> ResponseReturnValue:
    try:
        task.work(clients(), task.read(request.get_data()))
    except (Park, BadArgumentsError, TooLargeError) as error:
        return _park(f"{type(error).__name__}: {error}")
    except MUST_WAIT as error:
        log.info("%s waits: %s", task.path, error)
        return _again(task, 429, str(error))
    except UNWELL as error:
        log.warning("%s: a service is unwell: %s", task.path, error)
        return "", 503
    except Exception:
        log.exception("%s failed", task.path)
        return _again(task, 500, traceback.format_exc())
    return "", 204


def _again(task: Task[Any], status: int, reason: str) -> ResponseReturnValue:
    if _retries() + 1 >= task.max_attempts and _last_answer() != "503":
        return _park(f"gave up after {task.max_attempts} deliveries. {reason}")
    return "", status


def _park(reason: str) -> ResponseReturnValue:
    log.error("parked %s: %s", request.path[:100], reason)
    dead_tasks.park(
        clients(),
        path=request.path,
        queue=_header("QueueName"),
        task_name=_header("TaskName"),
        body=request.get_data(),
        reason=reason,
    )
    return "", 204


def _retries() -> int:
    text = _header("TaskRetryCount")
    return int(text) if text.isdecimal() else 0


def _last_answer() -> str:
    """Return how the last delivery was answered; "": not at all, its worker died."""
    return _header("TaskPreviousResponse")


def _header(name: str) -> str:
    """Return what the queue says of this delivery; believable because the caller is proven."""
    for prefix in ("X-CloudTasks-", "X-AppEngine-"):
        if value := request.headers.get(prefix + name):
            return value
    return ""
