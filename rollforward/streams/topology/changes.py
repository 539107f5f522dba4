"""Topology changes: computations are attached, replaced by another version, and detached.

A change begins with one commit on the head, under a layout of its own. From there the ticks finish
it (teardown.py), whether or not the process that began it still runs. Before the commit nothing is
changed, and invalid changes are refused.

The commits of a sender follow each other. Commits under the previous layout do not know the change;
all later ones do. So each record goes to an attached computation or not, as its sender knew it. And
each interval of a replaced computation has one commit from which on the new version runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rollforward.streams.exchange.wakeups import wake_intervals
from rollforward.streams.graph.environment import Environment
from rollforward.streams.graph.head import (
    MAX_FIRST_ROWS,
    read_head,
    with_intervals,
    with_sources,
)
from rollforward.streams.graph.plan import (
    ATTACHING,
    DISCARDING,
    DRAINING,
    REPLACING,
    RUNNING,
    MissingVersion,
    RunningComputation,
    running_computation,
    running_computations,
)
from rollforward.streams.model.computation import Computation
from rollforward.streams.model.errors import TopologyError, UnknownStreamError
from rollforward.streams.publications.registration import drop_removed, subscribers
from rollforward.streams.storage.remote_calls import (
    ChangedError,
    Commit,
    Key,
    OutcomeUnknownError,
    Steps,
)
from rollforward.streams.storage.retry import StaleReadError, retry_commit
from rollforward.streams.storage.schema import Head
from rollforward.streams.storage.serde import MAX_COMMIT_ROWS
from rollforward.streams.topology.compatibility import (
    check_replaces,
    check_stored_states,
    check_topology,
)
from rollforward.streams.watermarks.cut_reader import read_cut
from rollforward.streams.watermarks.publishing import published

Computations = dict[str, RunningComputation]
# Returns the topology with a change, or None: there is nothing to do.
Changed = Callable[[Head], Computations | None]


def attach(environment: Environment, name: str, version: int | None) -> Steps[None]:
    """Attach a computation: it runs from now on.

    Raises:
        UnknownStreamError: this code does not have the version.
        TopologyError: it cannot run here, or another version of it does.
        ChangedError: every attempt lost its race; nothing was changed.
    """
    code = _code(environment, name, version)

    def changed(head: Head) -> Computations | None:
        running = running_computations(head)
        if name in running:
            if running[name].is_leaving:
                raise TopologyError(f"{name} is being detached: attach it when that is done")
            if running[name].version != code.version:
                raise TopologyError(
                    f"version {running[name].version} of {name} runs: replace it instead"
                )
            return None
        return {**running, name: running_computation(code, ATTACHING, head.layout_version + 1)}

    yield from _change(environment, changed, code)


def replace(environment: Environment, name: str, version: int | None) -> Steps[None]:
    """Replace the running version of a computation; the other version continues its intervals.

    Raises:
        UnknownStreamError: this code does not have the computation, or the version.
        UnreadableStateError: the version cannot read the stored states; nothing was changed.
        TopologyError: it cannot take the other's place, or not now.
        ChangedError: every attempt lost its race; nothing was changed.
    """
    code = _code(environment, name, version)
    head = yield from read_head(environment)
    _check_not_stopped(environment, head.body)
    tried = running_computations(head.body).get(name)
    stored_versions: Sequence[int] = ()
    if tried is not None and tried.phase == RUNNING and tried.version != code.version:
        stored_versions = yield from check_stored_states(environment, head.body, code, tried)

    def changed(head: Head) -> Computations | None:
        running = running_computations(head)
        if name not in running:
            raise UnknownStreamError(f"{name} does not run: attach it")
        current = running[name]
        if current.version == code.version and not current.is_leaving:
            return None
        if current.phase != RUNNING:
            raise TopologyError(f"{name} is {current.phase}: retry when that is done")
        if current != tried:
            raise ChangedError  # The stored states may be others than were read.
        check_replaces(environment.at(head).computation(name), current, code)
        successor = running_computation(code, REPLACING, head.layout_version + 1)
        return {
            **running,
            name: successor._replace(
                previous_version=current.version,
                previous_outputs=current.written,
                stored_versions=tuple(sorted({*stored_versions, current.version, code.version})),
            ),
        }

    yield from _change(environment, changed, code)


def detach(environment: Environment, name: str, *, discard: bool) -> Steps[None]:
    """Detach a computation, after it has drained or at once.

    Raises:
        UnknownStreamError: it does not run.
        TopologyError: other computations need it, or other pipelines read it.
        ChangedError: every attempt lost its race; nothing was changed.
    """
    phase = DISCARDING if discard else DRAINING

    def changed(head: Head) -> Computations | None:
        running = running_computations(head)
        if name not in running:
            return None
        current = running[name]
        if current.is_leaving and (current.phase != DRAINING or not discard):
            return None
        if not discard and isinstance(environment.at(head).computation(name), MissingVersion):
            raise TopologyError(f"this code cannot drain {name}, which it does not have")
        return {**running, name: current._replace(phase=phase, since=head.layout_version + 1)}

    head = yield from read_head(environment)
    if name not in running_computations(head.body):
        environment.pipeline.any_version(name)
    yield from _change(environment, changed, None, leaving=name)


def _code(environment: Environment, name: str, version: int | None) -> Computation:
    """Return a version of a computation; None: the latest one."""
    pipeline = environment.pipeline
    if version is None:
        return pipeline.any_version(name)
    if (name, version) not in pipeline.versions:
        raise UnknownStreamError(f"{pipeline.name} has no version {version} of {name} in this code")
    return pipeline.versions[name, version]


def _change(
    environment: Environment, changed: Changed, code: Computation | None, *, leaving: str = ""
) -> Steps[None]:
    """Commit a topology change, and schedule the tick that advances it.

    Args:
        leaving: The computation that is detached.
    """

    def prepare(failure: Exception | None) -> Steps[Commit | None]:
        yield from read_head(environment)
        # If an earlier attempt was applied after all, there is nothing to change.
        commit = yield from _change_commit(environment, changed, code)
        if leaving and commit is not None:
            yield from _check_without_subscribers(environment, leaving)
        return commit

    yield from retry_commit(prepare)
    yield from wake_intervals(environment, [], tick=True)


def _change_commit(
    environment: Environment, changed: Changed, code: Computation | None
) -> Steps[Commit | None]:
    """Return the commit of a change; None: there is nothing to change."""

    def change(head: Head) -> Head:
        _check_not_stopped(environment, head)
        computations = changed(head)
        if computations is None:
            return head
        new_head = head._replace(layout_version=head.layout_version + 1, topology=computations)
        check_topology(environment.at(head), environment.at(new_head))
        return new_head

    cut = yield from read_cut(environment, change)
    assert cut is not None
    assert cut.stored_head is not None
    if cut.head.body is cut.stored_head:
        return None
    _check_on_time(cut.stored_head, cut.lower_bounds)
    # An idle sender that begins to work meanwhile cannot know the new layout yet, so each attempt
    # would lose the race to such a sender. The next tick acknowledges for idle senders.
    commit, head = published(environment, cut, acknowledges=False)
    if code is not None and code.name not in head.intervals:
        head, commit.inserts = with_intervals(environment, head, [code], head.layout_version)
    old_sources = environment.at(cut.stored_head).sources
    new_sources = [stream for stream in cut.plan.sources if stream not in old_sources]
    head, rows = with_sources(environment, head, new_sources, cut.rows)
    if len(commit.puts) + len(commit.inserts) + len(rows) >= MAX_COMMIT_ROWS:
        yield from _insert_early(rows[:MAX_FIRST_ROWS])
    commit.inserts += rows
    commit.puts.append((environment.names.head, head, cut.head.version))
    return commit


def _insert_early(rows: Sequence[tuple[Key, Any]]) -> Steps[None]:
    """Insert rows of new sources for which the commit has no room: the head does not name them yet.

    Raises:
        StaleReadError: always; the change begins again with these rows.
    """
    with contextlib.suppress(ChangedError, OutcomeUnknownError):  # They may be there already.
        yield Commit(inserts=list(rows))
    raise StaleReadError


def _check_not_stopped(environment: Environment, head: Head) -> None:
    """Check that a pipeline is not stopped: `resume` brings back the topology of before.

    Raises:
        TopologyError: it is.
    """
    if head.stopped:
        raise TopologyError(f"{environment.pipeline.name} is stopped: resume it first")


def _check_without_subscribers(environment: Environment, name: str) -> Steps[None]:
    """Check that no other pipeline reads a computation that publishes a stream.

    The head was read before, and the commit of the change names its version, as a new subscriber's
    commit does.

    Raises:
        TopologyError: some do; the text has their names.
    """
    yield from drop_removed(environment, name)
    if readers := (yield from subscribers(environment, name)):
        raise TopologyError(
            f"{', '.join(map(str, readers))} reads {name}: detach its readers there first, or "
            "`unsubscribe` it"
        )


def _check_on_time(head: Head, lower_bounds: Mapping[str, int]) -> None:
    """Check that no future input of a computation is behind its watermark.

    Raises:
        TopologyError: it would be late without being marked.
    """
    for name, low in lower_bounds.items():
        if low < head.inputs.get(name, 0):
            raise TopologyError(f"{name} would get records behind its watermark, which are late")
