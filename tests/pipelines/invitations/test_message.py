"""What one mail says: one recipient, and no header that a guest or a host has written."""

from __future__ import annotations

import email
import email.policy
from collections import Counter
from dataclasses import replace
from email.message import EmailMessage
from typing import Any

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import ndb
from hypothesis import given, settings
from hypothesis import strategies as st

from models.invitations import Guest, guest_key
from pipelines.invitations.guest_lists import GuestColumns, row_of
from pipelines.invitations.message import TellArgs, message_for
from tests.pipelines.invitations.host import DETAILS, Host

pytestmark = pytest.mark.fast

# Entities can be made without a store behind them.
NOWHERE = ndb.Client("demo-tests", credentials=AnonymousCredentials())


def tell(**changes: Any) -> TellArgs:
    args = TellArgs("p1", 1, 0, 1, "Party", "Brett", "Roof", DETAILS.when, "", [])
    return replace(args, **changes)


def on_the_wire(message: EmailMessage) -> EmailMessage:
    """Return a mail as its reader gets it."""
    raw = message.as_bytes(policy=message.policy.clone(linesep="\r\n"))
    return email.message_from_bytes(raw, policy=email.policy.default)  # type: ignore[return-value]


def guest_named(name: str) -> Guest:
    """Return a guest as an import makes one out of a cell."""
    row = row_of(1, [name, "ann@example.com"], GuestColumns(",", 0, 1, "0:1"))
    with NOWHERE.context():
        key = guest_key("p1", "ann@example.com")
        return Guest(key=key, name=row.name or "Ann", address="ann@example.com")


HEADERS = {
    "From",
    "To",
    "Subject",
    "Message-ID",
    "Content-Type",
    "Content-Transfer-Encoding",
    "MIME-Version",
}


NASTY = [
    "Ann\r\nBcc: eve@example.com",
    "Ann\n\nbody",
    "=?utf-8?q?=0D=0ABcc=3A_eve=40example=2Ecom?=",
    "=?utf-8?b?DQpCY2M6IGV2ZUBleGFtcGxlLmNvbQ==?= Ann",
    "Ann =?utf-8?q?=0D=0A?= =?utf-8?q?=0D=0AX=3A_y?=",
    'Ann" <eve@example.com>, "Bob',
    "eve@example.com, Ann",
    "<eve@example.com>",
    "undisclosed-recipients:;",
    "(comment) \\",
    "\x00\x1b[2J",
    "\u202egnp.exe",
    "佐藤 花子" * 40,
    "x" * 5_000,
]


TITLES = [name[:120] for name in NASTY if name.isprintable()]


def assert_harmless(message: EmailMessage) -> None:
    """One recipient, and the headers that we put there."""
    got = on_the_wire(message)
    assert set(got.keys()) == HEADERS
    assert len(got.keys()) == len(HEADERS)
    assert [address.addr_spec for address in got["To"].addresses] == ["ann@example.com"]


@pytest.mark.parametrize("name", NASTY, ids=lambda name: repr(name[:12]))
def test_a_name_adds_neither_headers_nor_recipients(name: str) -> None:
    """Whatever stands in a list of guests: one recipient, and no header of the guest's own."""
    assert_harmless(message_for(tell(), guest_named(name), "B <b@demo.example>"))


@pytest.mark.parametrize("title", TITLES, ids=lambda name: repr(name[:12]))
def test_a_title_adds_no_headers(title: str) -> None:
    """What a host may write as a title stays in the subject."""
    assert_harmless(message_for(tell(title=title), guest_named("Ann"), "B <b@demo.example>"))


PARTS = ["=?", "?=", "utf-8", "?q?", "?b?", "=0D=0A", "DQo=", "Bcc: "]


SIGNS = list('\r\n\t"<>@,;: \\()=?é花😀a\u2028\0')


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(PARTS + SIGNS), max_size=16).map("".join))
def test_no_name_and_no_title_forges_a_header(text: str) -> None:
    """Any mixture of what headers are made of, as a name and as a title."""
    title = "".join(char for char in text if char.isprintable())

    assert_harmless(message_for(tell(title=title), guest_named(text), "B <b@demo.example>"))


@pytest.mark.parametrize("name", ["Ann", "佐藤 花子", 'Ann "Annie" Doe', "Doe, Ann", "O'Neil"])
def test_names_and_titles_arrive_as_they_are(name: str) -> None:
    """Caution changes no ordinary name."""
    message = message_for(tell(title=name), guest_named(name), "B <b@demo.example>")

    got = on_the_wire(message)
    assert got["To"].addresses[0].display_name == name
    assert got["Subject"] == f"{name}: you are invited"
    assert f"Hello {name}," in got.get_content()


def test_the_same_mail_has_the_same_id() -> None:
    """A guest who gets it twice after a crash can tell; another change is another mail."""
    ids = {
        (change, name): message_for(tell(change=change), guest_named(name), "B <b@demo.example>")[
            "Message-ID"
        ]
        for change in (1, 2)
        for name in ("Ann", "Bob")
    }

    assert ids[1, "Ann"] == ids[1, "Bob"] != ids[2, "Ann"]
    assert ids[1, "Ann"].endswith("@demo.example>")


@pytest.mark.parametrize(
    "name",
    [
        "Ann <evil@example.org>, " + "word " * 12 + "wordddddd",
        'Ann "x" <evil@example.org> ' + "word " * 30,
        "Ann <evil@example.org>",
        "a@b.example, " * 12,
    ],
)
def test_a_name_adds_no_recipient(name: str) -> None:
    """Whatever a guest is called, the mail has one recipient: the guest."""
    message = message_for(tell(), guest_named(name), "B <b@demo.example>")

    parsed = on_the_wire(message)

    assert [address.addr_spec for address in parsed["To"].addresses] == ["ann@example.com"]


def test_nasty_names_go_out_through_a_real_relay(host: Host) -> None:
    """End to end: each of them is a guest with one mail, or a row that is listed."""
    names = [name.replace("\0", "") for name in NASTY]
    quoted = [f'"{name.replace(chr(34), chr(34) * 2)}"' for name in names]
    rows = [f"{name},g{i}@example.com" for i, name in enumerate(quoted)]
    done = host.invite("\n".join(["name,email", *rows]))

    host.send()

    assert done.totals.done + done.totals.failed == len(NASTY)
    assert host.mails() == Counter(dict.fromkeys(host.guests(), 1))
