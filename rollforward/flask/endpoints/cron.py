"""Endpoints of the scheduler; cron.yaml has their times."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from flask import Blueprint, jsonify
from flask.typing import ResponseReturnValue

from rollforward.flask.context import clients, registry, wiring
from rollforward.flask.endpoints.tasks import ANY_METHOD
from rollforward.flask.guards.auth import cron_only
from rollforward.operations.sweeps import note_sweeps
from rollforward.runtime.run_all import run_all

bp = Blueprint("rollforward_cron", __name__, url_prefix="/cron")


@bp.get("/sweep", provide_automatic_options=False)
@cron_only
def sweep_all() -> ResponseReturnValue:
    """Sweep every pattern; one that fails stops none, and is null in the response."""
    done = registry().sweep_all(clients(), deletes=True)
    note_sweeps(clients(), (name for name, counts in done.items() if counts is not None))
    _export_gauges(registry().patterns)
    return jsonify(done), 500 if None in done.values() else 200


@bp.get("/<pattern>/sweep", provide_automatic_options=False)
@cron_only
def sweep(pattern: str) -> ResponseReturnValue:
    """Wake overdue work of one pattern; delete expired rows."""
    entry = registry().patterns.get(pattern)
    if entry is None or not entry.is_swept:
        return "", 404
    done = registry().sweep(clients(), pattern, deletes=True)
    note_sweeps(clients(), [pattern])
    _export_gauges([pattern])
    return jsonify(done)


def _export_gauges(patterns: Iterable[str]) -> None:
    """Export the gauges of patterns, if the app has an SDK for metrics; a failure is logged."""
    export = wiring().gauge_export
    if not export.is_on:
        return

    def read(name: str) -> None:
        gauges = registry().patterns[name].gauges(clients(), registry().parts(name))
        export.record(gauges)

    run_all((f"the gauges of {name} are not exported", partial(read, name)) for name in patterns)


@bp.route("/<path:rest>", methods=ANY_METHOD, provide_automatic_options=False)
@cron_only
def unknown(rest: str) -> ResponseReturnValue:
    """Answer 404 for an unknown sweep, to the scheduler alone: a stranger learns no route."""
    return "", 404
