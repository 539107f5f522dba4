"""Rows as JSON has them: times as ISO 8601, bodies as text."""

from __future__ import annotations

import datetime
import json
import re
from dataclasses import asdict
from typing import Any

from flask import Response
from google.cloud import ndb

from rollforward.lanes.rows.entities import unquote
from rollforward.operations import AuditEntry
from rollforward.runtime.clock import aware_utc
from rollforward.tasks.dead_task_entities import DeadTask, short_reason
from rollforward.tasks.runs import Letter, RunDetails
from rollforward.tracing import trace_id_of

REASON_CHARS = 300
_URLSAFE_KEY = re.compile(r"[A-Za-z0-9_-]{16,2000}")


def json_response(value: dict[str, Any], status: int = 200) -> Response:
    """Return JSON with times as ISO 8601; Flask would write them as in HTTP headers."""
    text = json.dumps(value, default=datetime.datetime.isoformat)
    return Response(text, status, content_type="application/json")


def dead_task_row(dead: DeadTask, *, is_whole: bool = False) -> dict[str, Any]:
    """Return a dead task; in a list with its reason in short, and without its body."""
    reason = dead.reason if is_whole else short_reason(dead.reason)[:REASON_CHARS]
    row = {
        "id": dead.key.id(),
        "path": dead.path,
        "pattern": dead.pattern,
        "queue": dead.queue,
        "lane": _lane_of(dead),
        "task_name": dead.task_name,
        "error": dead.error or "",
        "trace_id": trace_id_of(dead.traceparent or ""),
        "reason": reason,
        "deliveries": dead.deliveries,
        "count": dead.count,
        "replays": dead.replays,
        "created": aware_utc(dead.created),
        "updated": aware_utc(dead.updated),
        "resolved": dead.resolved,
    }
    return row | ({"body": dead.body} if is_whole else {})


def _lane_of(dead: DeadTask) -> dict[str, str] | None:
    """Return the lane and the key that a dead task waited in; None: in none."""
    lane, _, key = dead.lane_id.partition("|")
    return {"name": lane, "key": unquote(key)} if lane else None


def letter_row(letter: Letter, *, is_whole: bool = False) -> dict[str, Any]:
    """Return a dead letter; in a list without its body."""
    row = {
        "id": letter.id,
        "name": letter.name,
        "error": letter.error,
        "died": letter.died,
        "numbers": dict(letter.numbers),
    }
    return row | ({"body": letter.body} if is_whole else {})


def audit_row(entry: AuditEntry) -> dict[str, Any]:
    """Return an entry of the audit trail."""
    return {
        "at": aware_utc(entry.at),
        "who": entry.operator,
        "role": entry.role,
        "action": entry.action,
        "target": entry.target,
        "result": entry.result,
        "ended": aware_utc(entry.ended),
    }


def run_row(details: RunDetails) -> dict[str, Any]:
    """Return a run; each item that was not simply done has its `name`."""
    row = asdict(details)
    for issue in row["issues"]:
        issue["name"] = item_words(issue["item"])
    return row


def item_words(item: str) -> str:
    """Return an item in words: entities are named by their keys as URLs have them.

    >>> item_words("order 7"), item_words("YWJj")
    ('order 7', 'YWJj')
    """
    if not _URLSAFE_KEY.fullmatch(item):
        return item
    try:
        pairs = ndb.Key(urlsafe=item.encode()).pairs()
    except Exception:  # A text that looks like a key: ndb raises many errors.
        return item
    return ", ".join(f"{kind} {name}" for kind, name in pairs)
