"""Flows as an operator sees them: listed, looked at, cancelled, retried."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from rollforward.flows import changes, inspection
from rollforward.flows.errors import FlowRefusedError, UnknownFlowError
from rollforward.flows.rows.entities import (
    FlowRun,
    failed_flows,
    failed_flows_created_at,
    flows_created_at,
    latest_flows,
    run_key,
)
from rollforward.runtime.clients import Clients
from rollforward.tasks.runs import (
    Run,
    RunDetails,
    RunList,
    RunQuery,
    RunRefusedError,
    RunVerb,
    UnknownRunError,
    latest_rows,
    readable,
)

if TYPE_CHECKING:
    from rollforward.flows.declaration import Flow

MAX_RUN_ID_BYTES = 300


def list_runs(names: Sequence[str], query: RunQuery) -> RunList:
    """Return flows, the newest first: about `limit`, of the rows that were read.

    Failed ones have an index of their own: none is behind many that have not failed.
    """
    scan, before, at = query, _latest, flows_created_at
    if query.state == "failed":
        scan, before, at = replace(query, state=""), _failed, failed_flows_created_at
    shown, next_before = latest_rows(
        scan, before, at, lambda row: row.created, partial(_matches, query)
    )
    return RunList([_to_run(names, row) for row in shown], next_before)


def _to_run(names: Sequence[str], row: FlowRun) -> Run:
    created = row.created.replace(tzinfo=datetime.UTC)
    read = partial(inspection.run_of, names, row)
    return readable(inspection.PATTERN, row.key.id(), inspection.name_of(row), created, read)


def run_details(names: Sequence[str], run_id: str) -> RunDetails:
    """Return a flow with its steps.

    Raises:
        UnknownRunError: it does not exist, or no more.
    """
    return inspection.details_of(names, _row(run_id))


def control(
    clients: Clients,
    flows: Mapping[str, Flow[Any]],
    run_id: str,
    verb: RunVerb,
    *,
    request_id: str = "",
) -> str:
    """Cancel a flow, once for a request; return its id.

    Raises:
        UnknownRunError: it does not exist, or no more.
        RunRefusedError: not as it is now; the text says why.
    """

    def change(flow: Flow[Any], row: FlowRun) -> None:
        is_known = bool(request_id) and changes.cancellation_id(request_id) in row.retries
        if not is_known and verb not in inspection.actions_of(list(flows), row):
            raise FlowRefusedError(f"it is a flow that is {row.state}")
        flow.cancel(clients, row.flow_id, request_id=request_id)

    return _change(flows, run_id, change)


def retry(
    clients: Clients,
    flows: Mapping[str, Flow[Any]],
    run_id: str,
    *,
    from_step: str,
    runs: int,
    request_id: str,
) -> str:
    """Retry a flow that has failed, or run a step and all later ones again; return its id.

    Raises:
        UnknownRunError: it does not exist, or no more.
        RunRefusedError: not as it is now, or it has no step of this name; the text says why.
    """

    def change(flow: Flow[Any], row: FlowRun) -> None:
        changes.retry(
            *(clients, flow, row.flow_id, from_step), generation=runs, request_id=request_id
        )

    return _change(flows, run_id, change)


def _change(
    flows: Mapping[str, Flow[Any]], run_id: str, change: Callable[[Flow[Any], FlowRun], None]
) -> str:
    row = _row(run_id)
    name = inspection.name_of(row)
    if name not in flows:
        raise RunRefusedError(f"this app declares no flow {name}")
    try:
        change(flows[name], row)
    except UnknownFlowError as error:
        raise UnknownRunError(str(error)) from error
    except FlowRefusedError as error:
        raise RunRefusedError(str(error)) from error
    return run_id


def _row(run_id: str) -> FlowRun:
    row: FlowRun | None = (
        run_key(run_id).get() if 0 < len(run_id.encode()) <= MAX_RUN_ID_BYTES else None
    )
    if row is None:
        raise UnknownRunError(f"there is no flow {run_id}, or no more")
    return row


def _latest(created_before: datetime.datetime | None) -> Any:
    return latest_flows(created_before=created_before)


def _failed(created_before: datetime.datetime | None) -> Any:
    return failed_flows(created_before=created_before)


def _matches(query: RunQuery, row: FlowRun) -> bool:
    return query.state in ("", inspection.state_of(row)) and query.name in (
        "",
        inspection.name_of(row),
    )
