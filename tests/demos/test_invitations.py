"""Invitations: every guest on the list is told of every change once, whatever happens."""

from __future__ import annotations

import datetime
import email
import email.policy
import hashlib
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from email.message import EmailMessage
from typing import Any

import grpc
import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import ndb
from hypothesis import given, settings
from hypothesis import strategies as st

import main
from demos.invitations import parties as invitations
from demos.invitations.guest_lists import Layout, row_of
from demos.invitations.mail import Mailer, SmtpMailer
from demos.invitations.parties import (
    Details,
    ForeignImportError,
    ImportGoingOnError,
    NobodyInvitedError,
    Sent,
    TellArgs,
    UnknownPartyError,
    mail_for,
)
from demos.registry import APP
from models.continuations import CANCELLED, FINISHED, RUNNING, ContinuationRun, run_key
from models.dead_tasks import DeadTask
from models.demos.invitations import Guest, GuestImport, Party, guest_key, guests_of
from models.demos.uploads import UploadChunk, put_upload
from pipelines import continuations
from pipelines.continuations.csv_source import BadFileError
from pipelines.continuations.progress import ItemIssue, Progress, Totals, item_issues, progress
from pipelines.runtime import Cost, naive_utc
from tests.explorer import Explorer
from tests.faults import KINDS, REPLY_LOST
from tests.world import World, in_threads

one_emulator = pytest.mark.parametrize("services", ["datastore"], indirect=True)

DETAILS = Details("Garden party", "Brett", "Roof", datetime.datetime(2030, 5, 1, 19, 30))  # noqa: DTZ001


@dataclass
class Host:
    """Somebody who gives a party: all that the pages can do, without pages."""

    world: World
    party_id: str = "p1"

    def create(self, details: Details = DETAILS) -> bool:
        with self.world.context():
            return invitations.create_party(self.world.clients, self.party_id, details)

    def change(self, **changes: Any) -> bool:
        with self.world.context():
            now = invitations.details_of(self.party)
            return invitations.change_party(self.party_id, replace(now, **changes))

    def start_import(self, content: str | bytes, import_id: str) -> bool:
        data = content.encode() if isinstance(content, str) else content
        with self.world.context():
            return invitations.import_guests(
                self.world.clients, self.party_id, import_id, data, "guests.csv"
            )

    def invite(self, content: str | bytes, import_id: str = "i1") -> Progress:
        """Import a file to its end."""
        self.start_import(content, import_id)
        self.world.settle()
        return self.run(import_id)

    def press_send(self) -> Sent:
        with self.world.context():
            return invitations.send(self.world.clients, self.party_id)

    def send(self) -> Progress:
        """Send to the end."""
        sent = self.press_send()
        self.world.settle()
        return self.run(sent.run_id)

    @property
    def party(self) -> Party:
        return invitations.party_of(self.party_id)

    def run(self, run_id: str) -> Progress:
        with self.world.context():
            return progress(run_id)

    def item_issues(self, run_id: str) -> list[ItemIssue]:
        with self.world.context():
            return item_issues(run_id)

    def guests(self) -> dict[str, str]:
        with self.world.context():
            return {guest.address: guest.name for guest in guests_of(self.party_id)}

    def mails(self) -> Counter[str]:
        """Return how many mails each address has got."""
        got = self.world.services.mail.messages()
        return Counter(address for mail in got for address in mail.recipients)

    def texts(self, address: str) -> list[str]:
        """Return an address's mails, oldest first."""
        got = self.world.services.mail.messages()
        return [mail.text for mail in reversed(got) if address in mail.recipients]


@pytest.fixture
def host(world: World) -> Host:
    host = Host(world)
    host.create()
    return host


def people(*names: str) -> str:
    return "name,email\n" + "".join(f"{name.title()},{name}@example.com\n" for name in names)


def once(*names: str) -> Counter[str]:
    return Counter({f"{name}@example.com": 1 for name in names})


# Parties


@one_emulator
def test_a_form_sent_twice_creates_one_party(host: Host) -> None:
    """The id comes with the form: the second press changes nothing."""
    assert not host.create(replace(DETAILS, title="Another"))

    with host.world.context():
        assert [party.title for party in Party.query()] == ["Garden party"]


@one_emulator
def test_a_change_counts_and_no_change_does_not(host: Host) -> None:
    """Saving what is there already is no news."""
    assert not host.change(title="Garden party")
    assert host.change(title="Roof party")

    with host.world.context():
        assert (host.party.title, host.party.change) == ("Roof party", 2)
        with pytest.raises(UnknownPartyError):
            invitations.change_party("nobody's", DETAILS)


# Importing


def test_good_rows_are_guests_and_bad_rows_are_listed(host: Host) -> None:
    """A row that cannot be read costs that row alone, and is named by its line."""
    done = host.invite(
        "name,email\nAnn,ann@example.com\nBob\n\nCid,cid@\n"
        '"Dan\nDoe",dan@example.com\nAnn again,ANN@example.com\n'
    )

    assert (done.state, done.totals.done, done.totals.failed, done.totals.skipped) == (
        FINISHED,
        2,
        2,
        1,
    )
    assert host.guests() == {"ann@example.com": "Ann", "dan@example.com": "Dan Doe"}
    listed = host.item_issues("i1")
    assert [(mishap.name, mishap.outcome) for mishap in listed] == [
        ("3", "failed"),
        ("5", "failed"),
        ("8", "skipped"),
    ]
    assert "no mail address" in listed[0].reason
    assert "line 2 already" in listed[2].reason


def test_a_guest_of_two_files_is_one_guest(host: Host) -> None:
    """Across files, however the address is written, the first row counts."""
    host.invite(people("ann", "bob"))

    second = host.invite("Ann B.,Ann@Example.com\nCid,cid@example.com\n", "i2")

    assert (second.totals.done, second.totals.skipped) == (1, 1)
    assert set(host.guests()) == {"ann@example.com", "bob@example.com", "cid@example.com"}
    assert "on the list already" in host.item_issues("i2")[0].reason


@one_emulator
def test_an_import_is_known_by_its_id(host: Host) -> None:
    """The same form sent twice, during and after the import, reads one file once."""
    first = host.start_import(people("ann"), "i1")
    during = host.start_import(people("ann"), "i1")
    host.world.settle()
    after = host.start_import(people("eve"), "i1")
    host.world.settle()

    assert (first, during, after) == (True, False, False)
    assert set(host.guests()) == {"ann@example.com"}
    with host.world.context():
        assert host.party.imports == ["i1"]


@one_emulator
def test_files_are_read_one_after_another(host: Host) -> None:
    """While a file is read the next one waits for its turn, with nothing stored of it."""
    host.start_import(people("ann"), "i1")

    with pytest.raises(ImportGoingOnError):
        host.start_import(people("bob"), "i2")

    with host.world.context():
        assert len(UploadChunk.query().fetch()) == 1
        assert GuestImport.get_by_id("i2") is None
    host.world.settle()
    assert host.start_import(people("bob"), "i2")


@one_emulator
def test_the_id_of_another_partys_file_takes_nothing_from_it(host: Host) -> None:
    """S28: a form with a foreign id is refused; the other party's file and run stay whole."""
    other = Host(host.world, "p2")
    other.create()
    host.start_import(people("ann"), "i1")

    with pytest.raises(ForeignImportError):
        other.start_import(people("eve"), "i1")
    host.world.settle()
    with pytest.raises(ForeignImportError):
        other.start_import(people("eve"), "i1")
    host.world.settle()

    assert set(host.guests()) == {"ann@example.com"}
    assert other.guests() == {}
    assert host.run("i1").totals.done == 1


@one_emulator
def test_two_parties_that_use_one_id_at_once_do_not_mix(host: Host) -> None:
    """S28: whoever commits first has the id; the other is told, and gets no guests of it."""
    other = Host(host.world, "p2")
    other.create()
    original = invitations.put_upload

    def overtaken(*args: Any) -> None:
        with pytest.MonkeyPatch.context() as back:
            back.setattr(invitations, "put_upload", original)
            in_threads(lambda: other.start_import(people("ann"), "i1"))
        original(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(invitations, "put_upload", overtaken)
        with pytest.raises(ForeignImportError):
            host.start_import(people("ann"), "i1")
    host.world.settle()

    assert host.guests() == {}
    assert set(other.guests()) == {"ann@example.com"}


@one_emulator
def test_a_file_that_cannot_be_read_leaves_nothing(host: Host) -> None:
    """A refused upload stores neither chunks nor a run, and stops no later one."""
    with pytest.raises(BadFileError):
        host.start_import(b"PK\x03\x04\x00", "i1")

    with host.world.context():
        assert UploadChunk.query().fetch() == []
        assert host.party.imports == []
    assert host.start_import(people("ann"), "i1")


@one_emulator
def test_a_file_of_several_pages_and_chunks_is_read_whole(host: Host) -> None:
    """A1: more rows than a page and more bytes than a chunk; each row once."""
    rows = [f"Guest {i} {'x' * 100},g{i}@example.com" for i in range(700)]

    done = host.invite("\n".join(rows))

    assert (done.totals.done, done.totals.failed, done.totals.pages) == (700, 0, 3)
    assert len(host.guests()) == 700


@one_emulator
def test_parties_do_not_share_guests(host: Host) -> None:
    """A2: an address invited to two parties is told by each of its own."""
    other = Host(host.world, "p10")
    other.create(replace(DETAILS, title="Other"))
    host.invite(people("ann"), "i1")
    other.invite(people("ann", "bob"), "i2")

    host.send()

    assert host.mails() == once("ann")


# Sending


def test_every_guest_gets_one_mail(host: Host) -> None:
    """One send, one mail each, which says what the party is about."""
    host.invite(people("ann", "bob", "cid"))

    done = host.send()

    assert (done.state, done.totals.done, done.totals.in_doubt) == (FINISHED, 3, 0)
    assert host.mails() == once("ann", "bob", "cid")
    [text] = host.texts("ann@example.com")
    assert "Hello Ann," in text
    assert "2030-05-01 19:30" in text
    assert "changed" not in text


def test_pressing_send_twice_sends_nothing_twice(host: Host) -> None:
    """Before, during and after: the second press finds that they are told."""
    host.invite(people("ann", "bob"))

    first = host.press_send()
    during = host.press_send()
    host.world.settle()
    after = host.press_send()
    host.world.settle()

    assert (first.is_new, first.guests) == (True, 2)
    assert (during.is_new, during.guests) == (after.is_new, after.guests) == (False, 0)
    assert first.run_id == during.run_id == after.run_id
    assert host.mails() == once("ann", "bob")


@one_emulator
def test_nobody_to_tell_is_said(host: Host) -> None:
    """Without guests, or with none but those of a file still being read, nothing is stored."""
    with pytest.raises(NobodyInvitedError):
        host.press_send()
    host.start_import(people("ann"), "i1")
    with pytest.raises(NobodyInvitedError):
        host.press_send()

    with host.world.context():
        assert host.party.sends == []


@one_emulator
def test_those_who_came_later_are_told_once(host: Host) -> None:
    """The same change again: only the guests of the new file get a mail."""
    host.invite(people("ann"), "i1")
    host.send()
    host.invite(people("ann", "bob"), "i2")

    again = host.press_send()
    host.world.settle()

    assert (again.is_new, again.guests) == (True, 1)
    assert host.mails() == once("ann", "bob")
    assert "changed" not in host.texts("bob@example.com")[0]


@one_emulator
def test_a_change_is_told_to_all_with_what_is_new(host: Host) -> None:
    """After a change everybody gets one more mail, which lists old and new."""
    host.invite(people("ann", "bob"))
    host.send()
    host.change(place="Cellar", note="Bring a coat.")

    host.send()

    assert host.mails() == once("ann", "bob") + once("ann", "bob")
    _, news = host.texts("ann@example.com")
    assert "Where: Roof → Cellar" in news
    assert "Note: - → Bring a coat." in news
    assert "When:" in news
    assert "What: " not in news


@one_emulator
def test_changes_that_nobody_was_told_of_are_told_together(host: Host) -> None:
    """News are what differs from the last mail, not from the last save."""
    host.invite(people("ann"))
    host.send()
    host.change(place="Cellar")
    host.change(place="Garden", host="Kay")

    host.send()

    news = host.texts("ann@example.com")[1]
    assert "Where: Roof → Garden" in news
    assert "Host: Brett → Kay" in news
    assert "Cellar" not in news


@one_emulator
def test_guests_that_come_while_a_send_runs_wait_for_the_next(host: Host) -> None:
    """A send tells whom it was pressed for; the others are told by the next press."""
    host.invite(people("ann", "bob"), "i1")
    host.press_send()
    host.start_import(people("cid"), "i2")
    host.world.settle()
    assert host.mails() == once("ann", "bob")

    host.press_send()
    host.world.settle()

    assert host.mails() == once("ann", "bob", "cid")


@one_emulator
def test_a_change_saved_while_a_send_runs_is_told_by_the_next(host: Host) -> None:
    """A run tells what was true when send was pressed, in every mail of it."""
    host.invite(people("ann", "bob"))
    host.press_send()
    host.change(place="Cellar")
    host.world.settle()

    assert "Roof" in host.texts("ann@example.com")[0]
    host.send()
    assert "Roof → Cellar" in host.texts("ann@example.com")[1]
    assert host.mails() == once("ann", "bob") + once("ann", "bob")


def test_two_presses_that_see_different_lists_tell_nobody_twice(host: Host) -> None:
    """A press overtaken by another one, after a list has grown, looks again before it sends."""
    host.invite(people("ann"), "i1")
    host.invite(people("bob"), "i2")
    original = invitations._draft
    pressed: list[bool] = []

    def draft_then_be_overtaken(clients: Any, party: Any, *rest: Any) -> Any:
        """Draft for the first list alone, then let somebody else press for both."""
        if pressed:
            return original(clients, party, *rest)
        pressed.append(True)
        early = Party(key=party.key, **{**party.to_dict(), "imports": ["i1"]})
        drafted = original(clients, early, *rest)
        in_threads(host.press_send)
        return drafted

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(invitations, "_draft", draft_then_be_overtaken)
        sent = host.press_send()
    host.world.settle()

    assert not sent.is_new
    assert host.mails() == once("ann", "bob")


@one_emulator
def test_a_press_overtaken_by_a_change_tells_the_change(host: Host) -> None:
    """News that were old before they were stored are not sent."""
    host.invite(people("ann"), "i1")
    original = invitations._draft
    changed: list[bool] = []

    def draft_then_change(clients: Any, party: Any, *rest: Any) -> Any:
        drafted = original(clients, party, *rest)
        if not changed:
            changed.append(True)
            in_threads(lambda: host.change(place="Cellar"))
        return drafted

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(invitations, "_draft", draft_then_change)
        host.send()

    assert host.mails() == once("ann")
    assert "Where: Cellar" in host.texts("ann@example.com")[0]


# The relay's moods


@one_emulator
def test_a_relay_that_is_busy_is_asked_again_and_then_given_up(host: Host) -> None:
    """451: five passes, then failed; told so by name, and nothing parked."""
    host.invite(people("ann", "bob"))
    host.world.services.mail.set_faults(temporary_rate=1.0)

    done = host.send()

    assert (done.state, done.totals.failed, done.totals.done) == (FINISHED, 2, 0)
    assert host.mails() == Counter()
    listed = host.item_issues(done.run_id)
    assert [mishap.outcome for mishap in listed] == ["failed", "failed"]
    assert all("451" in mishap.reason and "@example.com" in mishap.reason for mishap in listed)
    with host.world.context():
        assert DeadTask.query().fetch() == []


def test_a_relay_that_is_busy_for_a_while_delays_and_loses_nothing(host: Host) -> None:
    """451 for one pass: the mails come with the next one."""
    host.invite(people("ann", "bob"))
    host.world.services.mail.set_faults(temporary_rate=1.0)
    sent = host.press_send()
    host.world.deliver_due()
    assert host.run(sent.run_id).totals.retrying == 2

    host.world.services.mail.set_faults(temporary_rate=0.0)
    host.world.settle()

    assert host.mails() == once("ann", "bob")
    assert host.run(sent.run_id).state == FINISHED


def test_refused_addresses_are_listed_and_can_be_tried_again(host: Host) -> None:
    """550: that guest alone has failed; once accepted, a retry tells exactly that guest."""
    host.invite(people("ann", "bob", "cid"))
    host.world.services.mail.set_faults(refused=("bob@example.com",))
    done = host.send()
    assert (done.state, done.totals.done, done.totals.failed) == (FINISHED, 2, 1)
    assert "550" in host.item_issues(done.run_id)[0].reason
    host.world.services.mail.set_faults(refused=())

    for _ in range(2):
        with host.world.context():
            child = continuations.retry_failed(host.world.clients, APP.jobs, done.run_id)
        host.world.settle()

    assert host.mails() == once("ann", "bob", "cid")
    assert (host.run(child).totals.done, host.run(child).totals.failed) == (1, 0)
    assert not host.press_send().is_new


@one_emulator
def test_while_the_relay_is_down_the_mails_wait(host: Host) -> None:
    """An outage longer than any count of attempts: nothing lost, doubled, failed or parked."""
    world = host.world
    host.invite(people("ann", "bob", "cid"))
    down = replace(world.clients, services={Mailer: SmtpMailer("127.0.0.1", 9, "x@demo.example")})
    app = world.app
    world.app = main.create_app(world.settings, down)
    sent = host.press_send()
    for _ in range(60):
        world.deliver_due()
        world.clock.sleep(30)
    assert host.run(sent.run_id).state == RUNNING
    assert host.mails() == Counter()

    world.app = app
    world.heal(lambda: progress(sent.run_id).state == FINISHED)

    assert host.mails() == once("ann", "bob", "cid")
    with world.context():
        assert DeadTask.query().fetch() == []


# Steering


def test_a_cancelled_send_stops_and_a_resumed_one_tells_the_rest(host: Host) -> None:
    """Cancel leaves whom it left; resume tells them, and nobody twice."""
    host.invite(people("ann", "bob", "cid"))
    with host.world.context():
        sent = invitations.send(host.world.clients, host.party_id, page_size=1)
    host.world.deliver(host.world.engine.due()[0].task_name)
    with host.world.context():
        continuations.cancel(sent.run_id)
    host.world.settle()
    stopped = host.run(sent.run_id)
    assert stopped.state == CANCELLED
    assert sum(host.mails().values()) == stopped.totals.done < 3

    with host.world.context():
        continuations.resume(host.world.clients, APP.jobs, sent.run_id)
    host.world.heal(lambda: progress(sent.run_id).state == FINISHED)

    assert host.mails() == once("ann", "bob", "cid")


@one_emulator
def test_guests_that_are_gone_before_their_turn_are_skipped(host: Host) -> None:
    """A guest deleted after the page was read stops nobody else's mail."""
    host.invite(people("ann", "bob"))
    host.world.services.mail.set_faults(temporary_rate=1.0)
    sent = host.press_send()
    host.world.deliver_due()
    with host.world.context():
        guest_key("p1", "ann@example.com").delete()
    host.world.services.mail.set_faults(temporary_rate=0.0)

    host.world.settle()

    assert host.mails() == once("bob")
    assert host.run(sent.run_id).totals.skipped == 1


# What a mail says


# Entities can be made without a store behind them.
NOWHERE = ndb.Client("demo-tests", credentials=AnonymousCredentials())


def tell(**changes: Any) -> TellArgs:
    args = TellArgs("p1", 1, 0, 1, "Party", "Brett", "Roof", DETAILS.when, "", [])
    return replace(args, **changes)


def on_the_wire(message: EmailMessage) -> EmailMessage:
    """Return a mail as whoever gets it reads it."""
    raw = message.as_bytes(policy=message.policy.clone(linesep="\r\n"))
    return email.message_from_bytes(raw, policy=email.policy.default)  # type: ignore[return-value]


def guest_named(name: str) -> Guest:
    """Return a guest as an import makes one out of a cell."""
    row = row_of(1, [name, "ann@example.com"], Layout(",", 0, 1, "0:1"))
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
    assert_harmless(mail_for(tell(), guest_named(name), "B <b@demo.example>"))


@pytest.mark.parametrize("title", TITLES, ids=lambda name: repr(name[:12]))
def test_a_title_adds_no_headers(title: str) -> None:
    """What a host may write as a title stays in the subject."""
    assert_harmless(mail_for(tell(title=title), guest_named("Ann"), "B <b@demo.example>"))


WORDS = ["=?", "?=", "utf-8", "?q?", "?b?", "=0D=0A", "DQo=", "Bcc: "]
SIGNS = list('\r\n\t"<>@,;: \\()=?é花😀a\u2028\0')


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(WORDS + SIGNS), max_size=16).map("".join))
def test_no_name_and_no_title_forges_a_header(text: str) -> None:
    """Any mixture of what headers are made of, as a name and as a title."""
    title = "".join(char for char in text if char.isprintable())

    assert_harmless(mail_for(tell(title=title), guest_named(text), "B <b@demo.example>"))


@pytest.mark.parametrize("name", ["Ann", "佐藤 花子", 'Ann "Annie" Doe', "Doe, Ann", "O'Neil"])
def test_names_and_titles_arrive_as_they_are(name: str) -> None:
    """Caution changes no ordinary name."""
    message = mail_for(tell(title=name), guest_named(name), "B <b@demo.example>")

    got = on_the_wire(message)
    assert got["To"].addresses[0].display_name == name
    assert got["Subject"] == f"{name}: you are invited"
    assert f"Hello {name}," in got.get_content()


def test_the_same_mail_has_the_same_id() -> None:
    """Whoever gets it twice after a crash can tell; another change is another mail."""
    ids = {
        (change, name): mail_for(tell(change=change), guest_named(name), "B <b@demo.example>")[
            "Message-ID"
        ]
        for change in (1, 2)
        for name in ("Ann", "Bob")
    }

    assert ids[1, "Ann"] == ids[1, "Bob"] != ids[2, "Ann"]
    assert ids[1, "Ann"].endswith("@demo.example>")


def test_nasty_names_go_out_through_a_real_relay(host: Host) -> None:
    """End to end: each of them is a guest with one mail, or a row that is listed."""
    names = [name.replace("\0", "") for name in NASTY]
    quoted = [f'"{name.replace(chr(34), chr(34) * 2)}"' for name in names]
    rows = [f"{name},g{i}@example.com" for i, name in enumerate(quoted)]
    done = host.invite("\n".join(["name,email", *rows]))

    host.send()

    assert done.totals.done + done.totals.failed == len(NASTY)
    assert host.mails() == Counter(dict.fromkeys(host.guests(), 1))


# Under faults


class ImportScenario:
    """Import a file of three guests and a bad row into a party of its own."""

    def __init__(self, world: World) -> None:
        self.world = world

    def content(self, tag: str) -> bytes:
        return f"Ann,ann@{tag}.example\nBob,bob@{tag}.example\nbad\nCid,cid@{tag}.example".encode()

    def begin(self, tag: str) -> None:
        clients = self.world.clients
        with self.world.plan.unwatched():
            invitations.create_party(clients, tag, DETAILS)
        invitations.import_guests(clients, tag, f"{tag}-i", self.content(tag), "guests.csv")

    def is_done(self, tag: str) -> bool:
        run = run_key(f"{tag}-i").get()
        return run is not None and run.state == FINISHED

    def check(self, tag: str, fault: str) -> None:
        now = progress(f"{tag}-i")
        assert (now.totals.done, now.totals.failed, now.totals.known) == (3, 1, 4), fault
        assert len(guests_of(tag).fetch()) == 3, fault
        assert invitations.party_of(tag).imports == [f"{tag}-i"], fault


class SendScenario:
    """Press send for three guests that are there already."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.ready: set[str] = set()

    def begin(self, tag: str) -> None:
        if tag not in self.ready:
            with self.world.plan.unwatched():
                self.invite(tag)
            self.ready.add(tag)
        invitations.send(self.world.clients, tag)

    def invite(self, tag: str) -> None:
        """Store a party and an import of three guests that has ended."""
        now = naive_utc(self.world.clock.now())
        totals = Totals(3, 0, 0, 0, 0, 0, 1, Cost())
        done = ContinuationRun(
            key=run_key(f"{tag}-i"),
            job="import-guests",
            args="{}",
            state=FINISHED,
            spans=[["", ""]],
            page_size=250,
            started=now,
            ended=now,
            totals=asdict(totals),
        )
        guests = [
            Guest(
                key=guest_key(tag, f"{name}@{tag}.example"),
                name=name,
                address=f"{name}@{tag}.example",
                import_id=f"{tag}-i",
                import_number=1,
                line=line,
            )
            for line, name in enumerate(("ann", "bob", "cid"), 1)
        ]
        party = Party(id=tag, created=now, imports=[f"{tag}-i"], **asdict(DETAILS))
        ndb.put_multi([party, done, *guests])

    def is_done(self, tag: str) -> bool:
        sends = invitations.party_of(tag).sends
        return len(sends) == 1 and progress(sends[0]["run_id"]).state == FINISHED

    def check(self, tag: str, fault: str) -> None:
        [sent] = invitations.party_of(tag).sends
        now = progress(sent["run_id"])
        assert (now.totals.done, now.totals.failed, now.totals.known) == (3, 0, 3), fault
        mails = self.world.services.mail.store.list(text=f"@{tag}.example", limit=None)
        ids = Counter(mail.message_id for mail in mails)
        assert len(ids) == 3, fault
        assert sum(ids.values()) - 3 <= now.totals.in_doubt, fault
        if REPLY_LOST not in fault and "crash" not in fault:
            assert set(ids.values()) == {1}, fault


Scenario = Callable[[World], Any]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scenario", [ImportScenario, SendScenario])
def test_every_guest_counts_once_with_a_fault_at_any_call(
    world: World, scenario: Scenario, kind: str
) -> None:
    """A1: one fault at each remote call of an import and of a send, from the press on.

    Guests exactly once; mails at least once, and more only within the window that is counted.
    """
    Explorer(world, scenario(world)).explore([kind])


@pytest.mark.parametrize("scenario", [ImportScenario, SendScenario])
def test_every_guest_counts_once_with_all_deliveries_doubled(
    world: World, scenario: Scenario
) -> None:
    """A1: every task delivered twice over: not one guest twice, and not one mail."""
    world.doubles = True

    Explorer(world, scenario(world)).play()


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
    message = mail_for(tell(), guest_named(name), "B <b@demo.example>")

    parsed = on_the_wire(message)

    assert [address.addr_spec for address in parsed["To"].addresses] == ["ann@example.com"]


def test_another_file_under_the_same_form_does_not_mix_with_the_first(world: World) -> None:
    """A file whose import never began leaves nothing to the next one but its form's id."""
    long = "name,email\n" + "".join(f"G,g{i}@example.com\n" for i in range(5000))
    with world.context():
        invitations.create_party(world.clients, "p" * 32, DETAILS)
        upload_id = f"{'i' * 32}-{hashlib.sha256(long.encode()).hexdigest()[:16]}"
        put_upload(upload_id, long.encode(), datetime.datetime(2030, 1, 1))  # noqa: DTZ001
        put_upload("i" * 32, long.encode(), datetime.datetime(2030, 1, 1))  # noqa: DTZ001
        invitations.import_guests(
            world.clients, "p" * 32, "i" * 32, b"name,email\nAnn,ann@example.com\n", "a.csv"
        )
    world.settle()

    with world.context():
        assert [guest.address for guest in guests_of("p" * 32)] == ["ann@example.com"]


def test_a_party_never_grows_too_large_to_send(host: Host) -> None:
    """What the party keeps of its sends fits into its row, in the widest letters there are."""
    wide = Details(
        "\U0001f389" * 120, "\U0001f389" * 120, "\U0001f389" * 200, DETAILS.when, "n" * 9000
    )
    host.change(**asdict(wide))
    host.invite("name,email\nAnn,ann@example.com\n")
    with host.world.context():
        party = host.party
        note = {"guests": 1, "imports": 1, "told": invitations._as_words(wide)}
        party.sends = [{"run_id": f"{n:040}", "change": n, **note} for n in range(60)]
        party.change = 61
        party.put()

    sent = host.press_send()

    with host.world.context():
        kept = host.party.sends
    assert sent.is_new
    assert len(kept) == 51
    assert len(json.dumps(kept)) < 400_000
    assert kept[-1]["run_id"] == sent.run_id


@pytest.mark.parametrize("what", ["create", "change", "send", "import"])
def test_a_lost_reply_does_not_tell_the_host_that_nothing_was_done(host: Host, what: str) -> None:
    """The body that runs again finds what it has saved itself, and says that it was this call."""
    acts: dict[str, Callable[[], Any]] = {
        "create": lambda: Host(host.world, "p2").create(),
        "import": lambda: host.start_import("name,email\nAnn,ann@example.com\n", "i1"),
        "change": lambda: host.change(title="Another"),
        "send": lambda: host.press_send(),
    }
    for each in ["create", "import", "change", "send"]:
        if each == what:
            break
        acts[each]()
        host.world.settle()
    fired = lose_reply(host.world)

    told = acts[what]()

    assert fired == ["Commit"]
    if what == "send":
        told = told.is_new and told.guests == 1
    assert told
    again = acts[what]()
    assert not (again.is_new if what == "send" else again)


def lose_reply(world: World) -> list[str]:
    """Lose the reply of the next transaction's commit; the list tells when that was done."""
    plan, around = world.plan, world.plan.around
    seen: list[str] = []
    fired: list[str] = []

    def lose(name, effect, error):  # type: ignore[no-untyped-def]
        answer = around(name, effect, error)
        seen.append(name)
        if name == "Commit" and "BeginTransaction" in seen and not fired:
            fired.append(name)
            raise error(grpc.StatusCode.UNAVAILABLE)
        return answer

    plan.around = lose  # type: ignore[method-assign]
    return fired


def test_an_import_under_way_is_not_at_its_end(host: Host) -> None:
    """The bar is full when the import is over: before, the file says how much there is."""
    rows = "".join(f"Guest {i},g{i}@example.com\n" for i in range(600))
    host.start_import("name,email\n" + rows, "i1")
    shares = []
    while due := host.world.engine.due():
        with host.world.context():
            shares.append(progress("i1").share)
        host.world.deliver(due[0].task_name)

    assert shares == pytest.approx([0, 250 / 600, 500 / 600], abs=0.01)
    assert host.run("i1").share == 1
