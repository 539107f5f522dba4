"""Dead letters: records and timers that failed for good, to be listed, replayed and discarded."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from rollforward.streams.exchange.outgoing import Outbound
from rollforward.streams.exchange.wakeups import wake_intervals
from rollforward.streams.graph.environment import Environment
from rollforward.streams.graph.head import read_head
from rollforward.streams.graph.plan import ActivePipeline
from rollforward.streams.model.bundle import DEAD_TIMERS, Target, replay_id
from rollforward.streams.model.codecs import encoded_of
from rollforward.streams.model.errors import MissingCodeError, UnknownStreamError
from rollforward.streams.model.records import value_text
from rollforward.streams.storage.remote_calls import (
    Commit,
    OutcomeUnknownError,
    Read,
    Scan,
    Steps,
)
from rollforward.streams.storage.retry import retry_commit
from rollforward.streams.storage.schema import DEAD, DeadRow, InboxRecord


@dataclass(frozen=True)
class DeadLetter:
    """A record, or a timer (with a `tag`), that has failed too often.

    `value`: an `Encoded`, if it has a codec.
    """

    id: str
    computation: str
    key: str
    error: str
    since_ms: int
    stream: str = ""
    value: Any = None
    timestamp_ms: int = 0
    tag: str = ""


def dead_letters(
    environment: Environment, limit: int, start_after: str = ""
) -> Steps[list[DeadLetter]]:
    """Return dead letters by id, up to a number, those after an id."""
    prefix = f"{environment.pipeline.name}:"
    low = prefix + start_after + ("\0" if start_after else "")
    rows = yield Scan(DEAD, low, f"{environment.pipeline.name};", limit)
    return [_dead_letter(name.removeprefix(prefix), row.body) for name, row in rows]


def dead_letter(environment: Environment, id_: str) -> Steps[DeadLetter | None]:
    """Return a dead letter; None: there is none of this id."""
    computation, _, name = id_.partition(":")
    [row] = yield Read([environment.names.dead(computation, name)])
    return None if row is None else _dead_letter(id_, row.body)


def _dead_letter(id_: str, dead: DeadRow) -> DeadLetter:
    letter = DeadLetter(id_, *dead[:4])
    if dead.record is None:
        return replace(letter, tag=dead.tag, timestamp_ms=dead.timestamp_ms)
    _, timestamp_ms, stream, _, text = dead.record
    encoded = encoded_of(text)  # Not decoded: that may be why it is dead.
    value = json.loads(text) if encoded is None else encoded
    return replace(letter, stream=stream, value=value, timestamp_ms=timestamp_ms)


def replay(environment: Environment, id_: str) -> Steps[bool]:
    """Put a dead record back into its inbox, as a late one; return False if there is none.

    A record without a key gets one, if the computation now has one for it. A timer fires at once.

    Raises:
        UnknownStreamError: the computation does not read the stream any more.
        BadRecordError: its codec cannot decode it.
        MissingCodeError: this code does not have its codec, or the pipeline is stopped.
        ChangedError: every attempt lost its race.
    """
    computation, _, name = id_.partition(":")
    key = environment.names.dead(computation, name)
    outgoing: Outbound | None = None
    in_doubt: Outbound | None = None

    def prepare(failure: Exception | None) -> Steps[Commit | None]:
        nonlocal outgoing, in_doubt
        if isinstance(failure, OutcomeUnknownError):
            in_doubt = outgoing
        head = yield from read_head(environment)
        [row] = yield Read([key])
        if row is None:
            outgoing = in_doubt
            return None
        if head.body.stopped:  # An export may have read the inbox already.
            raise MissingCodeError(f"{environment.pipeline.name} is stopped")
        outgoing = _replayed(environment, head.body, row.body)
        # The commit names the head, too, since the records go by its intervals.
        new_head = head.body._replace(replays=head.body.replays + 1)
        return Commit(
            puts=[(environment.names.head, new_head, head.version)],
            inserts=outgoing.inserts(),
            deletes=[(key, row.version)],
        )

    yield from retry_commit(prepare)
    if outgoing is None:
        return False
    try:
        yield from wake_intervals(environment, outgoing.destinations, tick=True)
    except Exception as error:  # It is replayed: who asked must not ask again.
        environment.warn(f"{environment.pipeline.name} is woken by its sweep: {error}")
    return True


def _replayed(environment: Environment, head: Any, dead: DeadRow) -> Outbound:
    """Return the record or timer of a dead letter on its way to the inbox."""
    plan, outgoing = environment.at(head), Outbound(environment, head)
    late_at = max(1, head.inputs.get(dead.computation, 0))
    record = dead.record
    if not plan.accepts_input(dead.computation):
        raise UnknownStreamError(f"{dead.computation} does not run any more")
    if record is None:
        text = value_text([dead.tag, dead.timestamp_ms, dead.is_processing_time])
        timer = InboxRecord(dead.key, dead.hold, DEAD_TIMERS, "", text)
        outgoing.send(Target(dead.computation, dead.key), timer, late_at=late_at)
        return outgoing
    value = environment.pipeline.codecs.value(record.text)
    for target in plan.graph.route(record.stream, value):
        if target.computation == dead.computation:
            id_ = _id_of_replay(environment, plan, dead, record)
            outgoing.send(target, record._replace(key=target.key, id=id_), late_at=late_at)
            return outgoing
    raise UnknownStreamError(f"{dead.computation} does not read {record.stream!r} any more")


def _id_of_replay(
    environment: Environment, plan: ActivePipeline, dead: DeadRow, record: InboxRecord
) -> str:
    """Return the id of a replayed record.

    A failed record was accepted, so its id is known and is dropped here. A record without a key was
    not accepted: pushed twice, it is two dead letters. At a weak computation a replayed id leads to
    the same ids downstream.
    """
    if not dead.key or not record.id:
        return record.id
    if dead.computation not in plan.graph.weak:
        return ""
    return replay_id(record.id, environment.new_id())


def discard(environment: Environment, id_: str) -> Steps[bool]:
    """Delete a dead letter; return False if there is none."""
    computation, _, name = id_.partition(":")
    key = environment.names.dead(computation, name)

    def prepare(failure: Exception | None) -> Steps[Commit | None]:
        [row] = yield Read([key])
        return None if row is None else Commit(deletes=[(key, row.version)])

    return (yield from retry_commit(prepare))
