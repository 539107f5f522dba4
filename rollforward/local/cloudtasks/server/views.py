"""Queues, tasks and attempts as JSON, for people and for the console."""

import base64
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rollforward.local.cloudtasks.delivery.reasons import reason_of
from rollforward.local.cloudtasks.engine.engine import Engine
from rollforward.local.cloudtasks.engine.queue_state import QueueState
from rollforward.local.cloudtasks.protocol import messages
from rollforward.local.cloudtasks.protocol.messages import HttpMethod, seconds_of
from rollforward.local.cloudtasks.protocol.names import short
from rollforward.local.cloudtasks.store.records import TaskRecord

STATES = ("scheduled", "queued", "running", "retrying", "done", "failed", "deleted")
_QUEUE_STATES = {
    messages.RUNNING: "running",
    messages.PAUSED: "paused",
    messages.DISABLED: "disabled",
}


def queues_json(engine: Engine) -> list[dict[str, Any]]:
    """Return all queues: settings, load, and how many tasks are in each state."""
    counts = engine.history.counts()
    return [_queue_json(engine, queue, counts[queue.name]) for queue in engine.queues.all()]


def _queue_json(engine: Engine, queue: QueueState, counts: Mapping[str, int]) -> dict[str, Any]:
    limits, retries = queue.message.rate_limits, queue.message.retry_config
    return {
        "id": engine.place.queue_id(queue.name),
        "name": queue.name,
        "state": _QUEUE_STATES[queue.message.state],
        "from_queue_yaml": queue.from_yaml,
        "counts": {state: counts.get(state, 0) for state in STATES},
        "running": queue.running,
        "speed_factor": queue.throttle.factor,
        "rate_per_s": limits.max_dispatches_per_second,
        "burst": limits.max_burst_size,
        "max_concurrent": limits.max_concurrent_dispatches,
        "max_attempts": retries.max_attempts,
        "max_retry_duration_s": seconds_of(retries.max_retry_duration),
        "min_backoff_s": seconds_of(retries.min_backoff),
        "max_backoff_s": seconds_of(retries.max_backoff),
        "max_doublings": retries.max_doublings,
    }


def task_json(engine: Engine, task: TaskRecord) -> dict[str, Any]:
    """Return a task without its body."""
    return {
        "id": short(task.name),
        "name": task.name,
        "queue": engine.place.queue_id(task.queue),
        "sequence": task.sequence,
        "state": engine.history.state_of(task),
        "target": _target_of(task),
        "path": task.path,
        "named": task.is_named,
        "created_at": task.created_at,
        "schedule_at": task.schedule_at,
        "ended_at": task.ended_at,
        "dispatch_count": task.dispatch_count,
        "response_count": task.response_count,
        "last_error": engine.history.last_error(task),
    }


def _target_of(task: TaskRecord) -> str:
    if task.pull is not None:
        return "pull"
    return "app_engine" if task.is_app_engine else "http"


def body_of(task: TaskRecord) -> bytes:
    """Return the body of a task's request, or the payload of a task that is leased."""
    if task.pull is not None:
        return task.pull.payload
    return bytes(_request_of(task, messages.Task.FromString(task.spec)).body)


def _request_of(task: TaskRecord, spec: Any) -> Any:
    return spec.app_engine_http_request if task.is_app_engine else spec.http_request


def task_with_attempts_json(engine: Engine, name: str) -> dict[str, Any]:
    """Return a task with its request and all its attempts, oldest first.

    Raises:
        Refused: NOT_FOUND.
    """
    task, rows = engine.history.of_task(name)
    spec = messages.Task.FromString(task.spec)
    request, body = _request_of(task, spec), body_json(body_of(task))
    return task_json(engine, task) | {
        "request": {
            "method": HttpMethod(request.http_method).name if task.pull is None else "",
            "url": request.relative_uri if task.is_app_engine else request.url,
            "headers": dict(request.headers),
            "body": body,
        },
        "dispatch_deadline_s": seconds_of(spec.dispatch_deadline),
        "attempts": [_attempt_json(row, body) for row in rows],
    }


def _attempt_json(row: Any, body: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": row["id"],
        "number": row["number"],
        "kind": row["kind"],
        "is_copy": row["kind"] in ("duplicate", "overlap"),
        "faults": json.loads(row["faults"]),
        "started_at": row["started_at"],
        "duration_ms": row["duration_ms"],
        "is_running": row["duration_ms"] is None,
        "request": {
            "method": row["method"],
            "url": row["url"],
            "headers": json.loads(row["headers"]),
            "body": body if row["has_body"] else body_json(b""),
        },
        "response": _response_json(row),
        "error": row["error"],
        "reason": _reason_json(row),
        "next_retry_at": row["next_retry_at"],
    }


def _reason_json(row: Any) -> dict[str, Any] | None:
    reason = reason_of(row["response_body"])
    return asdict(reason) if reason else None


def _response_json(row: Any) -> dict[str, Any] | None:
    if row["status"] is None:
        return None
    return {
        "status": row["status"],
        "headers": json.loads(row["response_headers"]),
        "body": body_json(row["response_body"]),
    }


def body_json(body: bytes) -> dict[str, Any]:
    """Return a body as text (and as JSON, if it is), or else as base64."""
    shown: dict[str, Any] = {"size_bytes": len(body)}
    try:
        shown["text"] = body.decode()
    except UnicodeDecodeError:
        shown["base64"] = base64.b64encode(body).decode()
        return shown
    if body[:1] in (b"{", b"["):
        try:
            shown["json"] = json.loads(body)
        except (ValueError, RecursionError):
            return shown
    return shown
