"""Incidents of deliveries, for pages that show a run: struck by a fault, lost, sent again.

A delivery is an incident when a fault rule touched it, when it is a copy, or when it failed. Marks
are what people did to the app meanwhile: a worker killed, more or fewer workers, memcached flushed.

    GET  /api/v1/incidents?since=&until=&path=&text=   seconds since 1970; all optional
    POST /api/v1/marks                                 {kind, text}

Incidents are kept as long as their tasks are. Marks are kept in memory.
"""

import json
from collections import deque
from dataclasses import asdict, dataclass
from typing import Any

from rollforward.local.cloudtasks.delivery.reasons import reason_of
from rollforward.local.cloudtasks.engine.engine_state import EngineState
from rollforward.local.cloudtasks.protocol import messages
from rollforward.local.cloudtasks.protocol.names import Place, short

MAX_INCIDENTS = 1000
MAX_MARKS = 500
MAX_MARK_CHARS = 200
MAX_BODY_SHOWN_BYTES = 1000
MARK_KINDS = ("kill", "flush", "resize")


@dataclass(frozen=True)
class Mark:
    """Something that was done to the app, in seconds since 1970."""

    at: float
    kind: str
    text: str


class MarkError(ValueError):
    """A mark of an unknown kind."""


class Incidents:
    """The incidents of one engine."""

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._marks: deque[Mark] = deque(maxlen=MAX_MARKS)

    def mark(self, kind: str, text: str = "") -> Mark:
        """Note that something was done to the app now.

        Raises:
            MarkError: the kind does not exist.
        """
        if kind not in MARK_KINDS:
            raise MarkError(f"kind must be one of {', '.join(MARK_KINDS)}, not {kind!r:.40}")
        mark = Mark(self._state.clock.now(), kind, text[:MAX_MARK_CHARS])
        self._marks.append(mark)
        return mark

    def clear(self) -> None:
        """Forget all marks."""
        self._marks.clear()

    def to_json(
        self, since: float = 0.0, until: float | None = None, path: str = "", text: str = ""
    ) -> dict[str, Any]:
        """Return what happened from `since` to `until`, and the faults and slowed queues of now.

        Args:
            path: Only deliveries whose request's path holds this.
            text: Only deliveries of tasks that hold this, in their bodies for one.
        """
        end = float("inf") if until is None else until
        with self._state.lock:
            rows = self._state.store.attempts.incidents(since, end, path, text, MAX_INCIDENTS)
            deliveries = [_delivery_json(row, self._state.place) for row in rows]
            marks = [asdict(mark) for mark in self._marks if since <= mark.at <= end]
            return {
                "now": self._state.clock.now(),
                "deliveries": deliveries,
                "marks": marks,
                "slowed": self._slowed(),
                "rules": [rule.to_json() for rule in self._state.faults.all()],
            }

    def _slowed(self) -> list[dict[str, Any]]:
        """Return the queues that answers of 429 or 5xx have slowed, and until when."""
        now_s = self._state.clock.now()
        slowed = []
        for name, queue in self._state.queues.items():
            queue.throttle.recover(now_s)
            if queue.throttle.factor < 1.0:
                slowed.append(
                    {
                        "queue": self._state.place.queue_id(name),
                        "speed_factor": queue.throttle.factor,
                        "full_speed_at": queue.throttle.full_speed_at,
                    }
                )
        return slowed


def _delivery_json(row: Any, place: Place) -> dict[str, Any]:
    reason = reason_of(row["response_body"])
    return {
        "task": short(row["name"]),
        "queue": place.queue_id(row["queue"]),
        "path": row["path"],
        "kind": row["kind"],
        "faults": json.loads(row["faults"]),
        "at": row["started_at"],
        "ended_at": row["started_at"] + (row["duration_ms"] or 0.0) / 1000,
        "status": row["status"],
        "error": row["error"],
        "reason": reason.detail if reason else "",
        "task_state": row["state"],
        "task_ended_at": row["task_ended_at"],
        "body": _body_of(row["spec"]),
    }


def _body_of(spec: bytes) -> Any:
    """Return the JSON object in a task's body, None if it is anything else, or long."""
    task = messages.Task.FromString(spec)
    body = task.http_request.body or task.app_engine_http_request.body
    if not body or len(body) > MAX_BODY_SHOWN_BYTES or body[:1] != b"{":
        return None
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None
