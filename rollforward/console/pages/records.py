"""Lag and cost, and the audit trail."""

from __future__ import annotations

from dataclasses import asdict

from flask import request
from flask.typing import ResponseReturnValue

from rollforward.console.api.queries import PAGE_ROWS, time_of
from rollforward.console.api.rows import audit_row
from rollforward.console.pages.frame import Routes, page, render, with_query
from rollforward.flask.context import clients, registry
from rollforward.operations import list_audit


@page
def lag() -> ResponseReturnValue:
    """Show the gauges of all patterns, and the cost of this process."""
    cost = clients().meter.total()
    return render("lag.html", gauges=list(registry().gauges(clients())), cost=asdict(cost))


@page
def audit() -> ResponseReturnValue:
    """Show who changed what."""
    until = time_of(request.args.get("before", ""), "before")
    entries, next_before = list_audit(until=until, limit=PAGE_ROWS)
    older = with_query("/audit", before=next_before.isoformat()) if next_before else ""
    return render(
        "audit.html",
        entries=[audit_row(entry) for entry in entries],
        older=older,
        is_first=until is None,
        first=with_query("/audit"),
    )


ROUTES: Routes = (
    ("/lag", "GET", lag),
    ("/audit", "GET", audit),
)
