"""Lag and cost, and the audit trail."""

from __future__ import annotations

from dataclasses import asdict

from flask import request
from flask.typing import ResponseReturnValue

from rollforward.console.api.queries import PAGE_ROWS, time_of
from rollforward.console.api.rows import audit_row
from rollforward.console.pages.frame import Routes, page, render, with_query
from rollforward.flask.context import clients, registry
from rollforward.look.lists import ListChoice
from rollforward.operations import list_audit


@page
def lag() -> ResponseReturnValue:
    """Show the gauges of all patterns, and the cost of this process."""
    cost = clients().meter.total()
    return render("lag.html", gauges=list(registry().gauges(clients())), cost=asdict(cost))


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
