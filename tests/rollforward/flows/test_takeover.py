"""A delivery that was taken for dead, and comes back: it changes nothing any more."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from rollforward.flows.errors import LeasedError, Suspended
from rollforward.flows.rows.entities import run_key
from rollforward.flows.rows.records import DONE, StepRecord
from rollforward.flows.steps.attempt import LEASE, FlowAttempt
from rollforward.flows.steps.delivery import fail
from tests.infra.world import Services, World
from tests.rollforward.flows.shop import mail, order

RUN_ID = "test-orders|A1"
CHARGE = StepRecord("outside", began=1.0)


@pytest.fixture
def world(services: Services) -> Iterator[World]:
    """Yield the app with the flow of orders."""
    world = World(services, flows=[order], tasks=[mail])
    with world.clients.context():
        yield world


def leased(world: World) -> FlowAttempt:
    """Return a delivery that makes a call."""
    attempt = FlowAttempt(world.clients, order.task, RUN_ID)
    assert attempt.open()
    attempt.lease(lambda row: row.note("charge", CHARGE))
    return attempt


def test_a_late_failure_does_not_undo_the_outcome_of_the_delivery_that_took_over(
    world: World,
) -> None:
    """Its own lease is given up with that write, and is checked all the same."""
    order.start(world.clients, "A1", "boots")
    slow = leased(world)
    world.clock.sleep(LEASE.total_seconds() + 10)
    quick = leased(world)
    ended = CHARGE.ends(DONE, 2.0, value="1")
    quick.change(lambda row: row.note("charge", ended))
    quick.release()

    with pytest.raises(LeasedError, match="has taken"):
        slow.wait(world.clients.clock.now(), lambda row: row.note("charge", CHARGE))

    assert run_key(RUN_ID).get(use_cache=False).step("charge") == ended


def test_a_delivery_waits_for_the_lease_of_a_living_one(world: World) -> None:
    """It is made again once the lease is over; one from a clock that is far ahead is none."""
    order.start(world.clients, "A1", "boots")
    leased(world)

    with pytest.raises(LeasedError, match="another delivery works on") as waits:
        leased(world)

    assert waits.value.after_s == pytest.approx(LEASE.total_seconds() + 0.5, abs=5)
    world.clock.sleep(LEASE.total_seconds())
    leased(world)
    row = run_key(RUN_ID).get(use_cache=False)
    row.lease_expires_at += datetime.timedelta(hours=1)
    row.put()
    leased(world)


def beat(attempt: FlowAttempt) -> None:
    """Keep a lease on another thread, as the heart does."""
    with ThreadPoolExecutor(1) as heart:
        heart.submit(attempt.beat).result()


def test_a_call_that_lasts_keeps_its_lease_by_its_beats(world: World) -> None:
    """W5: no delivery takes it over, and its own write finds the row as the last beat left it."""
    order.start(world.clients, "A1", "boots")
    slow, ended = leased(world), CHARGE.ends(DONE, 2.0, value="1")
    for _ in range(3):
        world.clock.sleep(LEASE.total_seconds() * 2 / 3)
        beat(slow)
        with pytest.raises(LeasedError, match="another delivery works on"):
            leased(world)

    world.plan.reset()
    with world.plan.watched():
        slow.change(lambda row: row.note("charge", ended))

    assert run_key(RUN_ID).get(use_cache=False).step("charge") == ended
    assert world.plan.calls == ["Commit"]


def test_a_beat_takes_no_flow_back(world: World) -> None:
    """W5: its worker was taken for dead meanwhile, and another delivery makes the call."""
    order.start(world.clients, "A1", "boots")
    slow = leased(world)
    world.clock.sleep(LEASE.total_seconds() + 10)
    leased(world)
    before = run_key(RUN_ID).get(use_cache=False)

    beat(slow)

    assert run_key(RUN_ID).get(use_cache=False) == before


def test_a_call_outside_after_a_commit_takes_the_lease(world: World) -> None:
    """The row has to be read again before: by another delivery nobody has taken it over."""
    order.start(world.clients, "A1", "boots")
    attempt = FlowAttempt(world.clients, order.task, RUN_ID)
    attempt.open()
    attempt.transact(lambda row: row.note("reserve", StepRecord("commit").ends(DONE, 1.0)))

    attempt.lease(lambda row: row.note("charge", CHARGE))

    assert run_key(RUN_ID).get(use_cache=False).owner is not None


def test_a_wait_whose_reply_is_lost_is_a_wait(world: World) -> None:
    """It has given the lease up itself: nobody has taken the flow over."""
    order.start(world.clients, "A1", "boots")
    attempt = leased(world)
    world.plan.break_next("Commit", "reply-lost")

    with world.plan.watched(), pytest.raises(Suspended):
        attempt.wait(None, lambda row: row.note("charge", CHARGE))

    assert run_key(RUN_ID).get(use_cache=False).owner is None


def test_a_delivery_goes_on_after_a_write_whose_reply_is_lost(world: World) -> None:
    """It finds its own write in the row; the flow does not wait for the sweep."""
    order.start(world.clients, "A1", "boots")
    attempt = leased(world)
    world.plan.break_next("Commit", "reply-lost")

    with world.plan.watched():
        attempt.change(lambda row: row.note("charge", CHARGE.ends(DONE, 2.0)))

    attempt.change(lambda row: row.note("mail", CHARGE))
    assert [*run_key(RUN_ID).get(use_cache=False).steps] == ["charge", "mail"]


def test_a_delivery_whose_flow_was_deleted_ends(world: World) -> None:
    """It writes no row anew."""
    order.start(world.clients, "A1", "boots")
    attempt = leased(world)
    run_key(RUN_ID).delete()

    with pytest.raises(Suspended):
        attempt.change(lambda row: row.note("charge", CHARGE.ends(DONE, 2.0)))

    assert run_key(RUN_ID).get(use_cache=False) is None


def test_a_delivery_from_before_a_retry_changes_nothing(world: World) -> None:
    """Its outcomes are of steps that a person has dropped since."""
    order.start(world.clients, "A1", "boots")
    old = leased(world)
    row = run_key(RUN_ID).get(use_cache=False)
    fail(row, "a mistake")
    row.put()
    order.retry(world.clients, "A1")

    with pytest.raises(Suspended):
        old.change(lambda row: row.note("charge", CHARGE.ends(DONE, 2.0)))

    assert run_key(RUN_ID).get(use_cache=False).step("charge").state == "waiting"
