"""Audit trail: who changed what, when, and with which result."""

from __future__ import annotations

import contextlib
import datetime
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from google.api_core.exceptions import GoogleAPIError
from google.cloud import ndb

from rollforward.datastore.transactions import transact
from rollforward.operations.entities import DONE, AuditEntry, latest_entries
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import naive_utc
from rollforward.runtime.texts import describe_error, storable

log = logging.getLogger(__name__)

MAX_CHARS = 1_000


@dataclass
class Outcome:
    """The result of a change, as its entry will have it."""

    result: str = DONE


@contextlib.contextmanager
def recorded(
    clients: Clients, *, operator: str, role: str, action: str, target: str
) -> Iterator[Outcome]:
    """Write an entry before the change below, and its result after it.

    A result that cannot be written is left out: the change is made, and the entry says `begun`. So
    it does if the process ends in the middle of the change.

    Raises:
        google.api_core.exceptions.GoogleAPICallError: there is no entry, and nothing was changed.
    """
    entry = AuditEntry(
        id=clients.new_id(),
        at=naive_utc(clients.clock.now()),
        operator=storable(operator, MAX_CHARS),
        role=role,
        action=action,
        target=storable(target, MAX_CHARS),
    )
    transact(lambda: _put(entry))
    outcome = Outcome()
    try:
        yield outcome
    except Exception as error:
        _end(clients, entry, describe_error(error))
        raise
    _end(clients, entry, outcome.result)


def _end(clients: Clients, entry: AuditEntry, result: str) -> None:
    """Write the result of a change; a failure says nothing about the change."""
    entry.result = storable(result, MAX_CHARS)
    entry.ended = naive_utc(clients.clock.now())
    try:
        transact(lambda: _put(entry))
    except GoogleAPIError as error:
        log.warning("the result of %s is not in the audit trail: %s", entry.action, error)


def _put(entry: AuditEntry) -> None:
    entry.put()


def list_audit(
    *,
    since: datetime.datetime | None = None,
    until: datetime.datetime | None = None,
    limit: int,
) -> tuple[Sequence[AuditEntry], datetime.datetime | None]:
    """Return entries, the newest first, and where the next ones begin; None: there are no more.

    Entries of the very same time are not torn apart: a page may be longer than its limit by them.
    """
    entries = latest_entries(naive_utc(until) if until else None).fetch(limit + 1)
    if since is not None:
        entries = [entry for entry in entries if entry.at >= naive_utc(since)]
    if len(entries) <= limit:
        return entries, None
    oldest = entries[limit - 1].at
    same = AuditEntry.query(AuditEntry.at == oldest).order(AuditEntry._key).fetch()
    newer = [entry for entry in entries if entry.at > oldest]
    return [*newer, *same], oldest.replace(tzinfo=datetime.UTC)


def delete_expired_entries(keys: Sequence[ndb.Key]) -> None:
    """Delete entries that are kept no more; nothing writes them again."""
    ndb.delete_multi(keys)
