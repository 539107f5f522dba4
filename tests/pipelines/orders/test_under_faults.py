"""Orders under faults: charged once, taken once, and every call in doubt is counted."""

from __future__ import annotations

import pytest

from models.orders import sale_key
from pipelines.orders import bank, orders
from pipelines.orders.orders import SaleForm
from pipelines.orders.progress import SaleProgress, progress
from rollforward.runtime import Clients
from rollforward.tasks import hashed_name
from rollforward.testing.injection import CRASH_AFTER, KINDS
from tests.infra.faults.explorer import Explorer
from tests.infra.world import World

# A wake that was lost costs a round of the sweep.
ONE_SWEEP = dict.fromkeys(KINDS, 1)


def sale_of(tag: str) -> str:
    """Return the id of the sale of a play."""
    return hashed_name(tag)[:32]


class OrderScenario:
    """Two orders; the courier comes for the first alone, and the other is refunded, or for all."""

    def __init__(self, world: World, visit: orders.Visit = "half") -> None:
        self.world = world
        self.visit = visit
        self.in_doubt = 0

    def begin(self, tag: str) -> None:
        orders.open_sale(self.world.clients, sale_of(tag), SaleForm(2, 2, "15", "you", "fast"))
        visit = orders.courier.bind(sale_of(tag), self.visit)
        orders.courier.enqueue(self.world.clients, visit, name=(tag,), delay_s=5)

    def is_done(self, tag: str) -> bool:
        return self._progress(tag).is_over

    def check(self, tag: str, fault: str) -> None:
        sale = self._progress(tag)
        assert sale.started == sale.asked == 2, fault
        assert sale.bank.twice == 0, fault
        assert (sale.bank.held, sale.stock_reserved) == (sale.by_stage["done"],) * 2, fault
        assert sale.adds_up, fault
        self.in_doubt += sale.in_doubt

    def _progress(self, tag: str) -> SaleProgress:
        return progress(self.world.clients, sale_key(sale_of(tag)).get())


@pytest.mark.timeout(300)
@pytest.mark.parametrize("services", ["datastore"], indirect=True)
def test_each_order_is_charged_once_with_a_fault_at_any_call(world: World) -> None:
    """One fault at each remote call, from the press on: the bank and the stock agree with it."""
    Explorer(world, OrderScenario(world), ONE_SWEEP).explore(KINDS, at_most=2)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("services", ["datastore"], indirect=True)
def test_a_call_whose_worker_died_is_counted_as_in_doubt(world: World) -> None:
    """Its worker dies as soon as the bank has charged: one call more, and no second charge."""
    scenario = OrderScenario(world)

    crash_over_calls(world, scenario)

    assert scenario.in_doubt > 0


@pytest.mark.parametrize("services", ["datastore"], indirect=True)
def test_the_faults_bite(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a stable key an order whose worker died is charged twice, and the page says so."""
    charge = bank.charge

    def charge_anew(clients: Clients, sale: str, number: int, key: str, takes_ms: int) -> str:
        return charge(clients, sale, number, clients.new_id(), takes_ms)

    monkeypatch.setattr(bank, "charge", charge_anew)

    with pytest.raises(AssertionError, match="twice=1"):
        crash_over_calls(world, OrderScenario(world, "all"))


def crash_over_calls(world: World, scenario: OrderScenario) -> None:
    """Let the worker die at the commits of the first order, one after the other."""
    explorer = Explorer(world, scenario, ONE_SWEEP)
    calls = explorer.play()
    commits = [at for at, call in enumerate(calls) if call == "Commit"]
    for at in commits[2:7]:
        explorer.play((at, CRASH_AFTER))
