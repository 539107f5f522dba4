"""The cost of each request, booked to its route or task, in the app that `make run` starts."""

from __future__ import annotations

from pathlib import Path

from flask import Flask, request

from rollforward.flask.context import clients, registry, request_notes
from rollforward.runtime import Meter
from rollforward.runtime.process.cost_report import CostReport

NO_ROUTE = "(no route)"


def register(app: Flask, report: CostReport) -> None:
    """Book the remote calls of each request's thread until its response is made."""

    @app.before_request
    def begin() -> None:
        request_notes()["spent_before"] = clients().meter.cost()

    @app.teardown_request
    def end(error: BaseException | None) -> None:
        spent_before = request_notes().pop("spent_before", None)
        if spent_before is not None:
            report.add(*_called(), clients().meter.cost() - spent_before)


def open_report(folder: str, meter: Meter) -> CostReport:
    """Return a report that writes itself down."""
    report = CostReport(Path(folder), meter)
    report.start()
    return report


def _called() -> tuple[str, str]:
    """Return the kind and the declared name of the endpoint: never a path of a caller's own."""
    if request.path in registry().tasks:
        return "task", request.path
    if request.url_rule is None:
        return "route", NO_ROUTE
    return "route", f"{request.method} {request.url_rule.rule}"
