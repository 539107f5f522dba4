"""The flows that the documents show, each to its ends, with a clock that the test moves."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from zoneinfo import ZoneInfo

import pytest
from flask import Flask

import rollforward as rf
from docs.examples.flows import approval, reminders, saga, until_noon
from docs.examples.flows.approval import ApproverMail, PaidClaim, expense_claim
from docs.examples.flows.child_flows import parcel, shipment
from docs.examples.flows.reminders import DunnedInvoice
from docs.examples.flows.saga import Bookshelf, book_order
from docs.examples.flows.until_noon import ExchangeRate, fetch_rate
from rollforward.flows import FlowEndedError
from rollforward.flows.rows.entities import run_key
from rollforward.tasks import Reject
from rollforward.testing import FAULTS, Rollforward
from tests.infra.documents import ROOT, cells, text_of
from tests.infra.runs.sampling import IS_SAMPLED, sample
from tests.infra.world import Services

HOUR_S = 3600
DAY_S = 24 * HOUR_S


@dataclass
class Outside:
    """Services outside, which note what they were asked for."""

    charged: dict[str, int] = field(default_factory=dict)
    refunded: set[str] = field(default_factory=set)
    collected: set[str] = field(default_factory=set)
    has_courier: bool = True
    asked: int = 0
    publishes: Callable[[], bool] = lambda: True

    def charge(self, cents: int, key: str) -> str:
        self.charged[key] = cents
        return key

    def refund(self, key: str) -> None:
        self.refunded.add(key)

    def collect(self, title: str, key: str) -> str:
        if not self.has_courier:
            raise Reject("no courier goes there")
        self.collected.add(key)
        return f"{title} is on its way"

    def rate(self, day: datetime.date) -> float:
        self.asked += 1
        if not self.publishes():
            raise OSError("no rates yet")
        return 1.25


@pytest.fixture
def outside() -> Outside:
    return Outside()


@pytest.fixture
def kit(services: Services, outside: Outside) -> Iterator[Rollforward]:
    """An app with the flows of the documents, and a context open."""
    flows = (book_order, expense_claim, reminders.remind, fetch_rate, shipment, parcel)
    fakes = dict.fromkeys([saga.Payments, saga.Couriers, until_noon.Bank], outside)
    app = rf.serve(Flask("examples"), *flows, approval.mail_approver, services=fakes)
    kit = Rollforward(app, services)
    kit.reset()
    with ExitStack() as stack:
        stack.callback(kit.close)
        stack.enter_context(kit.clients.context())
        yield kit


def pass_time(kit: Rollforward, seconds: float) -> None:
    """Move the clock, sweep as cron does, and deliver what is due."""
    kit.advance(seconds)
    kit.sweep()
    kit.settle()


# Saga


def test_a_book_is_reserved_charged_and_shipped(kit: Rollforward, outside: Outside) -> None:
    """Each once, without a wait: one delivery."""
    deliveries: list[str] = []
    kit.world.note = deliveries.append
    Bookshelf(id="Emma", copies=2).put()
    book_order.start("o1", "Emma", 900)
    kit.settle()
    assert deliveries == ["/tasks/flows/book-orders was delivered and answered 204"]

    state = book_order.state("o1")
    assert (state.state, state.result) == ("succeeded", "Emma is on its way")
    assert list(state.steps) == ["reserve", "charge", "ship"]
    assert Bookshelf.get_by_id("Emma").copies == 1
    assert (list(outside.charged.values()), outside.refunded) == ([900], set())


def test_the_saga_costs_what_the_concept_page_says(kit: Rollforward) -> None:
    """Of its own: writes of its row, reads of it, tasks."""
    Bookshelf(id="Emma", copies=2).put()
    plan = kit.world.plan
    plan.remote_calls.clear()
    with plan.watched():
        book_order.start("o1", "Emma", 900)
        kit.settle()
    calls = [str(call) for call in plan.remote_calls]

    writes, reads, tasks = (
        sum(bool(re.search(pattern, call)) for call in calls)
        for pattern in (r"Commit of .*FlowRun", r"Lookup of FlowRun", r"CreateTask")
    )
    sentence = f"It takes {writes} writes of its row, {reads} read and {tasks} task in all"
    assert sentence in text_of("docs/concepts/flows.md")


def test_without_a_courier_all_is_undone_backwards(kit: Rollforward, outside: Outside) -> None:
    """The money first, then the book."""
    outside.has_courier = False
    Bookshelf(id="Emma", copies=2).put()
    book_order.start("o1", "Emma", 900)
    kit.settle()

    state = book_order.state("o1")
    assert (state.state, state.reason) == ("rejected", "no courier goes there")
    assert list(state.steps) == ["reserve", "charge", "ship", "refund", "put back"]
    assert Bookshelf.get_by_id("Emma").copies == 2
    assert set(outside.charged) == outside.refunded


def test_a_step_that_a_person_drops_runs_again_under_another_key(
    kit: Rollforward, outside: Outside
) -> None:
    """As the howto warns: a charge that is dropped is charged again."""
    Bookshelf(id="Emma", copies=2).put()
    book_order.start("o1", "Emma", 900)
    kit.settle()
    book_order.retry("o1", from_step="charge")
    kit.settle()

    assert book_order.state("o1").state == "succeeded"
    assert (len(outside.charged), Bookshelf.get_by_id("Emma").copies) == (2, 1)


def test_an_order_of_a_book_that_is_sold_out_undoes_nothing(
    kit: Rollforward, outside: Outside
) -> None:
    """The first step rejects it: nothing was reserved that would go back."""
    Bookshelf(id="Emma", copies=0).put()
    book_order.start("o1", "Emma", 900)
    kit.settle()

    assert (book_order.state("o1").state, outside.charged) == ("rejected", {})
    assert Bookshelf.get_by_id("Emma").copies == 0


def test_an_order_has_one_effect_whatever_breaks(kit: Rollforward, outside: Outside) -> None:
    """The test that the howto shows, over a sample of the calls; `make test` draws the faults."""
    faults = sample("saga", FAULTS, 3) if IS_SAMPLED else FAULTS

    def buy() -> None:
        outside.__init__()  # type: ignore[misc]
        Bookshelf(id="Emma", copies=2).put()
        book_order.start("o1", "Emma", 900)
        kit.settle()

    def check() -> None:
        assert book_order.state("o1").state == "succeeded"
        assert Bookshelf.get_by_id("Emma").copies == 1
        assert (len(outside.charged), outside.refunded) == (1, set())

    kit.explore(buy, check, faults=faults, limit=4 if IS_SAMPLED else 12)


# Approval


def answer(claim: str, by: str, approves: bool = True) -> bool:
    payload = {"by": by, "approves": approves}
    return expense_claim.signal(claim, "answer", payload, event_id=by)


def mails() -> list[str]:
    """Return the keys of the mails that were sent."""
    return sorted(row.key.id() for row in ApproverMail.query())


def test_two_people_approve_and_the_claim_is_paid(kit: Rollforward) -> None:
    """An answer that is sent twice counts once."""
    expense_claim.start("c1", ["ada", "bob"])
    kit.settle()
    assert mails() == ["c1 ada a claim", "c1 bob a claim"]

    assert (answer("c1", "bob"), answer("c1", "bob")) == (True, False)
    kit.settle()
    assert PaidClaim.get_by_id("c1") is None
    answer("c1", "ada")
    kit.settle()

    assert expense_claim.state("c1").state == "succeeded"
    assert PaidClaim.get_by_id("c1") is not None
    assert len(mails()) == 2


def test_who_has_not_answered_in_a_day_is_reminded(kit: Rollforward) -> None:
    """Only who is missing; after a week nobody waits any more."""
    expense_claim.start("c1", ["ada", "bob"])
    answer("c1", "ada")
    kit.settle()
    pass_time(kit, DAY_S + 1)
    assert mails()[2:] == ["c1 bob a reminder"]

    pass_time(kit, 6 * DAY_S + 1)

    state = expense_claim.state("c1")
    assert (state.state, state.reason) == ("rejected", "no answer of bob within a week")
    with pytest.raises(FlowEndedError):
        answer("c1", "bob")


def test_a_week_is_a_week_whoever_answers_when(kit: Rollforward) -> None:
    """Who is late has no more of it, and nobody is reminded twice."""
    expense_claim.start("c1", ["ada", "bob"])
    kit.settle()
    for _ in range(6):
        pass_time(kit, DAY_S)
    answer("c1", "ada")
    kit.settle()
    assert expense_claim.state("c1").state == "running"
    assert mails()[2:] == ["c1 bob a claim", "c1 bob a reminder"]

    pass_time(kit, DAY_S + 1)

    assert expense_claim.state("c1").reason == "no answer of bob within a week"
    assert len(mails()) == 4


def test_one_person_says_no(kit: Rollforward) -> None:
    """Nothing is paid, and nobody else is waited for."""
    expense_claim.start("c1", ["ada", "bob"])
    answer("c1", "bob", approves=False)
    kit.settle()

    assert expense_claim.state("c1").reason == "bob says no"
    assert PaidClaim.get_by_id("c1") is None


# Reminders


def test_reminders_come_on_their_days_at_nine(kit: Rollforward) -> None:
    """In the reader's zone, and only until the invoice is paid."""
    zone = ZoneInfo("Pacific/Auckland")
    due = kit.now.astimezone(zone).date()
    DunnedInvoice(id="i1").put()
    reminders.remind.start("i1", due, "Pacific/Auckland")
    kit.settle()
    woken = reminders.remind.state("i1").steps["until reminder 1"].until
    assert datetime.datetime.fromtimestamp(woken, zone).hour == 9

    pass_time(kit, woken - kit.now.timestamp() - 600)
    assert DunnedInvoice.get_by_id("i1").reminders == 0
    pass_time(kit, 660)
    assert DunnedInvoice.get_by_id("i1").reminders == 1

    paid = DunnedInvoice.get_by_id("i1")
    paid.is_paid = True
    paid.put()
    pass_time(kit, 7 * DAY_S)
    assert reminders.remind.state("i1").result == "paid"
    assert DunnedInvoice.get_by_id("i1").reminders == 1


# Retry until noon


@pytest.mark.parametrize("late_h", [2, 30], ids=["before noon", "too late"])
def test_a_bank_is_asked_until_noon(kit: Rollforward, outside: Outside, late_h: int) -> None:
    """Without counting the attempts; then yesterday's rate has to do."""
    zone = ZoneInfo("Europe/Berlin")
    day = kit.now.astimezone(zone).date() + datetime.timedelta(days=1)
    ExchangeRate(id=str(day - datetime.timedelta(days=1)), rate=1.5).put()
    eight = datetime.datetime.combine(day, datetime.time(8), zone)
    pass_time(kit, (eight - kit.now).total_seconds())
    outside.publishes = lambda: kit.now >= eight + datetime.timedelta(hours=late_h)

    fetch_rate.start(str(day), day)
    for _ in range(5):
        kit.settle(within_s=HOUR_S)

    state = fetch_rate.state(str(day))
    assert (state.state, state.result) == ("succeeded", 1.25 if late_h == 2 else 1.5)
    assert outside.asked > 20
    assert ExchangeRate.get_by_id(str(day)).rate == state.result


# Child flows


def test_a_shipment_waits_for_its_parcels(kit: Rollforward) -> None:
    """Each signals back, once: the one that is lost, too."""
    shipment.start("s1", ["Rome", "Oslo"])
    kit.settle()
    parcel.signal("s1-0", "scan", "delivered")
    kit.settle()
    assert shipment.state("s1").state == "running"

    pass_time(kit, 14 * DAY_S + 60)

    assert shipment.state("s1").result == {"Rome": "delivered", "Oslo": "lost"}


def test_a_shipment_that_is_cancelled_recalls_its_parcels(kit: Rollforward) -> None:
    """Those that are on their way; one that has arrived stays what it is."""
    shipment.start("s1", ["Rome", "Oslo"])
    kit.settle()
    parcel.signal("s1-0", "scan", "delivered")
    kit.settle()

    shipment.cancel("s1")
    kit.settle()

    assert shipment.state("s1").state == "cancelled"
    assert [parcel.state(f"s1-{number}").state for number in (0, 1)] == ["succeeded", "cancelled"]


def test_a_shipment_is_cancelled_whose_parcels_were_deleted(kit: Rollforward) -> None:
    """One that was cancelled alone never reports: the shipment waits for longer than it is kept."""
    shipment.start("s1", ["Rome", "Oslo"])
    kit.settle()
    parcel.cancel("s1-0")
    kit.settle()
    run_key("parcels|s1-0").delete()

    shipment.cancel("s1")
    kit.settle()

    assert shipment.state("s1").state == "cancelled"


def test_the_mistakes_in_the_howto_are_those_of_the_code() -> None:
    """A reader finds the text that they see."""
    sources = "".join(path.read_text("utf-8") for path in (ROOT / "rollforward").rglob("*.py"))
    rows = cells("docs/howto/run-a-flow.md", "11. Mend mistakes")
    quoted = [row[0].strip("`") for row in rows if row[0].startswith("`") and "Error" not in row[0]]

    assert len(quoted) == 12
    assert [text for text in quoted if text.replace("10", "{failures}") not in sources] == []
