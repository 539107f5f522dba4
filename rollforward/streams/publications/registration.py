"""Registration of subscribers: a publication knows who reads it, by a row for each.

The first read of a subscriber inserts the row, in a commit that names the version of the
publisher's head. Detaching a publication reads these rows, and its commit names that version, too.
So one of the two sees the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rollforward.streams.graph.environment import Environment
from rollforward.streams.graph.plan import running_computations
from rollforward.streams.model.errors import TopologyError
from rollforward.streams.publications.log import Position
from rollforward.streams.publications.subscription import Subscription
from rollforward.streams.storage.remote_calls import (
    ChangedError,
    Commit,
    Key,
    OutcomeUnknownError,
    Read,
    Scan,
    Steps,
    StoredRow,
)
from rollforward.streams.storage.schema import SUBSCRIPTION, Interval, Names, SubscriptionRow

MAX_SUBSCRIBERS = 1_000
CHECKED_MS = 60_000


class Subscriber(NamedTuple):
    """A pipeline that reads a publication.

    Attributes:
        stream: The name of the stream there.
        positions: By partition, the position of the next record; a partition without a read has
            the first one.
    """

    pipeline: str
    stream: str
    positions: Sequence[Position]

    def __str__(self) -> str:
        return f"{self.pipeline}/{self.stream}"


def register(environment: Environment, source: Subscription, layout_version: int) -> Steps[None]:
    """Register this pipeline as a subscriber of a publication that runs, unless it is one.

    Args:
        layout_version: This pipeline's. A change of its topology may have followed a deletion of
            the row.

    Raises:
        ChangedError: the publisher's head has changed, or it is not known whether it was done.
        TopologyError: there are too many subscribers, or this one has read another log.
    """
    names, caches = Names(source.publication.pipeline), environment.caches
    subscriber, publication = environment.pipeline.name, source.publication.name
    key = names.subscription(publication, subscriber, source.stream)
    checked_ms, checked_version = caches.get(key, (-CHECKED_MS, 0))
    is_recent = 0 <= environment.elapsed_ms() - checked_ms < CHECKED_MS
    if is_recent and checked_version == layout_version:
        return
    head, row = yield Read([names.head, key])
    running = {} if head is None else running_computations(head.body)
    if publication not in running or running[publication].is_leaving:
        return
    if [*head.body.intervals[publication]] != source.first_slots:
        return  # This code cannot read it.
    yield from _check_positions(environment, source)
    body = SubscriptionRow(subscriber, source.stream, tuple(source.processes))
    if row is None or {*row.body.partitions} != {*body.partitions}:
        commit = Commit(puts=[(names.head, head.body, head.version)])
        if row is None:
            yield from _check_room(names, publication)
            commit.inserts.append((key, body))
        else:
            commit.puts.append((key, body, row.version))
        try:
            yield commit
        except OutcomeUnknownError as error:
            raise ChangedError from error
    caches[key] = environment.elapsed_ms(), layout_version


def _check_positions(environment: Environment, source: Subscription) -> Steps[None]:
    """Check that a log has the records that were read of it.

    Raises:
        TopologyError: it does not: it is another one, of a publisher that began anew.
    """
    publication = source.publication
    rows = yield Read([environment.names.source(source.stream, part) for part in source.processes])
    names = Names(publication.pipeline)  # Read afterwards: a log only grows.
    logs = yield Read([names.interval(publication.name, lo) for lo in source.first_slots])
    for row, log in zip(rows, logs, strict=True):
        if log is not None and _position(row) > Position(log.body.created_in, log.body.records):
            raise TopologyError(
                f"{environment.pipeline.name} has read records of {publication.name} that its log "
                f"does not have: {publication.pipeline} began anew. Give the subscription another "
                "`stream`, so that it begins anew, too"
            )


def _check_room(names: Names, publication: str) -> Steps[None]:
    """Check that a publication may have one more subscriber: all are read at once.

    Raises:
        TopologyError: it has as many as it may have.
    """
    if len((yield from registered(names, publication))) >= MAX_SUBSCRIBERS:
        raise TopologyError(
            f"{publication} has {MAX_SUBSCRIBERS:,} subscribers, as many as it may have: "
            "`unsubscribe` those that are gone, or publish its stream once more"
        )


def subscribers(environment: Environment, publication: str) -> Steps[list[Subscriber]]:
    """Return the registered subscribers of a publication of this pipeline."""
    found = [row.body for _, row in (yield from registered(environment.names, publication))]
    keys = [
        Names(pipeline).source(stream, partition)
        for pipeline, stream, partitions, _ in found
        for partition in partitions
    ]
    rows = iter((yield Read(keys)) if keys else ())
    return [
        Subscriber(pipeline, stream, [_position(next(rows)) for _ in partitions])
        for pipeline, stream, partitions, _ in found
    ]


def _position(row: StoredRow | None) -> Position:
    return Position(*row.body.position) if row is not None and row.body.position else Position()


def unread(
    environment: Environment, publication: str, intervals: Sequence[Interval]
) -> Steps[dict[str, int]]:
    """Return by subscriber how many records of a publication it has not read.

    Args:
        intervals: The rows of the publication, in order.
    """
    readers = yield from subscribers(environment, publication)
    return {str(reader): sum(map(_unread, intervals, reader.positions)) for reader in readers}


def _unread(interval: Interval, position: Position) -> int:
    is_same = interval.created_in == position.created_in
    return interval.records - (position.number if is_same else 0)


def registered(names: Names, publication: str) -> Steps[list[tuple[str, StoredRow]]]:
    """Return the rows of the subscribers of a publication, by name."""
    low = names.subscription(publication, "", "").name[:-1]
    rows = yield Scan(SUBSCRIPTION, low, f"{low[:-1]};", MAX_SUBSCRIBERS)
    return rows  # type: ignore[no-any-return]


def unregister(
    environment: Environment, publication: str, pipeline: str, stream: str
) -> Steps[bool]:
    """Delete the row of a subscriber; return False if there is none."""
    key = environment.names.subscription(publication, pipeline, stream)
    [row] = yield Read([key])
    if row is None:
        return False
    yield Commit(deletes=[(key, row.version)])
    return True


def drop_removed(environment: Environment, publication: str) -> Steps[None]:
    """Delete the rows of subscribers of which no computation reads the stream any more.

    Raises:
        ChangedError, OutcomeUnknownError: a row may still be there.
    """
    for name, row in (yield from registered(environment.names, publication)):
        subscriber, stream, *_ = row.body
        key = Names(subscriber).head
        [head] = yield Read([key])
        running = {} if head is None else running_computations(head.body)
        if any(stream in entry.inputs for entry in running.values()):
            continue
        # A computation that is attached meanwhile changes the head, or finds the row deleted.
        puts = [] if head is None else [(key, head.body, head.version)]
        yield Commit(puts=puts, deletes=[(Key(SUBSCRIPTION, name), row.version)])
