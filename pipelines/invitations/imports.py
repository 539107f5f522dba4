"""Guest lists, imported by a continuation over their rows.

A party reads one file at a time. The run has the form's id, so a form that is sent twice reads its
file once. A guest's key is derived from the address, so an address is invited once.

Lost on failure: nothing. See rollforward/continuations/pages/attempt.py.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from google.cloud import ndb

from models.invitations import Guest, GuestImport, Party, guest_key
from pipelines.invitations.guest_lists import GuestColumns, GuestRow, columns_of, guest_rows
from pipelines.invitations.parties import is_running, is_saved_here, party_of, save_party
from pipelines.invitations.sending import NobodyInvitedError, Pace, send
from rollforward.continuations import ItemError, RefusedItemError, SkippedItemError, job, runs
from rollforward.continuations.csv_source import CsvSource, normalized
from rollforward.continuations.entities import run_key
from rollforward.continuations.upload_entities import put_upload, read_upload
from rollforward.datastore import transact
from rollforward.runtime import Clients, naive_utc

MAX_IMPORTS = 500


class ImportGoingOnError(Exception):
    """Another file of this party is still being read."""


class ForeignImportError(Exception):
    """This id is taken by a file of another party."""


@dataclass(frozen=True)
class ImportArgs:
    """A stored file of guests, and its columns."""

    party_id: str
    import_id: str
    import_number: int
    columns: GuestColumns
    upload_id: str
    then_send: Pace | None = None  # Pace of the send that starts when the list is read.


def import_guests(
    clients: Clients,
    party_id: str,
    import_id: str,
    content: bytes,
    file_name: str,
    *,
    then_send: Pace | None = None,
) -> bool:
    """Store a file and start reading it, once per import_id; True if this call did.

    Args:
        then_send: Send to all guests when the file is read, at this pace.

    Raises:
        rollforward.continuations.csv_source.BadFileError: the file is no guest list; nothing was
            stored.
        ImportGoingOnError: the party's last file is still being read.
        ForeignImportError: the id belongs to another party's file.
    """
    party = party_of(party_id)
    if import_id in party.imports:
        # The run may have been stored while Cloud Tasks was unavailable.
        runs.launch(clients, add_guests, import_id)
        return False
    if run_key(import_id).get() is not None:
        raise ForeignImportError(import_id)
    _check_no_import_is_running(party)
    content = normalized(content)
    columns = columns_of(content)
    created = naive_utc(clients.clock.now())
    # With a digest of the content: another file of the same form must not mix with this one.
    upload_id = f"{import_id}-{hashlib.sha256(content).hexdigest()[:16]}"
    put_upload(upload_id, content, created)
    number = len(party.imports) + 1
    args = ImportArgs(party_id, import_id, number, columns, upload_id, then_send)
    lines = content.count(b"\n")
    run = runs.new_run(clients, add_guests, args, run_id=import_id, expected=lines)
    row = GuestImport(
        id=import_id,
        party_id=party_id,
        file_name=file_name[:200],
        size_bytes=len(content),
        created=created,
    )

    def begin() -> bool:
        party = party_of(party_id)
        if import_id in party.imports:
            return is_saved_here(party)
        _check_no_import_is_running(party)
        if run.key.get() is not None:
            raise ForeignImportError(import_id)
        if len(party.imports) != number - 1:
            raise ImportGoingOnError(party_id)
        party.imports = [*party.imports, import_id]
        save_party(party, row, run)
        return True

    is_new = transact(begin)
    runs.launch(clients, add_guests, import_id)
    return is_new


def sends_then(import_id: str) -> bool:
    """Return whether a send starts as soon as the list is read."""
    run = run_key(import_id).get()
    return run is not None and add_guests.load(run.args).then_send is not None


def _check_no_import_is_running(party: Party) -> None:
    if len(party.imports) >= MAX_IMPORTS:
        raise ImportGoingOnError(
            f"a party must have at most {MAX_IMPORTS} files, got {len(party.imports) + 1}"
        )
    if party.imports and is_running(party.imports[-1]):
        raise ImportGoingOnError(party.key.id())


def _rows(args: ImportArgs) -> CsvSource[GuestRow]:
    return guest_rows(lambda offset: read_upload(args.upload_id, offset), args.columns)


def _send_when_read(clients: Clients, args: ImportArgs) -> None:
    """Start the send that the import asks for; it is idempotent."""
    if args.then_send is not None and party_of(args.party_id).imports[-1] == args.import_id:
        with contextlib.suppress(NobodyInvitedError):
            send(clients, args.party_id, pace=args.then_send)


@job("import-guests", queue="imports", source=_rows, on_finished=_send_when_read, page_size=250)
def add_guests(
    clients: Clients, args: ImportArgs, rows: Sequence[GuestRow]
) -> list[ItemError | None]:
    """Add the guests in some rows, inside a transaction; the rows' receipts commit with it."""
    keys = [guest_key(args.party_id, row.address) for row in rows if not row.problem]
    distinct = list(dict.fromkeys(keys))
    guests = dict(zip(distinct, ndb.get_multi(distinct), strict=True))
    added: list[Guest] = []
    outcomes: list[ItemError | None] = []
    for row in rows:
        if row.problem:
            outcomes.append(RefusedItemError(row.problem))
            continue
        key = guest_key(args.party_id, row.address)
        if (guest := guests[key]) is not None:
            outcomes.append(_repeat_of(args, row, guest))
            continue
        guests[key] = Guest(
            key=key,
            name=row.name,
            address=row.address,
            import_id=args.import_id,
            import_number=args.import_number,
            line=row.line,
        )
        added.append(guests[key])
        outcomes.append(None)
    ndb.put_multi(added)
    return outcomes


def _repeat_of(args: ImportArgs, row: GuestRow, guest: Guest) -> ItemError | None:
    if guest.import_id != args.import_id:
        return SkippedItemError(f"{row.address} is on the list already")
    if guest.line != row.line:
        return SkippedItemError(f"{row.address} is on line {guest.line} already")
    return None  # The same row, applied by an earlier attempt.
