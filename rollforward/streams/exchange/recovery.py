"""A second look, once a minute, where nobody else looks: below the watermark, and in lost inboxes.

Workers and ticks begin to look into an inbox at the watermark, because nothing in time lies below
it, and forget an inbox that was left once it is empty. Should either not be true (an answer of the
store that was taken for the whole, a row that was restored), a record would be lost without a word.
It is found here, put back as a late one, and counted: a gauge, the status and the log say so.

The sweep goes from one inbox to the next by the first name of each, however much waits there. Its
commit names the head: while a layout or a watermark changes, nothing is moved.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from rollforward.streams.exchange.forwarding import MAX_FORWARDED, forwarded
from rollforward.streams.exchange.wakeups import wake_intervals
from rollforward.streams.graph.environment import Environment
from rollforward.streams.storage.layout import inboxes_of
from rollforward.streams.storage.remote_calls import (
    ChangedError,
    OutcomeUnknownError,
    Read,
    Scan,
    ScanKeys,
    Steps,
    StoredRow,
    UnworkableError,
)
from rollforward.streams.storage.schema import CHUNK, Head, first_name, inbox_of, past_names

# Of one computation and one sweep.
MAX_COMMITS = 20


class Stranded(NamedTuple):
    """Where chunks lie that nobody will find: the first name, and before which name they end."""

    low: str
    high: str


def recover(environment: Environment) -> Steps[int]:
    """Put back what lies where nobody looks; return how many records that were."""
    [head] = yield Read([environment.names.head])
    if head is None:
        return 0
    plan, records = environment.at(head.body), 0
    for name in plan.running:
        if plan.is_active(name):
            records += yield from _recover_of(environment, name)
    return records


def _recover_of(environment: Environment, name: str) -> Steps[int]:
    records, most = 0, MAX_FORWARDED
    for _ in range(MAX_COMMITS):
        [head] = yield Read([environment.names.head])
        if not environment.at(head.body).is_active(name):
            break
        place = yield from _first_stranded(environment, head.body, name)
        if place is None:
            break
        with contextlib.suppress(ChangedError, OutcomeUnknownError):  # It looks again.
            try:
                records += yield from _put_back(environment, head, name, place, most)
            except UnworkableError:
                if most == 1:
                    raise
                most = 1
    if records:
        environment.warn(
            f"{environment.pipeline.name}: {records} records of {name} lay where nobody looks, and "
            "are worked on as late ones: the store has given a wrong answer, or the code is wrong"
        )
    return records


def _first_stranded(environment: Environment, head: Head, name: str) -> Steps[Stranded | None]:
    """Find the first inbox of a computation with something below the watermark, or unknown."""
    names, watermark = environment.names, head.inputs.get(name, 0)
    known = {names.inbox(name, lo, created_in) for created_in, lo in inboxes_of(head, name)}
    low, high = names.inboxes(name)
    while found := (yield ScanKeys(CHUNK, low, high)):
        inbox = inbox_of(found[0])
        floor = first_name(inbox, watermark) if inbox in known else past_names(inbox)
        if found[0] < floor:
            return Stranded(found[0], floor)
        low = past_names(inbox)
    return None


def _put_back(
    environment: Environment, head: StoredRow, name: str, place: Stranded, most: int
) -> Steps[int]:
    chunks = yield Scan(CHUNK, *place, most)
    watermark = head.body.inputs.get(name, 0)
    commit, outgoing = forwarded(environment, head.body, name, chunks, watermark=watermark)
    records = sum(len(found.body) for _, found in chunks)
    before = head.body.recovered.get(name, 0)
    after = head.body._replace(recovered={**head.body.recovered, name: before + records})
    commit.puts.append((environment.names.head, after, head.version))
    yield commit
    yield from wake_intervals(environment, outgoing.destinations, tick=True)
    return records
