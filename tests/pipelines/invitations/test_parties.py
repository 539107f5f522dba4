"""Parties: a form creates one, a change counts, and no reply is taken for nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import grpc
import pytest

from models.invitations import Party
from pipelines.invitations import parties
from pipelines.invitations.parties import UnknownPartyError
from tests.infra.world import World
from tests.pipelines.invitations.host import DETAILS, Host, one_emulator


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
            parties.change_party("nobody's", DETAILS)


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

    result = acts[what]()

    assert fired == ["Commit"]
    if what == "send":
        result = result.is_new and result.guests == 1
    assert result
    again = acts[what]()
    assert not (again.is_new if what == "send" else again)


def lose_reply(world: World) -> list[str]:
    """Lose the reply of the next transaction's commit; the list tells when that was done."""
    plan, around = world.plan, world.plan.around
    seen: list[str] = []
    fired: list[str] = []

    def lose(name, effect, error, *described):  # type: ignore[no-untyped-def]
        reply = around(name, effect, error, *described)
        seen.append(name)
        if name == "Commit" and "BeginTransaction" in seen and not fired:
            fired.append(name)
            raise error(grpc.StatusCode.UNAVAILABLE)
        return reply

    plan.around = lose  # type: ignore[method-assign]
    return fired
