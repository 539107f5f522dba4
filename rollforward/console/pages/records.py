"""Lag and cost, and the audit trail."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict

from flask import request
from flask.typing import ResponseReturnValue

from rollforward.console.api.queries import PAGE_ROWS, time_of
from rollforward.console.api.rows import audit_row
from rollforward.console.pages.frame import Routes, page, render, with_query
from rollforward.flask.context import clients, registry
from rollforward.look.lists import ListChoice
from rollforward.operations import list_audit
from rollforward.runtime.process.recent_answer import RecentAnswer
from rollforward.tasks.pattern import Gauge

# As operations/alerts.yaml has them; an alert also waits for some minutes.
ALERT_ABOVE: Mapping[str, float] = {
    "dead_tasks_open": 0,
    "distant_tasks_late_seconds": 3_600,
    "schedules_late_seconds": 300,
    "outbox_oldest_seconds": 120,
    "outbox_oldest_unacked_seconds": 600,
    "continuations_oldest_seconds": 86_400,
    "batches_oldest_seconds": 86_400,
    "flows_failed": 0,
    "flows_waiting_for_version": 0,
    "flows_late_seconds": 300,
    "lanes_oldest_seconds": 600,
    "lanes_blocked": 0,
    "lanes_paused": 0,
    "fork_join_oldest_seconds": 120,
    "fork_join_parked_items": 0,
    "pull_queue_oldest_seconds": 3_600,
    "pull_queue_dead_letters": 0,
    "views_oldest_seconds": 60,
    "streams_watermark_lag_seconds": 600,
    "streams_dead_letters": 0,
    "streams_recovered_records": 0,
    "streams_dedup_missing_seconds": 0,
    "streams_unread_records": 10_000,
}

KEPT_S = 30.0
SHOWN_LABELS = 3


def recent_alerts() -> Mapping[str, str]:
    """Return each gauge above its alert in words, by its name, as of the last half minute."""
    recent: RecentAnswer[Mapping[str, str]] = clients().process_state.get_or_create(
        "console:alerts", RecentAnswer
    )
    return recent.get(lambda: _alert_texts(*registry().read_gauges(clients())), KEPT_S)


def _alert_texts(gauges: Iterable[Gauge], unread: Sequence[str]) -> Mapping[str, str]:
    owners: dict[str, list[str]] = {}
    for gauge in gauges:
        if gauge.value > ALERT_ABOVE.get(gauge.name, math.inf):
            owners.setdefault(gauge.name, []).append(" ".join(gauge.labels.values()))
    texts = {name: f"{name} is above {ALERT_ABOVE[name]:g}" for name in owners}
    for name, labels in owners.items():
        shown = [label for label in labels if label][:SHOWN_LABELS]
        rest = f" and {len(labels) - SHOWN_LABELS} others" if len(labels) > SHOWN_LABELS else ""
        texts[name] += f": {', '.join(shown)}{rest}" if shown else ""
    if unread:
        texts["patterns_unread"] = f"The gauges cannot be read of {', '.join(unread)}"
    return texts


@page
def lag() -> ResponseReturnValue:
    """Show the gauges of all patterns, and the cost of this process."""
    cost = clients().meter.total()
    gauges, unread = registry().read_gauges(clients())
    return render("lag.html", gauges=gauges, unread=unread, alerts=ALERT_ABOVE, cost=asdict(cost))


@page
def audit() -> ResponseReturnValue:
    """Show who changed what."""
    chosen = ListChoice.of(request.args)
    before = time_of(request.args.get("before", ""), "before")
    since, until = chosen.bounds(clients().clock.now())
    ends = [at for at in (before, until) if at]
    entries, next_before = list_audit(since=since, until=min(ends, default=None), limit=PAGE_ROWS)
    older = ""
    if next_before:
        older = with_query("/audit", **chosen.fields, before=next_before.isoformat())
    return render(
        "audit.html",
        entries=[audit_row(entry) for entry in entries],
        chosen=chosen,
        older=older,
        is_first=before is None,
        first=with_query("/audit", **chosen.fields),
    )


ROUTES: Routes = (
    ("/lag", "GET", lag),
    ("/audit", "GET", audit),
)
