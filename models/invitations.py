"""Parties, their guests, and the files that guests come from.

Party
    Key: a random id, chosen by the form that creates it.
    Queries: newest first, by `created` (single-property index; parties are made by hand,
    far below the 500 writes a second that a sequential index takes).
    Growth: one row per party.

Guest
    Key: "<party id>:<hash of the address>": an address is invited once, a party's guests
    are one key range, spread evenly, and can be cut without looking.
    Queries: that key range. No index but the key's.
    Growth: one row per guest.

GuestImport
    Key: a random id, chosen by the upload form.
    Queries: none; the party lists its imports.
    Growth: one row per file.
"""

from __future__ import annotations

import hashlib
from typing import Any

from google.cloud import ndb


class Party(ndb.Model):
    """A party as it is now, its imports and its sends."""

    title = ndb.TextProperty(required=True)
    host = ndb.TextProperty(required=True)
    place = ndb.TextProperty(required=True)
    when = ndb.DateTimeProperty(indexed=False, required=True)  # As the guests' clocks show it.
    note = ndb.TextProperty(default="")
    change = ndb.IntegerProperty(indexed=False, default=1)  # Counts what was saved.
    created = ndb.DateTimeProperty(required=True)
    imports = ndb.JsonProperty(default=[])  # Ids of GuestImport, oldest first.
    saved_by = ndb.TextProperty()  # The transaction that saved it last: the proof that it did.
    sends = ndb.JsonProperty(default=[])  # Oldest first: sending.py says what of.


class Guest(ndb.Model):
    """A guest of a party."""

    name = ndb.TextProperty(required=True)
    address = ndb.TextProperty(required=True)
    import_id = ndb.TextProperty(required=True)
    import_number = ndb.IntegerProperty(indexed=False, required=True)
    line = ndb.IntegerProperty(indexed=False, required=True)


class GuestImport(ndb.Model):
    """A file of guests; the continuation run of the same id reads it."""

    party_id = ndb.TextProperty(required=True)
    file_name = ndb.TextProperty(required=True)
    size_bytes = ndb.IntegerProperty(indexed=False, required=True)
    created = ndb.DateTimeProperty(indexed=False, required=True)


def party_key(party_id: str) -> Any:
    """Return the key of a party."""
    return ndb.Key(Party, party_id)


def guest_key(party_id: str, address: str) -> Any:
    """Return the key of a guest: the same however the address is capitalised."""
    digest = hashlib.sha256(address.casefold().encode()).hexdigest()[:24]
    return ndb.Key(Guest, f"{guest_prefix(party_id)}{digest}")


def guest_prefix(party_id: str) -> str:
    """Return the prefix of the key names of a party's guests.

    >>> guest_prefix("p1")
    'p1:'
    """
    return f"{party_id}:"


def guests_of(party_id: str, *, after: str = "") -> Any:
    """Return the query for a party's guests in key order, those behind the name `after`."""
    start = ndb.Key(Guest, after or guest_prefix(party_id))
    end = ndb.Key(Guest, f"{party_id};")
    return Guest.query(Guest._key > start, Guest._key < end).order(Guest._key)


def newest_parties() -> Any:
    """Return the query for all parties, newest first."""
    return Party.query().order(-Party.created)
