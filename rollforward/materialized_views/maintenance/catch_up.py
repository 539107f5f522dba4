"""Catching up: whether the rows of a table hold what their sources contribute.

The walk that confirms comes once they all do. Since then their changes wait as updates of the
table. While none waits, no source has to be read.

The catch-up looks at its sources again and again, ever more rarely, while folds go through the rows
of the table. Sources of one page are in rows of all places, so most of a page waits for as long as
the folds take. Reading all of a page at each look made the reads of a rebuild grow with its time:

| of a page's sources | a look reads | and ends |
|---|---|---|
| many wait for what was sent before the walk began | some of them, drawn anew | none |
| few of them do | all of them | those whose rows are up to date |

A source that is saved again and again waits for what was sent after the walk began. So it keeps no
other source of its page waiting.

A walk over sources does not meet the rows that a source has left, nor a source that was deleted.
`hold_removed` looks for these among the updates that wait, before the table is swapped in.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Sequence
from typing import Any

from google.cloud import ndb

from rollforward.continuations.entities import run_key
from rollforward.datastore.batched import batched
from rollforward.materialized_views.entities import (
    RowMarker,
    marker_key,
    row_key,
    row_marker_key,
)
from rollforward.materialized_views.maintenance.audit import row_marker_of
from rollforward.materialized_views.maintenance.walks import (
    CATCH_UP,
    CONFIRM,
    Walk,
    contributions_of,
)
from rollforward.materialized_views.updates import Apply
from rollforward.materialized_views.updating.transport import (
    UpdateTransport,
    has_pending_rows,
    pending_keys,
    saved_at,
)
from rollforward.outbox.entities import LONG_AGO, RowId
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import CLOCK_SKEW_S, naive_utc

log = logging.getLogger(__name__)

# So many sources are drawn from a page with more, and so many of them are many.
DRAWN, MANY = 4, 2
# Updates that are read at once.
PAGE_SIZE = 100
# A table that is confirmed waits so long for updates by which sources leave rows.
PATIENT_FOR = datetime.timedelta(hours=1)


def are_waiting(clients: Clients, walk: Walk, sources: Sequence[Any]) -> list[bool]:
    """Return for each source whether a row may lack what the source contributes to it.

    One that waits is never missed. One that does not may be taken for one that does, while many of
    the same page wait.

    Args:
        sources: Their identities.
    """
    catch_up, confirm = ndb.get_multi([run_key(walk.run_id(one)) for one in (CATCH_UP, CONFIRM)])
    if confirm is not None and not has_pending_rows(walk.table):
        return [False] * len(sources)
    began = max([run.started for run in (catch_up, confirm) if run is not None], default=LONG_AGO)
    if len(sources) > DRAWN and _has_backlog(clients, walk, sources, began):
        return [True] * len(sources)
    return [bool(awaited) for awaited in missing_updates(walk.table, sources)]


def _has_backlog(
    clients: Clients, walk: Walk, sources: Sequence[Any], began: datetime.datetime
) -> bool:
    """Return whether many sources wait for what was sent before their walk began."""
    drawn = missing_updates(walk.table, clients.random.sample(sources, DRAWN))
    early = [any(RowId.read(row).created < began for row in awaited if row) for awaited in drawn]
    return sum(early) >= MANY


def missing_updates(table: str, sources: Sequence[Any]) -> list[list[str]]:
    """Return for each source the updates that rows of a table do not hold yet.

    Returns:
        The outbox row of each; "": it is not known, as the change was saved by an older version.
    """
    markers = ndb.get_multi([marker_key(source) for source in sources])
    expected = [
        {
            row_marker_of(table, row, source): (sequence, _sent(marker, f"{table}:{row}"))
            for row, (sequence, _) in contributions_of(marker, table).items()
        }
        for source, marker in zip(sources, markers, strict=True)
    ]
    keys = [key for rows in expected for key in rows]
    stored = dict(zip(keys, ndb.get_multi(keys), strict=True))
    return [
        [sent for key, (sequence, sent) in rows.items() if not _includes(stored[key], sequence)]
        for rows in expected
    ]


def _sent(marker: Any, tag: str) -> str:
    return (marker.sent or {}).get(tag, "")  # type: ignore[no-any-return]


def _includes(row_marker: RowMarker | None, sequence: int) -> bool:
    return row_marker is not None and row_marker.sequence >= sequence


def hold_removed(clients: Clients, transport: UpdateTransport, walks: Sequence[Walk]) -> bool:
    """Return whether a row of a table holds a source that left it before the table was confirmed.

    An update that is parked is not waited for any longer than PATIENT_FOR.

    Args:
        walks: Those of the table; all of them have confirmed.
    """
    runs = ndb.get_multi([run_key(walk.run_id(CONFIRM)) for walk in walks])
    if naive_utc(clients.clock.now()) - max(run.ended for run in runs) > PATIENT_FOR:
        return False
    # A save has the time of its own machine.
    began = max(run.started for run in runs) + datetime.timedelta(seconds=CLOCK_SKEW_S)
    early = [key for key in pending_keys(walks[0].table) if saved_at(key) < began]
    return any(_hold_removed(transport, ndb.get_multi(keys)) for keys in batched(early, PAGE_SIZE))


def _hold_removed(transport: UpdateTransport, waiting: Sequence[Any]) -> bool:
    applies = [_read(transport, stored) for stored in waiting if stored is not None]
    left = [
        (row_marker_key(row_key(apply.table, apply.row), update.source), update.sequence)
        for apply in applies
        if apply is not None
        for update in apply.updates
        if update.measures is None
    ]
    held = ndb.get_multi([key for key, _ in left])
    both = zip(held, left, strict=True)
    return any(marker is not None and marker.sequence < sequence for marker, (_, sequence) in both)


def _read(transport: UpdateTransport, stored: Any) -> Apply | None:
    """Return the updates in an outbox row or a work pack; None: this version cannot read them."""
    try:
        return transport.read(stored)
    except Exception:  # It may be of any version, or made by hand.
        log.warning("%s cannot be read", stored.key.id(), exc_info=True)
        return None
