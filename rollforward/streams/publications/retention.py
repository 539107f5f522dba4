"""Retention: rows of a log that are old and read by all subscribers are deleted."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Sequence

from rollforward.streams.graph.environment import Environment
from rollforward.streams.model.slots import first_slots
from rollforward.streams.publications.log import Position, position_of
from rollforward.streams.publications.publication import Publication
from rollforward.streams.publications.registration import drop_removed, subscribers
from rollforward.streams.storage.remote_calls import (
    ChangedError,
    Commit,
    Key,
    OutcomeUnknownError,
    ScanKeys,
    Steps,
)
from rollforward.streams.storage.schema import LOG

# In one commit, and commits of one sweep for each partition: more than a worker writes meanwhile.
MAX_DELETED, MAX_COMMITS = 400, 15


def delete_read_rows(environment: Environment) -> Steps[int]:
    """Delete old rows of all publications of this code, also of detached ones; return how many."""
    deleted, by_name = 0, defaultdict[str, list[Publication]](list)
    for sink in environment.pipeline.sinks:
        if isinstance(sink, Publication):
            by_name[sink.name].append(sink)
    for name, versions in by_name.items():
        with contextlib.suppress(ChangedError, OutcomeUnknownError):  # The next sweep goes on.
            yield from drop_removed(environment, name)
            deleted += yield from _delete_rows_of(environment, name, versions)
    return deleted


def _delete_rows_of(
    environment: Environment, name: str, versions: Sequence[Publication]
) -> Steps[int]:
    """Delete old rows of a publication, by the longest time that a version of it asks for."""
    keep_ms = max(version.keep_ms for version in versions)
    los = {lo for version in versions for lo in first_slots(version.partitions or 1)}
    deleted, readers = 0, (yield from subscribers(environment, name))
    by_lo = [
        dict(zip(first_slots(len(each.positions)), each.positions, strict=True)) for each in readers
    ]
    for lo in sorted(los):
        read = [positions[lo] for positions in by_lo if lo in positions]
        for _ in range(MAX_COMMITS):
            names = yield from _deletable(environment, name, lo, read, keep_ms)
            if names:
                yield Commit(deletes=[(Key(LOG, row), None) for row in names])
            deleted += len(names)
            if len(names) < MAX_DELETED:
                break
    return deleted


def _deletable(
    environment: Environment, publication: str, lo: int, read: list[Position], keep_ms: int
) -> Steps[list[str]]:
    """Return the names of rows of a log, from the first one on, that may be deleted.

    Args:
        read: The position of the next record of each subscriber.
    """
    names, oldest_ms = environment.names, environment.now_ms() - keep_ms
    low = names.log_prefix(publication, lo, 0, 0)
    rows = yield ScanKeys(LOG, low, names.past_log(publication, lo), None, MAX_DELETED)
    deletable = []
    for name in rows:
        end, at_ms = position_of(name)
        if at_ms >= oldest_ms or any(end > position for position in read):
            break
        deletable.append(name)
    return deletable
