"""Stopping: from one moment on, nothing of a pipeline is processed or accepted.

The head gives each computation a version that no code has, the negative of its own. Workers and
sources leave that computation to others, and their tasks and pushes are retried. Those that have
read the earlier head may still commit. So each row that their commits compare is then written once:
commits in flight fail, and the next ones read the new head. After that neither states nor inboxes
change, and the watermarks of that moment are stored in the head.
"""

from __future__ import annotations

from typing import Any

from rollforward.runtime.clients import Clients
from rollforward.streams.driver import run_steps
from rollforward.streams.exchange.wakeups import wake_intervals
from rollforward.streams.graph.declaration import Declaration
from rollforward.streams.graph.environment import Environment
from rollforward.streams.graph.head import read_head
from rollforward.streams.graph.plan import (
    has_pending_change,
    running_computations,
    stopped_topology,
)
from rollforward.streams.model.errors import TopologyError
from rollforward.streams.storage.remote_calls import Commit, Key, Read, Steps, StoredRow
from rollforward.streams.storage.retry import retry_commit
from rollforward.streams.storage.schema import INTERVAL, Head


def stop(clients: Clients, pipeline: Declaration) -> None:
    """Stop a pipeline: pushes are refused with `Retry`, and its tasks wait.

    It may be repeated, also after a failure. Let all pushes be answered first: one that is in doubt
    can be repeated neither here nor, without being counted twice, elsewhere.

    Raises:
        TopologyError: a computation is being attached, replaced or detached, or an import into it
            is not finished; nothing was changed.
        Retry, Unavailable: repeat it; it may have been done.
    """
    run_steps(clients, pipeline, stop_steps)


def resume(clients: Clients, pipeline: Declaration) -> None:
    """Take a stop back: the pipeline continues where it was.

    Raises:
        TopologyError: an import into it is not finished.
        Retry, Unavailable: repeat it; it may have been done.
    """
    run_steps(clients, pipeline, resume_steps)


def stop_steps(environment: Environment) -> Steps[None]:
    """Stop a pipeline; it may be repeated."""
    yield from retry_commit(lambda failure: _mark(environment))
    head = yield from read_head(environment)
    yield from _fence(environment, head.body)
    yield from retry_commit(lambda failure: _keep_watermarks(environment))


def resume_steps(environment: Environment) -> Steps[None]:
    """Take a stop back; it may be repeated."""
    yield from retry_commit(lambda failure: _unmark(environment))
    yield from wake_all(environment)


def wake_all(environment: Environment) -> Steps[None]:
    """Wake every interval, and the tick."""
    head = yield from read_head(environment)
    targets = [(name, lo) for name, los in head.body.intervals.items() for lo in los]
    yield from wake_intervals(environment, targets, tick=True)


def started(head: Head) -> Head:
    """Return a stopped head that runs again."""
    topology = head.stopped["topology"]
    return head._replace(topology=topology, stopped={}, layout_version=head.layout_version + 1)


def _mark(environment: Environment) -> Steps[Commit | None]:
    head = yield from read_head(environment)
    _check_imported(head.body)
    if head.body.stopped:
        return None
    if has_pending_change(head.body):
        raise TopologyError("its topology is being changed: stop it when that is done")
    stopped = {
        "id": environment.new_id(),
        "at_ms": environment.now_ms(),
        "topology": head.body.topology,
    }
    body = head.body._replace(
        topology=stopped_topology(running_computations(head.body)),
        stopped=stopped,
        layout_version=head.body.layout_version + 1,
    )
    return Commit(puts=[(environment.names.head, body, head.version)])


def _fence(environment: Environment, head: Head) -> Steps[None]:
    """Write each row that a commit in flight compares, so that the commit fails."""
    names = environment.names
    keys = [names.interval(name, lo) for name, los in head.intervals.items() for lo in los]
    keys += [
        names.source(stream, process)
        for stream, processes in head.processes.items()
        for process in processes
    ]
    for key in keys:
        yield from _fence_row(key, head.layout_version)


def _fence_row(key: Key, layout_version: int) -> Steps[None]:
    def prepare(failure: Exception | None) -> Steps[Commit | None]:
        [row] = yield Read([key])
        if row is None or row.body.layout_version >= layout_version:
            return None
        body = row.body._replace(layout_version=layout_version)
        if key.kind == INTERVAL:
            body = body._replace(seq=body.seq + 1, owner="", lease_ms=0, crash_count=0)
        return Commit(puts=[(key, body, row.version)])

    yield from retry_commit(prepare)


def _keep_watermarks(environment: Environment) -> Steps[Commit | None]:
    """Store the watermarks, which ticks continue to move."""
    head = yield from read_head(environment)
    stopped = head.body.stopped
    if "inputs" in stopped or not stopped:
        return None
    sources = yield from _sources(environment, head)
    kept = {
        **stopped,
        "inputs": head.body.inputs,
        "percentiles": head.body.percentile_watermarks,
        "sources": sources,
    }
    body = head.body._replace(stopped=kept)
    return Commit(puts=[(environment.names.head, body, head.version)])


def _sources(environment: Environment, head: StoredRow) -> Steps[list[list[Any]]]:
    """Return stream, process, watermark and position of each process of a source."""
    places = [
        (stream, process)
        for stream, processes in head.body.processes.items()
        for process in processes
    ]
    rows = yield Read([environment.names.source(*place) for place in places])
    return [
        [*place, row.body.watermark, row.body.position]
        for place, row in zip(places, rows, strict=True)
        if row is not None
    ]


def _unmark(environment: Environment) -> Steps[Commit | None]:
    head = yield from read_head(environment)
    if not head.body.stopped:
        return None
    _check_imported(head.body)
    return Commit(puts=[(environment.names.head, started(head.body), head.version)])


def _check_imported(head: Head) -> None:
    """Check that the end of an import does not let the pipeline run.

    Raises:
        TopologyError: an import into it is not finished.
    """
    if "import" in head.stopped:
        raise TopologyError("an import into it is not finished: repeat the import")
