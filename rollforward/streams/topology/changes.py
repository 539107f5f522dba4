"""Changes of a topology: computations are attached, replaced by another version, and detached.

Each begins with one commit on the head, under a layout of its own, and is done by itself from there
(teardown.py): so it does not matter whether whoever has begun it is still there. Before that commit
nothing is changed, and what would not do is refused.

A sender's commits follow each other. Those under the layout of before do not know the change, all
later ones do: so each record goes to a computation that is attached, or it does not, as its sender
knew it; and each interval of one that is replaced has one commit from which on the new version
runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rollforward.streams.exchange.wakeups import wake_intervals
from rollforward.streams.graph.environment import Environment
from rollforward.streams.graph.head import MAX_ATTEMPTS, read_head, with_intervals, with_sources
from rollforward.streams.graph.plan import (
    ATTACHING,
    DISCARDING,
    DRAINING,
    REPLACING,
    RUNNING,
    ActivePipeline,
    MissingVersion,
    RunningComputation,
    running_computation,
    running_computations,
)
from rollforward.streams.model.computation import Computation
from rollforward.streams.model.errors import TopologyError, UnknownStreamError
from rollforward.streams.model.sink import Sink
from rollforward.streams.storage.remote_calls import (
    ChangedError,
    Commit,
    OutcomeUnknownError,
    Steps,
)
from rollforward.streams.storage.schema import Head
from rollforward.streams.topology.compatibility import check_stored_states
from rollforward.streams.watermarks.cut_reader import read_cut
from rollforward.streams.watermarks.publishing import published

# Returns the topology with a change, or None: there is nothing to do.
Changed = Callable[[Head], dict[str, RunningComputation] | None]


def attach(environment: Environment, name: str, version: int | None) -> Steps[None]:
    """Have a computation run, from here on.

    Raises:
        UnknownStreamError: this code has no such version of it.
        TopologyError: it cannot run here, or another version of it does.
        ChangedError: others were faster again and again; nothing was changed.
    """
    code = _code(environment, name, version)

    def changed(head: Head) -> dict[str, RunningComputation] | None:
        parts = running_computations(head)
        if name in parts:
            if parts[name].is_leaving:
                raise TopologyError(f"{name} is being detached: attach it when that is done")
            if parts[name].version != code.version:
                raise TopologyError(
                    f"version {parts[name].version} of {name} runs: replace it by another one"
                )
            return None
        return {**parts, name: running_computation(code, ATTACHING, head.layout_version + 1)}

    yield from _change(environment, changed, code)


def replace(environment: Environment, name: str, version: int | None) -> Steps[None]:
    """Have another version of a computation go on where the one that runs is.

    Raises:
        UnknownStreamError: there is no such computation, or no such version of it in this code.
        UnreadableStateError: it cannot read what is stored; nothing was changed.
        TopologyError: it cannot take the other's place, or not now.
        ChangedError: others were faster again and again; nothing was changed.
    """
    code = _code(environment, name, version)
    head = yield from read_head(environment)
    part = running_computations(head.body).get(name)
    stored_versions: Sequence[int] = ()
    if part is not None and part.phase == RUNNING and part.version != code.version:
        stored_versions = yield from check_stored_states(environment, head.body, code, part)

    def changed(head: Head) -> dict[str, RunningComputation] | None:
        parts = running_computations(head)
        if name not in parts:
            raise UnknownStreamError(f"{name} does not run: attach it")
        was = parts[name]
        if was.version == code.version and not was.is_leaving:
            return None
        if was.phase != RUNNING:
            raise TopologyError(f"{name} is {was.phase}: try again when that is done")
        if was != part:
            raise ChangedError  # Its states are others than were tried.
        _check_replaces(environment.at(head).computation(name), was, code)
        new = running_computation(code, REPLACING, head.layout_version + 1)
        stored = tuple(sorted({*stored_versions, was.version, code.version}))
        return {
            **parts,
            name: new._replace(
                previous_version=was.version, previous_outputs=was.written, stored_versions=stored
            ),
        }

    yield from _change(environment, changed, code)


def detach(environment: Environment, name: str, *, discard: bool) -> Steps[None]:
    """Have a computation leave, when it has worked on what lies before it, or at once.

    Raises:
        UnknownStreamError: it does not run.
        TopologyError: others need it.
        ChangedError: others were faster again and again; nothing was changed.
    """
    phase = DISCARDING if discard else DRAINING

    def changed(head: Head) -> dict[str, RunningComputation] | None:
        parts = running_computations(head)
        if name not in parts:
            return None
        was = parts[name]
        if was.is_leaving and (was.phase != DRAINING or not discard):
            return None
        if not discard and isinstance(environment.at(head).computation(name), MissingVersion):
            raise TopologyError(f"this code cannot drain {name}, which it does not have")
        return {**parts, name: was._replace(phase=phase, since=head.layout_version + 1)}

    head = yield from read_head(environment)
    if name not in running_computations(head.body):
        environment.pipeline.any_version(name)
    yield from _change(environment, changed, None)


def _code(environment: Environment, name: str, version: int | None) -> Computation:
    """Return a version of a computation, the latest one if none is asked for."""
    pipeline = environment.pipeline
    if version is None:
        return pipeline.any_version(name)
    if (name, version) not in pipeline.versions:
        raise UnknownStreamError(f"{pipeline.name} has no version {version} of {name} in this code")
    return pipeline.versions[name, version]


def _check_replaces(was: Computation, part: RunningComputation, code: Computation) -> None:
    """Check that a version can go on with the inbox and the timers of another one.

    Raises:
        TopologyError: it cannot.
    """
    if {*part.inputs} != {*code.inputs}:
        raise TopologyError(
            f"version {code.version} of {code.name} does not read {', '.join(part.inputs)}, as the "
            "one that runs, which shares its inbox with it: attach it under another name"
        )
    if part.weak != code.weak:
        raise TopologyError(
            f"version {code.version} of {code.name} is weak, or the one that runs: others would "
            "run it while it runs itself: attach it under another name"
        )
    if (part.sink or isinstance(was, Sink)) != isinstance(code, Sink):
        raise TopologyError(
            f"version {code.version} of {code.name} is a sink, or the one that runs is: attach it "
            "under another name"
        )
    if was.percentile != code.percentile:
        raise TopologyError(
            f"version {code.version} of {code.name} has another `percentile`: its watermark would "
            "go back"
        )


def _change(environment: Environment, changed: Changed, code: Computation | None) -> Steps[None]:
    """Commit a change of a topology, and have it looked after."""
    for _ in range(MAX_ATTEMPTS):
        yield from read_head(environment)
        commit = yield from _plan(environment, changed, code)
        if commit is None:
            break
        try:
            yield commit
        except (ChangedError, OutcomeUnknownError):
            continue  # If it was applied after all, there is nothing to do.
        break
    else:
        raise ChangedError
    yield from wake_intervals(environment, [], tick=True)


def _plan(
    environment: Environment, changed: Changed, code: Computation | None
) -> Steps[Commit | None]:
    """Return the commit of a change; None: there is nothing to change."""

    def change(head: Head) -> Head:
        parts = changed(head)
        if parts is None:
            return head
        after = head._replace(layout_version=head.layout_version + 1, topology=parts)
        _check(environment.at(head), environment.at(after))
        return after

    cut = yield from read_cut(environment, change)
    assert cut is not None
    assert cut.was is not None
    head, before = cut.head.body, environment.at(cut.was)
    if head is cut.was:
        return None
    _check_in_time(cut.was, cut.lower_bounds)
    commit, head = published(environment, cut)
    if code is not None and code.name not in head.intervals:
        head, commit.inserts = with_intervals(environment, head, [code], head.layout_version)
    new = [each for each in cut.plan.sources if each not in before.sources]
    head, rows = with_sources(environment, head, new, cut.rows)
    commit.inserts += rows
    commit.puts.append((environment.names.head, head, cut.head.version))
    return commit


def _check_in_time(head: Head, lower_bounds: Mapping[str, int]) -> None:
    """Check that nothing that will come lies behind the watermark of who gets it.

    Raises:
        TopologyError: it would be lost from sight.
    """
    for name, low in lower_bounds.items():
        if low < head.inputs.get(name, 0):
            raise TopologyError(
                f"what {name} would get lies behind its watermark: it would come too late"
            )


def _check(before: ActivePipeline, after: ActivePipeline) -> None:
    """Check that a topology can take the place of another.

    Raises:
        TopologyError: it cannot; the text says why.
    """
    staying = [name for name in after.computations if after.accepts_input(name)]
    if not staying:
        raise TopologyError("a pipeline has computations: this is its last one")
    written = {stream for name in staying for stream in after.running[name].written}
    outside = {stream for stream in before.sources if before.graph.readers[stream]}
    for name in staying:
        for stream in after.running[name].inputs:
            is_new = name not in before.computations or stream not in before.running[name].inputs
            if stream in written or stream in outside:
                continue
            if not is_new or stream not in after.known_sources:
                raise TopologyError(f"nobody would write {stream!r}, which {name} reads")
    if pushed := sorted(written & outside):
        raise TopologyError(f"{', '.join(pushed)} comes from outside: no computation can write it")
    try:
        _ = after.graph.order
        after.check_weak()
    except TypeError as error:
        raise TopologyError(str(error)) from error
