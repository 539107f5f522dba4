"""Recovery of stranded records: chunks below the watermark, and chunks in unknown inboxes.

Workers and ticks read an inbox from the watermark on, because no on-time record is below it. They
forget a retired inbox once it is empty. If either assumption fails (a truncated answer of the
store, a restored row), a record would be lost silently. Once a minute the sweep finds these
records, puts them back as late ones, and counts them in a gauge, the status and the log.

The sweep visits each inbox by its first name, however large its backlog. Its commit names the
head, so it moves nothing while a layout or a watermark changes.
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

# Of one computation in one sweep.
MAX_COMMITS = 20


class Stranded(NamedTuple):
    """A range of chunk names that no worker reads, from `low` on and before `high`."""

    low: str
    high: str


def recover(environment: Environment) -> Steps[int]:
    """Put stranded records back; return how many."""
    [head] = yield Read([environment.names.head])
    if head is None:
        return 0
    plan, records = environment.at(head.body), 0
    for name in plan.running:
        if plan.is_active(name):
            records += yield from _recover_computation(environment, name)
    return records


def _recover_computation(environment: Environment, name: str) -> Steps[int]:
    records, limit = 0, MAX_FORWARDED
    for _ in range(MAX_COMMITS):
        [head] = yield Read([environment.names.head])
        if not environment.at(head.body).is_active(name):
            break
        stranded = yield from _first_stranded(environment, head.body, name)
        if stranded is None:
            break
        with contextlib.suppress(ChangedError, OutcomeUnknownError):  # The loop looks again.
            try:
                records += yield from _put_back(environment, head, name, stranded, limit)
            except UnworkableError:
                if limit == 1:
                    raise
                limit = 1
    if records:
        environment.warn(
            f"{environment.pipeline.name}: {records} records of {name} were stranded, and are "
            "processed as late ones: the store has given a wrong answer, or the code has a bug"
        )
    return records


def _first_stranded(environment: Environment, head: Head, name: str) -> Steps[Stranded | None]:
    """Find the first inbox that is unknown, or has a chunk below the watermark."""
    names, watermark = environment.names, head.inputs.get(name, 0)
    inboxes = {names.inbox(name, lo, created_in) for created_in, lo in inboxes_of(head, name)}
    low, high = names.inboxes(name)
    while chunks := (yield ScanKeys(CHUNK, low, high)):
        inbox = inbox_of(chunks[0])
        floor = first_name(inbox, watermark) if inbox in inboxes else past_names(inbox)
        if chunks[0] < floor:
            return Stranded(chunks[0], floor)
        low = past_names(inbox)
    return None


def _put_back(
    environment: Environment, head: StoredRow, name: str, stranded: Stranded, limit: int
) -> Steps[int]:
    chunks = yield Scan(CHUNK, *stranded, limit)
    watermark = head.body.inputs.get(name, 0)
    commit, outgoing = forwarded(environment, head.body, name, chunks, watermark=watermark)
    records = sum(len(row.body) for _, row in chunks)
    total = head.body.recovered.get(name, 0) + records
    new_head = head.body._replace(recovered={**head.body.recovered, name: total})
    commit.puts.append((environment.names.head, new_head, head.version))
    yield commit
    yield from wake_intervals(environment, outgoing.destinations, tick=True)
    return records
