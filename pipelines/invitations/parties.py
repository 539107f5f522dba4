"""Parties: their details, changes and guests.

A form creates its party once. A party records the transaction that saved it last, so that a body
that runs again after a lost reply recognizes its own write.

Lost on failure: nothing.
"""

from __future__ import annotations

import datetime
from dataclasses import asdict, dataclass
from typing import Any

from google.cloud import ndb

from models.invitations import Guest, Party, guests_of, party_key
from rollforward.continuations.entities import RUNNING, run_key
from rollforward.datastore.transactions import current_transaction, transact
from rollforward.runtime import Clients, naive_utc


class UnknownPartyError(LookupError):
    """No party has this id."""


@dataclass(frozen=True)
class PartyDetails:
    """Details of a party, as its host wrote them."""

    title: str
    host: str
    place: str
    when: datetime.datetime
    note: str = ""


def create_party(clients: Clients, party_id: str, details: PartyDetails) -> bool:
    """Create a party, once per id; True if this call made it."""

    def put_once() -> bool:
        if (party := party_key(party_id).get()) is not None:
            return is_saved_here(party)
        created = naive_utc(clients.clock.now())
        save_party(Party(key=party_key(party_id), created=created, **asdict(details)))
        return True

    return transact(put_once)


def change_party(party_id: str, details: PartyDetails) -> bool:
    """Save new details; True if they differ from the old ones."""

    def save() -> bool:
        party = party_of(party_id)
        if details_of(party) == details:
            return is_saved_here(party)
        party.populate(**asdict(details))
        party.change += 1
        save_party(party)
        return True

    return transact(save)


def save_party(party: Party, *rows: Any) -> None:
    """Store a party in a transaction, with the proof that this transaction did."""
    party.saved_by = current_transaction().id
    ndb.put_multi([party, *rows])


def is_saved_here(party: Party) -> bool:
    """Return whether this transaction stored the party in an attempt whose reply was lost."""
    return party.saved_by == current_transaction().id  # type: ignore[no-any-return]


def party_of(party_id: str) -> Party:
    """Return a party.

    Raises:
        UnknownPartyError: no party has this id.
    """
    party = party_key(party_id).get()
    if party is None:
        raise UnknownPartyError(party_id)
    return party  # type: ignore[no-any-return]


def is_running(run_id: str) -> bool:
    """Return whether a run has begun and has not ended."""
    run = run_key(run_id).get()
    return run is not None and run.state == RUNNING


def details_of(party: Party) -> PartyDetails:
    """Return the details of a party."""
    return PartyDetails(party.title, party.host, party.place, party.when, party.note)


def guests_page(party_id: str, *, after: str, size: int) -> tuple[list[Guest], str | None]:
    """Return a page of guests in key order, and the start of the next page; None: it is last."""
    guests = guests_of(party_id, after=after).fetch(size + 1)
    return guests[:size], guests[size - 1].key.id() if len(guests) > size else None
