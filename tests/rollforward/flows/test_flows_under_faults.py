"""Flows with a fault at any remote call: each effect once, nothing held that was undone."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from rollforward.flows.rows.entities import FlowRun, run_key
from rollforward.flows.rows.records import StepRecord
from rollforward.flows.steps.attempt import FlowAttempt
from rollforward.testing.injection import (
    CRASH_AFTER,
    CRASH_BEFORE,
    ERROR,
    FLUSH,
    KINDS,
    OVERLAP,
    REPLY_LOST,
)
from tests.infra.faults.explorer import ALL, IS_EXHAUSTIVE, Explorer
from tests.infra.world import Services, World
from tests.rollforward.flows import shop
from tests.rollforward.flows.shop import BANK, FlowMail, FlowStock, quick_order

# The wake of a flow is a hint: the first sweep after it was lost is too early, the second is not.
MOST_SWEEPS = dict.fromkeys((*KINDS, OVERLAP, FLUSH), 2)


@dataclass
class OrderScenario:
    """An order that is started and signalled, and whose courier comes."""

    world: World
    ends_as: str = "succeeded"

    leaves = ("OutboxLease",)

    def begin(self, tag: str) -> None:
        quick_order.start(self.world.clients, tag, tag)
        quick_order.signal(self.world.clients, tag, "courier", "here", event_id=f"{tag}-came")

    def is_done(self, tag: str) -> bool:
        row = run_key(f"test-quick-orders|{tag}").get()
        return row is not None and row.has_ended

    def check(self, tag: str, fault: str) -> None:
        state = quick_order.state(tag)
        assert state.state == self.ends_as, fault
        stock = FlowStock.get_by_id(tag)
        taken = stock.taken if stock is not None else 0
        charged = {key for key in BANK.charged if BANK.items[key] == tag}
        assert len(charged) <= 1, fault
        if self.ends_as == "succeeded":
            [key] = charged & BANK.held
            assert (taken, state.unread) == (1, []), fault
            assert state.result == f"1, payment {key[:6]}, here, 2", fault
            assert len([row for row in FlowMail.query().fetch() if row.order == tag]) == 2, fault
            assert BANK.asked[tag] <= 1 + state.steps["charge"].doubts, fault
        else:
            assert (taken, charged & BANK.held) == (0, set()), fault


class RejectedScenario(OrderScenario):
    """An order whose courier brings nothing."""

    def begin(self, tag: str) -> None:
        quick_order.start(self.world.clients, tag, tag)
        quick_order.signal(self.world.clients, tag, "courier", None, event_id=f"{tag}-came")


class CancelledScenario(OrderScenario):
    """An order that is cancelled while it charges."""

    def begin(self, tag: str) -> None:
        BANK.before = lambda verb: self.cancel(verb, tag)
        quick_order.start(self.world.clients, tag, tag)

    def cancel(self, verb: str, tag: str) -> None:
        if verb == "charge":
            quick_order.cancel(self.world.clients, tag)


SCENARIOS: Sequence[tuple[type[OrderScenario], str]] = (
    (OrderScenario, "succeeded"),
    (RejectedScenario, "rejected"),
    (CancelledScenario, "cancelled"),
)


@pytest.fixture(params=SCENARIOS, ids=lambda param: param[1])
def scenario(request: pytest.FixtureRequest, services: Services) -> OrderScenario:
    kind, ends_as = request.param
    return played(kind, ends_as, services)


def played(kind: type[OrderScenario], ends_as: str, services: Services) -> OrderScenario:
    BANK.__init__()  # type: ignore[misc]
    return kind(World(services, flows=[quick_order], tasks=[shop.mail]), ends_as)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", [*KINDS, FLUSH])
def test_each_step_takes_effect_once_with_a_fault_at_any_call(
    scenario: OrderScenario, kind: str
) -> None:
    """W2, W5, W13: the stock exactly, a charge once for its key, and nothing is held if undone."""
    assert Explorer(scenario.world, scenario, MOST_SWEEPS).explore([kind])


def test_each_step_takes_effect_once_when_deliveries_overlap_at_any_call(
    scenario: OrderScenario,
) -> None:
    """W2, W5, W13: a second delivery runs from start to end inside the first."""
    if scenario.world.services.datastore_kind == "firestore":
        pytest.skip("it locks: the inner delivery would wait for the outer one, which waits for it")
    Explorer(scenario.world, scenario, MOST_SWEEPS).explore([OVERLAP], at_most=6)


@pytest.mark.parametrize("seed", range(2))
def test_each_step_takes_effect_once_in_any_order(scenario: OrderScenario, seed: int) -> None:
    """W2, W5, W13: every task delivered twice, in a shuffled order, and side by side."""
    scenario.world.doubles = seed == 0
    scenario.world.overlaps = seed == 1
    scenario.world.order = random.Random(seed)
    Explorer(scenario.world, scenario, MOST_SWEEPS).play()


@pytest.mark.skipif(not IS_EXHAUSTIVE, reason="pairs are played by `make soak`")
def test_each_step_takes_effect_once_with_two_faults(scenario: OrderScenario) -> None:
    """W2, W5, W13: two remote calls break."""
    firsts, seconds = [REPLY_LOST, CRASH_AFTER, OVERLAP], [REPLY_LOST, ERROR, CRASH_BEFORE]
    if scenario.world.services.datastore_kind == "firestore":
        firsts.remove(OVERLAP)
    Explorer(scenario.world, scenario, MOST_SWEEPS).explore_pairs(firsts, seconds)


# Planted bugs


def _knows_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = FlowAttempt.transact

    def transact(attempt: FlowAttempt, body: Callable[[FlowRun], object]) -> object:
        def blind(row: FlowRun) -> object:
            steps, row.steps = row.steps, {}
            try:
                return body(row)
            finally:
                row.steps = {**steps, **row.steps}

        return sound(attempt, blind)

    monkeypatch.setattr(FlowAttempt, "transact", transact)


def _forgets_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = FlowRun.note

    def note(row: FlowRun, name: str, record: StepRecord) -> None:
        if not record.is_called:
            sound(row, name, record)

    monkeypatch.setattr(FlowRun, "note", note)


Plant = Callable[[pytest.MonkeyPatch], None]
PLANTED: Sequence[tuple[type[OrderScenario], str, Plant, Sequence[str]]] = (
    (OrderScenario, "succeeded", _knows_no_commit, [REPLY_LOST]),
    (OrderScenario, "succeeded", _forgets_calls, [CRASH_BEFORE]),
)


@pytest.mark.parametrize(
    ("kind", "ends_as", "plant", "faults"),
    PLANTED,
    ids=[plant.__name__ for *_, plant, _ in PLANTED],
)
def test_the_faults_bite(
    services: Services,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[OrderScenario],
    ends_as: str,
    plant: Plant,
    faults: Sequence[str],
) -> None:
    """With one of its guards taken out, the same exploration fails."""
    if services.datastore_kind == "firestore":
        pytest.skip("one emulator is enough to see a planted bug")
    scenario = played(kind, ends_as, services)
    plant(monkeypatch)

    with pytest.raises(AssertionError):
        Explorer(scenario.world, scenario, MOST_SWEEPS).explore(faults, ALL, named="Commit")
