"""The mail to one guest about one change of a party."""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from email.headerregistry import Address
from email.message import EmailMessage

from models.invitations import Guest
from rollforward.tasks import hashed_name

# Length of a name and an address that fit on one line of a mail, quotes included.
MAX_UNFOLDED_CHARS = 60
# Characters with a meaning of their own in a header of addresses.
_ADDRESS_CHARACTERS = re.compile(r'[<>,;:"()\[\]\\@]')


@dataclass(frozen=True)
class TellArgs:
    """Recipients and content: the guests of imports `after_import` < n <= `to_import`."""

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


def message_for(args: TellArgs, guest: Guest, sender: str) -> EmailMessage:
    """Return the mail for one guest about one change.

    Its Message-ID is deterministic, so that a guest's mail program can recognize the second copy
    that a crash caused.
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
    """Return a guest's name for use before the address.

    Python loses the quotes of a name when it folds the line, and the quoted text would be
    read as addresses. So a name that may be folded loses such characters.
    """
    name = _in_header(guest.name)
    if len(name) + len(guest.address) <= MAX_UNFOLDED_CHARS:
        return name
    return " ".join(_ADDRESS_CHARACTERS.sub(" ", name).split())


def _in_header(text: str) -> str:
    """Return text that a header shows as it is.

    Python decodes what looks like an encoded word in the text itself, and a line break in
    it would begin a header of the guest's own.

    >>> _in_header("=?utf-8?q?=0D=0ABcc:?=")
    '= ?utf-8?q?=0D=0ABcc:?='
    """
    return text.replace("=?", "= ?")
