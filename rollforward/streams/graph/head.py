"""The head of a pipeline: its first rows, and reads of it."""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterable
from typing import Any

from rollforward.streams.graph.environment import Environment
from rollforward.streams.graph.plan import initial_computations, with_process
from rollforward.streams.model.computation import Computation
from rollforward.streams.model.slots import SLOTS, first_slots
from rollforward.streams.storage.remote_calls import (
    ChangedError,
    Commit,
    Key,
    OutcomeUnknownError,
    Read,
    Steps,
    StoredRow,
)
from rollforward.streams.storage.retry import MAX_ATTEMPTS
from rollforward.streams.storage.schema import Head, Interval, Slab, SourceRow

# Of one interval, which are never used again by another of its name.
GENERATIONS = 2**32


def read_head(environment: Environment) -> Steps[StoredRow]:
    """Read the head of a pipeline; make what rows are missing when it first runs.

    Raises:
        ChangedError: again and again others were faster, or it is not known what became of that.
    """
    pipeline, names = environment.pipeline, environment.names
    for _ in range(MAX_ATTEMPTS):
        [head] = yield Read([names.head])
        if is_complete(environment, head):
            return head  # type: ignore[no-any-return]
        body = head.body if head is not None else Head()
        new = [each for each in pipeline.computations.values() if each.name not in body.intervals]
        after, inserts = with_intervals(environment, body, new)
        commit = Commit(inserts=inserts)
        after = after._replace(topology=initial_computations(pipeline))
        if head is None:
            after, rows = with_sources(environment, after, pipeline.sources)
            commit.inserts += [(names.head, after), *rows]
        else:
            commit.puts.append((names.head, after, head.version))
        with contextlib.suppress(ChangedError, OutcomeUnknownError):
            yield commit
    raise ChangedError


def is_complete(environment: Environment, head: StoredRow | None) -> bool:
    """Return whether a pipeline has all rows that it begins with."""
    return head is not None and bool(head.body.topology)


def with_intervals(
    environment: Environment, head: Head, computations: Iterable[Computation], created_in: int = 0
) -> tuple[Head, list[tuple[Key, Any]]]:
    """Return a head with the intervals of new computations, and the rows of those.

    Args:
        born: The layout that they come with. It sets them apart from others of the same name that
            were here before: by their inboxes, generations and rows of ids.
    """
    intervals, created_in_by_place = dict(head.intervals), dict(head.created_in_by_place)
    rows: list[tuple[Key, Any]] = []
    for each in computations:
        los = intervals[each.name] = first_slots(environment.pipeline.intervals_of(each))
        for lo, hi in zip(los, [*los[1:], SLOTS], strict=True):
            row = Interval(
                hi,
                gen=created_in * GENERATIONS,
                slabs=(Slab(lo),),
                created_in=created_in,
                layout_version=created_in,
            )
            rows.append((environment.names.interval(each.name, lo), row))
            if created_in:
                created_in_by_place[f"{each.name}:{lo:04x}"] = created_in
    return head._replace(intervals=intervals, created_in_by_place=created_in_by_place), rows


def with_sources(
    environment: Environment, head: Head, streams: Iterable[str], known: Container[Any] = ()
) -> tuple[Head, list[tuple[Key, Any]]]:
    """Return a head that knows all processes of sources, and their rows: all are expected.

    Args:
        known: The streams and processes that have a row.
    """
    rows: list[tuple[Key, Any]] = []
    for stream in streams:
        for process in environment.pipeline.source(stream).processes:
            head = with_process(head, stream, process)
            if (stream, process) not in known:
                row = SourceRow(seen_ms=environment.now_ms(), layout_version=head.layout_version)
                rows.append((environment.names.source(stream, process), row))
    return head, rows


def look_at_head(environment: Environment) -> Steps[Head]:
    """Return the head of a pipeline, which may never have run: whoever looks changes nothing."""
    [found] = yield Read([environment.names.head])
    return Head() if found is None else found.body
