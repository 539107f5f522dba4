"""Dead letters: records and timers that failed for good, to be listed, replayed and discarded."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, replace
from typing import Any

from rollforward.streams.exchange.outgoing import Outgoing
from rollforward.streams.exchange.wakeups import wake_intervals
from rollforward.streams.graph.environment import Environment
from rollforward.streams.graph.head import MAX_ATTEMPTS, read_head
from rollforward.streams.graph.plan import ActivePipeline
from rollforward.streams.model.bundle import DEAD_TIMERS, Target, replay_id
from rollforward.streams.model.errors import UnknownStreamError
from rollforward.streams.model.records import value_text
from rollforward.streams.storage.remote_calls import (
    ChangedError,
    Commit,
    OutcomeUnknownError,
    Read,
    Scan,
    Steps,
)
from rollforward.streams.storage.schema import (
    DEAD,
    DeadRow,
    InboxRecord,
)


@dataclass(frozen=True)
class DeadLetter:
    """A record, or a timer (with a `tag`), that has failed too often."""

    id: str
    computation: str
    key: str
    error: str
    since_ms: int
    stream: str = ""
    value: Any = None
    timestamp_ms: int = 0
    tag: str = ""


def dead_letters(environment: Environment, limit: int) -> Steps[list[DeadLetter]]:
    """Return records and timers that have failed too often."""
    prefix = f"{environment.pipeline.name}:"
    found = yield Scan(DEAD, prefix, f"{environment.pipeline.name};", limit)
    letters = []
    for name, row in found:
        body = row.body
        letter = DeadLetter(name.removeprefix(prefix), *body[:4])
        if body.record is None:
            letters.append(replace(letter, tag=body.tag, timestamp_ms=body.timestamp_ms))
        else:
            value = json.loads(body.record.text)
            letters.append(
                replace(
                    letter,
                    stream=body.record.stream,
                    value=value,
                    timestamp_ms=body.record.timestamp_ms,
                )
            )
    return letters


def replay(environment: Environment, id_: str) -> Steps[bool]:
    """Put a dead record back into its inbox, as a late one; return False if there is none.

    A record that has no key gets one, if the computation now finds one. A timer fires at once.

    Raises:
        UnknownStreamError: nobody reads that stream any more.
    """
    computation, _, name = id_.partition(":")
    key = environment.names.dead(computation, name)
    in_doubt: Outgoing | None = None
    for _ in range(MAX_ATTEMPTS):
        head = yield from read_head(environment)
        [found] = yield Read([key])
        if found is None:
            break
        dead: DeadRow = found.body
        outgoing = Outgoing(environment, head.body)
        late_at = max(1, head.body.inputs.get(dead.computation, 0))
        _send_again(environment, environment.at(head.body), dead, outgoing, late_at)
        try:
            # The intervals are to be those that it is sent to, so it names the head, too.
            yield Commit(
                puts=[(environment.names.head, head.body, head.version)],
                inserts=outgoing.inserts(),
                deletes=[(key, found.version)],
            )
        except ChangedError:
            continue
        except OutcomeUnknownError:
            in_doubt = outgoing
            continue
        in_doubt = outgoing
        break
    else:
        raise ChangedError
    if in_doubt is None:
        return False
    yield from wake_intervals(environment, in_doubt.destinations, tick=True)
    return True


def _send_again(
    environment: Environment, plan: ActivePipeline, dead: DeadRow, outgoing: Outgoing, late_at: int
) -> None:
    letter = dead.record
    if not plan.accepts_input(dead.computation):
        raise UnknownStreamError(f"{dead.computation} does not run any more")
    if letter is None:
        text = value_text([dead.tag, dead.timestamp_ms, dead.is_processing_time])
        target = Target(dead.computation, dead.key)
        outgoing.send(
            target, InboxRecord(dead.key, dead.hold, DEAD_TIMERS, "", text), late_at=late_at
        )
        return
    targets = plan.graph.route(letter.stream, json.loads(letter.text))
    for target in targets:
        if target.computation == dead.computation:
            id_ = _id_of_replay(environment, plan, dead, letter)
            outgoing.send(target, letter._replace(key=target.key, id=id_), late_at=late_at)
            return
    raise UnknownStreamError(f"{dead.computation} does not read {letter.stream!r} any more")


def _id_of_replay(
    environment: Environment, plan: ActivePipeline, dead: DeadRow, letter: InboxRecord
) -> str:
    """Return the id with which a dead record is sent again.

    What failed was accepted, so its id is known. What had no key was not: pushed twice, it is dead
    twice. What follows at a weak computation is to have the names that it would have had.
    """
    if not dead.key or not letter.id:
        return letter.id
    if dead.computation not in plan.graph.weak:
        return ""
    return replay_id(letter.id, environment.new_id())


def discard(environment: Environment, id_: str) -> Steps[bool]:
    """Delete a dead letter; return False if there is none."""
    computation, _, name = id_.partition(":")
    key = environment.names.dead(computation, name)
    has_tried = False
    for _ in range(MAX_ATTEMPTS):
        [found] = yield Read([key])
        if found is None:
            return has_tried
        has_tried = True
        with contextlib.suppress(ChangedError, OutcomeUnknownError):
            yield Commit(deletes=[(key, found.version)])
            return True
    raise ChangedError
