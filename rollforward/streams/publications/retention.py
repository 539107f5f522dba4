"""Retention: rows of a log that are old and read by all subscribers are deleted."""

from __future__ import annotations

import contextlib

from rollforward.streams.graph.environment import Environment
from rollforward.streams.model.slots import first_slots
from rollforward.streams.publications.log import Position, place_of
from rollforward.streams.publications.publication import Publication
from rollforward.streams.publications.registration import drop_departed, subscribers
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
    deleted, done = 0, set[str]()
    for sink in environment.pipeline.sinks:
        if isinstance(sink, Publication) and sink.name not in done:
            done.add(sink.name)
            with contextlib.suppress(ChangedError, OutcomeUnknownError):  # The next sweep goes on.
                yield from drop_departed(environment, sink.name)
                deleted += yield from _delete_rows_of(environment, sink)
    return deleted


def _delete_rows_of(environment: Environment, publication: Publication) -> Steps[int]:
    deleted, readers = 0, (yield from subscribers(environment, publication.name))
    for number, lo in enumerate(first_slots(publication.partitions or 1)):
        read = [each.positions[number] for each in readers if number < len(each.positions)]
        for _ in range(MAX_COMMITS):
            names = yield from _deletable(environment, publication, lo, read)
            if names:
                yield Commit(deletes=[(Key(LOG, name), None) for name in names])
            deleted += len(names)
            if len(names) < MAX_DELETED:
                break
    return deleted


def _deletable(
    environment: Environment, publication: Publication, lo: int, read: list[Position]
) -> Steps[list[str]]:
    """Return the names of rows of a log, from the first one on, that may be deleted.

    Args:
        read: The position of the next record of each subscriber.
    """
    names, oldest_ms = environment.names, environment.now_ms() - publication.keep_ms
    low = names.log_place(publication.name, lo, 0, 0)
    rows = yield ScanKeys(LOG, low, names.past_log(publication.name, lo), None, MAX_DELETED)
    deletable = []
    for name in rows:
        end, at_ms = place_of(name)
        if at_ms >= oldest_ms or any(end > position for position in read):
            break
        deletable.append(name)
    return deletable
