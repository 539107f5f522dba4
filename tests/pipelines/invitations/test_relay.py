"""Sends and a relay that is busy, refuses or is down; and how a send is controlled."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import main
from models.invitations import guest_key
from pipelines.invitations import sending
from pipelines.invitations.mail import Mailer, SmtpMailer
from pipelines.registry import APP
from rollforward import continuations
from rollforward.continuations.entities import CANCELLED, FINISHED, RUNNING
from rollforward.continuations.progress import progress
from rollforward.tasks.dead_task_entities import DeadTask
from tests.pipelines.invitations.host import Host, once, one_emulator, people


@one_emulator
def test_a_relay_that_is_busy_is_asked_again_and_then_given_up(host: Host) -> None:
    """451: five passes, then failed; told so by name, and nothing parked."""
    host.invite(people("ann", "bob"))
    host.world.services.mail.set_faults(temporary_rate=1.0)

    done = host.send()

    assert (done.state, done.totals.failed, done.totals.done) == (FINISHED, 2, 0)
    assert host.mails() == Counter()
    listed = host.item_issues(done.run_id)
    assert [issue.outcome for issue in listed] == ["failed", "failed"]
    assert all("451" in issue.reason and "@example.com" in issue.reason for issue in listed)
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


def test_a_cancelled_send_stops_and_a_resumed_one_tells_the_rest(host: Host) -> None:
    """Cancel leaves whom it left; resume tells them, and nobody twice."""
    host.invite(people("ann", "bob", "cid"))
    with host.world.context():
        sent = sending.send(host.world.clients, host.party_id, page_size=1)
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
