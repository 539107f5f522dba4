"""Invitations: a party changes, and every guest gets one mail about that change.

A file of guests is imported by a continuation over its rows; the guests are told by a
continuation over their keys. Both are started once however often a button is pressed: the
run's id is made of what was asked for.

A send tells the guests of all imports that had ended when it was pressed. Pressed again it
finds that they know already, and tells only those who came since.

Lost on failure: nothing. Said twice: at most what one crash leaves without receipts (ten
mails or 50 ms of them, see pipelines/continuations/attempt.py); the page counts them.

Source: B. Slatkin, "Building high-throughput data pipelines on Google App Engine", 2010,
"Example fan-out".
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from email.headerregistry import Address
from email.message import EmailMessage
from typing import Any

from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from demos.invitations import mail
from demos.invitations.guest_lists import Layout, Row, guest_rows, layout_of
from models.continuations import RUNNING, run_key
from models.demos.invitations import (
    Guest,
    GuestImport,
    Party,
    guest_key,
    guest_prefix,
    guests_of,
    party_key,
)
from models.demos.uploads import put_upload, read_upload
from models.transactions import current_transaction, transact
from pipelines import continuations
from pipelines.continuations import (
    DeferredItemError,
    ItemError,
    Job,
    RefusedItemError,
    SkippedItemError,
)
from pipelines.continuations.csv_source import CsvSource, normalized
from pipelines.continuations.progress import progress
from pipelines.continuations.sources import EntitySource
from pipelines.runtime import Clients, naive_utc
from pipelines.tasks import hashed_name

MAX_IMPORTS = 500
# Of the widest letters, each some 6 KB as JSON.
MAX_SENDS_KEPT = 50
# A name and an address that stand on one line of a mail together, quotes and all.
SHORT_ENOUGH = 60
# What has a meaning of its own in a header that holds addresses.
_ADDRESS_SIGNS = re.compile(r'[<>,;:"()\[\]\\@]')
SEND_TRIES = 5


class Error(Exception):
    """Base class for errors of this module."""


class UnknownPartyError(Error, LookupError):
    """There is no party of this id."""


class ImportGoingOnError(Error):
    """Another file of this party is still being read."""


class ForeignImportError(Error):
    """This id is taken by a file of another party."""


class NobodyInvitedError(Error):
    """The party has no guests yet."""


@dataclass(frozen=True)
class Details:
    """What a party is about, as its host writes it."""

    title: str
    host: str
    place: str
    when: datetime.datetime
    note: str = ""


# Parties


def create_party(clients: Clients, party_id: str, details: Details) -> bool:
    """Create a party, once per id; True if this call made it."""

    def put_once() -> bool:
        if (party := party_key(party_id).get()) is not None:
            return _is_saved_here(party)
        now = naive_utc(clients.clock.now())
        _save(Party(key=party_key(party_id), created=now, **asdict(details)))
        return True

    return transact(put_once)


def change_party(party_id: str, details: Details) -> bool:
    """Save new details; True if they differ from the old ones."""

    def save() -> bool:
        party = party_of(party_id)
        if details_of(party) == details:
            return _is_saved_here(party)
        party.populate(**asdict(details))
        party.change += 1
        _save(party)
        return True

    return transact(save)


def _save(party: Party, *others: Any) -> None:
    """Store a party in a transaction, with the proof that this transaction did."""
    party.saved_by = current_transaction().id
    ndb.put_multi([party, *others])


def _is_saved_here(party: Party) -> bool:
    """Return whether this transaction stored the party in a try whose reply was lost."""
    return party.saved_by == current_transaction().id  # type: ignore[no-any-return]


def party_of(party_id: str) -> Party:
    """Return a party.

    Raises:
        UnknownPartyError: there is none of this id.
    """
    party = party_key(party_id).get()
    if party is None:
        raise UnknownPartyError(party_id)
    return party  # type: ignore[no-any-return]


def details_of(party: Party) -> Details:
    """Return what a party is about."""
    return Details(party.title, party.host, party.place, party.when, party.note)


def guests_page(party_id: str, *, after: str, size: int) -> tuple[list[Guest], str | None]:
    """Return some guests in key order, and where the next page starts, if there is one."""
    found = guests_of(party_id, after=after).fetch(size + 1)
    return found[:size], found[size - 1].key.id() if len(found) > size else None


# Importing guests


@dataclass(frozen=True)
class ImportArgs:
    """A stored file of guests, and how it is to be read."""

    party_id: str
    import_id: str
    import_number: int
    layout: Layout
    upload_id: str


def import_guests(
    clients: Clients, party_id: str, import_id: str, content: bytes, file_name: str
) -> bool:
    """Store a file and start reading it, once per import_id; True if this call did.

    Raises:
        pipelines.continuations.csv_source.BadFileError: it is no guest list; nothing was stored.
        ImportGoingOnError: the party's last file is still being read.
        ForeignImportError: the id is that of another party's file.
    """
    party = party_of(party_id)
    if import_id in party.imports:
        return False
    if run_key(import_id).get() is not None:
        raise ForeignImportError(import_id)
    _check_no_import_goes_on(party)
    content = normalized(content)
    layout = layout_of(content)
    now = naive_utc(clients.clock.now())
    # Named by its content too: another file under the same form must not mix with this one.
    upload_id = f"{import_id}-{hashlib.sha256(content).hexdigest()[:16]}"
    put_upload(upload_id, content, now)
    number = len(party.imports) + 1
    args = ImportArgs(party_id, import_id, number, layout, upload_id)
    lines = content.count(b"\n")
    run = continuations.new_run(clients, IMPORT, args, run_id=import_id, expected=lines)
    row = GuestImport(
        id=import_id,
        party_id=party_id,
        file_name=file_name[:200],
        size_bytes=len(content),
        created=now,
    )

    def begin() -> bool:
        party = party_of(party_id)
        if import_id in party.imports:
            return _is_saved_here(party)
        _check_no_import_goes_on(party)
        if run.key.get() is not None:
            raise ForeignImportError(import_id)
        if len(party.imports) != number - 1:
            raise ImportGoingOnError(party_id)
        party.imports = [*party.imports, import_id]
        _save(party, row, run)
        return True

    is_new = transact(begin)
    continuations.launch(clients, IMPORT, import_id)
    return is_new


def _check_no_import_goes_on(party: Party) -> None:
    if len(party.imports) >= MAX_IMPORTS:
        raise ImportGoingOnError(f"a party takes at most {MAX_IMPORTS} files")
    if party.imports and _is_running(party.imports[-1]):
        raise ImportGoingOnError(party.key.id())


def _is_running(run_id: str) -> bool:
    run = run_key(run_id).get()
    return run is not None and run.state == RUNNING


def _rows(args: ImportArgs) -> CsvSource[Row]:
    return guest_rows(lambda offset: read_upload(args.upload_id, offset), args.layout)


def _invite(clients: Clients, args: ImportArgs, rows: Sequence[Row]) -> list[ItemError | None]:
    """Add the guests in some rows, inside a transaction; the rows' receipts commit with it."""
    keys = [guest_key(args.party_id, row.address) for row in rows if not row.problem]
    distinct = list(dict.fromkeys(keys))
    there = dict(zip(distinct, ndb.get_multi(distinct), strict=True))
    added: list[Guest] = []
    answers: list[ItemError | None] = []
    for row in rows:
        if row.problem:
            answers.append(RefusedItemError(row.problem))
            continue
        key = guest_key(args.party_id, row.address)
        if (guest := there[key]) is not None:
            answers.append(_known(args, row, guest))
            continue
        there[key] = Guest(
            key=key,
            name=row.name,
            address=row.address,
            import_id=args.import_id,
            import_number=args.import_number,
            line=row.line,
        )
        added.append(there[key])
        answers.append(None)
    ndb.put_multi(added)
    return answers


def _known(args: ImportArgs, row: Row, guest: Guest) -> ItemError | None:
    if guest.import_id != args.import_id:
        return SkippedItemError(f"{row.address} is on the list already")
    if guest.line != row.line:
        return SkippedItemError(f"{row.address} is on line {guest.line} already")
    return None  # This very row, applied before.


IMPORT = Job(
    name="import-guests",
    queue="imports",
    args=ImportArgs,
    source=_rows,
    apply=_invite,
    page_size=250,
)


# Telling guests


@dataclass(frozen=True)
class TellArgs:
    """Whom to tell what: the guests of imports `after_import` < n <= `to_import`."""

    party_id: str
    change: int
    after_import: int
    to_import: int
    title: str
    host: str
    place: str
    when: datetime.datetime
    note: str
    news: list[str]


@dataclass(frozen=True)
class Sent:
    """What pressing send led to."""

    run_id: str
    is_new: bool
    guests: int


def send(clients: Clients, party_id: str, *, page_size: int | None = None) -> Sent:
    """Tell every guest about the party's last change, once.

    Args:
        page_size: Guests a task; None leaves it to the job.

    Raises:
        NobodyInvitedError: no import has ended with a guest.
        google.api_core.exceptions.Aborted: others kept changing the party or pressing send.
    """
    for _ in range(SEND_TRIES):
        if (sent := _send_draft(clients, party_of(party_id), page_size)) is not None:
            return sent
    raise rpc_errors.Aborted(  # type: ignore[no-untyped-call]
        f"party {party_id} keeps changing"
    )


def _send_draft(clients: Clients, seen: Party, page_size: int | None) -> Sent | None:
    """Send what pressing send means for a party as it was seen; None: it has changed."""
    party_id = seen.key.id()
    draft = _draft(clients, seen, page_size)
    if draft is None:
        raise NobodyInvitedError(party_id)
    run, plan = draft

    def begin() -> Sent | None:
        party = party_of(party_id)
        for old in party.sends:
            if old["run_id"] == run.key.id():
                is_new = _is_saved_here(party)
                return Sent(old["run_id"], is_new, plan["guests"] if is_new else 0)
        if (party.change, party.sends) != (seen.change, seen.sends):
            return None  # Another send tells some of these guests, or the news are old.
        party.sends = [*map(_without_note, party.sends[-MAX_SENDS_KEPT:]), plan]
        _save(party, run)
        return Sent(run.key.id(), True, plan["guests"])

    if not plan["guests"]:
        return Sent(run.key.id(), False, 0)
    sent = transact(begin)
    if sent is not None:
        continuations.launch(clients, TELL, sent.run_id)
    return sent


def _draft(
    clients: Clients, party: Party, page_size: int | None
) -> tuple[Any, dict[str, Any]] | None:
    """Return the run that pressing send asks for now, and the party's note of it.

    The run's id says party, change and imports: the same press gives the same run. A press
    that has nobody to tell gives the last run of this change, with 0 guests.
    """
    imports = _ended_imports(party)
    same_change = [old for old in party.sends if old["change"] == party.change]
    told_imports = max([old["imports"] for old in same_change], default=0)
    guests = sum(_added(run_id) for run_id in party.imports[told_imports:imports])
    if guests == 0:
        if not same_change:
            return None
        run_id = same_change[-1]["run_id"]
        return run_key(run_id).get(), {"guests": 0}
    details = details_of(party)
    args = TellArgs(
        party_id=party.key.id(),
        change=party.change,
        after_import=told_imports,
        to_import=imports,
        news=_news(party, details),
        **asdict(details),
    )
    run_id = hashed_name("tell", party.key.id(), party.change, told_imports, imports)
    everybody = sum(_added(import_id) for import_id in party.imports[:imports])
    run = continuations.new_run(
        clients, TELL, args, run_id=run_id, expected=everybody, page_size=page_size
    )
    plan = {
        "run_id": run_id,
        "change": party.change,
        "imports": imports,
        "guests": guests,
        "told": _as_words(details),
    }
    return run, plan


def _ended_imports(party: Party) -> int:
    going_on = bool(party.imports) and _is_running(party.imports[-1])
    return len(party.imports) - going_on


def _added(import_id: str) -> int:
    return progress(import_id, dots=False).totals.done


def _news(party: Party, now: Details) -> list[str]:
    """Return what changed since the guests were told last, a line each."""
    if not party.sends:
        return []
    before, after = party.sends[-1]["told"], _as_words(now)
    words = {"title": "What", "host": "Host", "place": "Where", "when": "When", "note": "Note"}
    return [
        f"{word}: {before.get(field) or '-'} → {after[field] or '-'}"
        for field, word in words.items()
        if before.get(field) != after[field]
    ]


def _without_note(send: dict[str, Any]) -> dict[str, Any]:
    """Return a party's note of an old send without the long part: the row must stay small."""
    return {**send, "told": {**send["told"], "note": ""}}


def _as_words(details: Details) -> dict[str, str]:
    return {**asdict(details), "when": f"{details.when:%Y-%m-%d %H:%M}"}


def _guests(args: TellArgs) -> EntitySource:
    return EntitySource(Guest, key_prefix=guest_prefix(args.party_id))


@contextlib.contextmanager
def _mail_each(clients: Clients, args: TellArgs) -> Iterator[Callable[[Guest], None]]:
    """Open one line to the relay for a page of guests."""
    mailer = clients.service(mail.Mailer)
    with mailer.connect() as line:

        def tell(guest: Guest) -> None:
            if not args.after_import < guest.import_number <= args.to_import:
                raise SkippedItemError("told by another send, or invited later")
            try:
                line.send(mail_for(args, guest, mailer.sender))
            except mail.RefusedError as error:
                raise RefusedItemError(f"{guest.address}: {error}") from error
            except mail.DeferredError as error:
                raise DeferredItemError(f"{guest.address}: {error}") from error

        yield tell


def mail_for(args: TellArgs, guest: Guest, sender: str) -> EmailMessage:
    """Return the mail for one guest about one change.

    Its Message-ID is the same whenever it is made, so that whoever gets it twice after a
    crash can tell.
    """
    message = EmailMessage()
    user, _, domain = guest.address.rpartition("@")
    message["From"] = sender
    message["To"] = Address(_display_name(guest), user, domain)
    subject = f"{args.title}: {'news' if args.news else 'you are invited'}"
    message["Subject"] = _in_header(subject)
    key = hashed_name(guest.key.id(), args.change)
    message["Message-ID"] = f"<{key}@{sender.rpartition('@')[2].rstrip('>')}>"
    lines = [f"Hello {guest.name},", ""]
    if args.news:
        lines += ["this has changed:", *(f"  {line}" for line in args.news), ""]
    lines += [
        args.title,
        f"When:  {args.when:%Y-%m-%d %H:%M}",
        f"Where: {args.place}",
        f"Host:  {args.host}",
    ]
    if args.note:
        lines += ["", args.note]
    message.set_content("\n".join(lines) + "\n")
    return message


def _display_name(guest: Guest) -> str:
    """Return a guest's name as it may stand before the address.

    Python loses the quotes of a name when it folds the line, and what they kept would be
    read as addresses: a name that may be folded goes without such signs.
    """
    name = _in_header(guest.name)
    if len(name) + len(guest.address) <= SHORT_ENOUGH:
        return name
    return " ".join(_ADDRESS_SIGNS.sub(" ", name).split())


def _in_header(text: str) -> str:
    """Return text that a header shows as it is.

    Python decodes what looks like an encoded word in the text itself, and a line break in
    it would begin a header of the guest's own.

    >>> _in_header("=?utf-8?q?=0D=0ABcc:?=")
    '= ?utf-8?q?=0D=0ABcc:?='
    """
    return text.replace("=?", "= ?")


TELL = Job(
    name="tell-guests",
    queue="fan-out",
    args=TellArgs,
    source=_guests,
    side_effect=_mail_each,
    page_size=100,
)
