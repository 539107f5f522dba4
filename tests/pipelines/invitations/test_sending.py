"""Sending: every guest on the list is told of every change, once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pytest

from models.invitations import Party
from pipelines.invitations import sending
from pipelines.invitations.parties import PartyDetails
from pipelines.invitations.sending import NobodyInvitedError, as_text
from rollforward.continuations.entities import FINISHED
from rollforward.outbox.entities import OutboxTask
from rollforward.runtime import Clients
from rollforward.tasks.errors import Unavailable
from rollforward.testing.world import in_threads
from tests.pipelines.invitations.host import (
    DETAILS,
    Host,
    cloud_tasks_away,
    once,
    one_emulator,
    people,
)


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


@dataclass
class Kept:
    """A relay that keeps what it is to create."""

    rows: list[OutboxTask] = field(default_factory=list)

    def send(self, clients: Clients, rows: Sequence[OutboxTask]) -> None:
        self.rows += rows


@one_emulator
@pytest.mark.parametrize("is_pressed_again", [False, True])
def test_a_send_that_was_stored_while_cloud_tasks_was_away_begins_when_it_answers(
    host: Host, is_pressed_again: bool
) -> None:
    """By the process that stored it, or by the next press; whoever pressed is told of it."""
    host.invite(people("ann", "bob"))
    world, relay = host.world, Kept()
    with cloud_tasks_away(world):
        world.clients = replace(world.clients, relay=relay)  # type: ignore[arg-type]
        with pytest.raises(Unavailable):
            host.press_send()
    assert world.engine.due() == []

    if is_pressed_again:
        assert not host.press_send().is_new
    else:
        with world.context():
            world.clients.relay.send(world.clients, relay.rows)

    world.deliver_due()
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
    original = sending._plan
    pressed: list[bool] = []

    def plan_then_be_overtaken(party: Party) -> Any:
        """Plan for the first list alone, then let another press tell both."""
        if pressed:
            return original(party)
        pressed.append(True)
        early = Party(key=party.key, **{**party.to_dict(), "imports": ["i1"]})
        plan = original(early)
        in_threads(host.press_send)
        return plan

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sending, "_plan", plan_then_be_overtaken)
        sent = host.press_send()
    host.world.settle()

    assert not sent.is_new
    assert host.mails() == once("ann", "bob")


@one_emulator
def test_a_press_overtaken_by_a_change_tells_the_change(host: Host) -> None:
    """News that were old before they were stored are not sent."""
    host.invite(people("ann"), "i1")
    original = sending._plan
    changed: list[bool] = []

    def plan_then_change(party: Party) -> Any:
        plan = original(party)
        if not changed:
            changed.append(True)
            in_threads(lambda: host.change(place="Cellar"))
        return plan

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sending, "_plan", plan_then_change)
        host.send()

    assert host.mails() == once("ann")
    assert "Where: Cellar" in host.texts("ann@example.com")[0]


def test_a_party_never_grows_too_large_to_send(host: Host) -> None:
    """What the party keeps of its sends fits into its row, in the widest letters there are."""
    wide = PartyDetails(
        "\U0001f389" * 120, "\U0001f389" * 120, "\U0001f389" * 200, DETAILS.when, "n" * 9000
    )
    host.change(**asdict(wide))
    host.invite("name,email\nAnn,ann@example.com\n")
    with host.world.context():
        party = host.party
        note = {"guests": 1, "imports": 1, "details": as_text(wide)}
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
