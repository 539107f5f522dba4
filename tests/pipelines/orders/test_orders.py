"""Orders: forwards, backwards, and under faults, until the bank and the stock agree with them."""

from __future__ import annotations

from typing import Any

import pytest

from models.orders import OrderSale, charges_of, order_key, sale_key
from pipelines.orders import bank, orders
from pipelines.orders.orders import SaleForm, flow_id_of
from pipelines.orders.progress import SaleProgress, progress
from rollforward.runtime import Clients
from rollforward.testing.injection import CRASH_BEFORE, Crash
from tests.infra.world import World

SALE = "a" * 32
one_emulator = pytest.mark.parametrize("services", ["datastore"], indirect=True)


def open_sale(world: World, sale: str = SALE, **asked: object) -> None:
    """Open a sale of six orders, all in stock, whose courier comes when a test sends him."""
    form = {"orders": 6, "stock": 6, "patience": "60", "courier": "you", "pace": "fast", **asked}
    with world.context():
        assert orders.open_sale(world.clients, sale, SaleForm(**form))  # type: ignore[arg-type]


def send_courier(world: World, visit: orders.Visit = "all", sale: str = SALE) -> None:
    with world.context():
        orders.courier.enqueue(world.clients, orders.courier.bind(sale, visit))


def seen(world: World, sale: str = SALE) -> SaleProgress:
    with world.context():
        row: OrderSale = sale_key(sale).get()
        return progress(world.clients, row)


def stages(world: World, sale: str = SALE) -> dict[str, int]:
    return dict(seen(world, sale).by_stage)


def test_orders_wait_for_the_courier_and_are_done(world: World) -> None:
    """Each has one charge and one piece; those that he did not come for are refunded."""
    open_sale(world)
    world.settle(patience_s=1)
    assert stages(world) == {"charged": 6}

    send_courier(world, "half")
    world.settle(patience_s=1)
    assert stages(world) == {"handed": 3, "charged": 3}
    assert seen(world).adds_up

    world.settle(patience_s=120)
    assert stages(world) == {"done": 3, "refunded": 3}
    after = seen(world)
    assert (after.bank.held, after.bank.refunded, after.stock_reserved) == (3, 3, 3)
    assert after.is_over
    assert after.adds_up
    with world.context():
        reasons = {order_key(SALE, number).get().reason for number in (1, 3, 5)}
    assert reasons == {"no courier came in time"}


@one_emulator
def test_stock_that_runs_out_and_cards_that_are_declined_are_rejected(world: World) -> None:
    """Nothing is taken for them, and nothing is held."""
    open_sale(world, orders=15, stock=10, courier="two-thirds")
    world.settle(patience_s=200)

    after = seen(world)
    assert after.started == 15
    rejected = [order.reason for order in after.orders if order.stage == "rejected"]
    assert rejected == ["sold out"] * 5
    assert after.by_stage["done"] + after.by_stage["refunded"] == 10
    assert (after.bank.held, after.stock_reserved) == (after.by_stage["done"],) * 2
    assert after.adds_up


@one_emulator
def test_no_task_is_there_before_its_sale(world: World) -> None:
    """It would find nothing to start, and nothing would start it again."""
    with world.context():
        world.plan.break_next("Commit", CRASH_BEFORE)
        with world.plan.watched(), pytest.raises(Crash):
            orders.open_sale(world.clients, SALE, SaleForm(6, 6, "60", "you", "fast"))

    assert world.engine.due() == []


@one_emulator
def test_a_declined_card_gives_its_piece_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was reserved before the bank was asked."""
    monkeypatch.setattr(bank, "DECLINES_ONE_IN", 3)
    open_sale(world, orders=3, stock=3)
    world.settle(patience_s=1)

    declined = [order for order in seen(world).orders if order.stage == "rejected"]
    assert [(order.number, order.reason) for order in declined] == [(2, "the card was declined")]
    assert seen(world).stock_reserved == 2


@one_emulator
def test_the_bank_charges_once_for_a_key(world: World) -> None:
    """Asked again it answers the same; what was given back is not charged again."""
    with world.context():
        clients = world.clients
        paid = [bank.charge(clients, SALE, 1, "k" * 32, 0) for _ in range(3)]
        bank.refund(clients, SALE, "k" * 32, 0)
        bank.refund(clients, SALE, "k" * 32, 0)
        bank.charge(clients, SALE, 1, "k" * 32, 0)
        [row] = charges_of(SALE).fetch(2)

    assert len(set(paid)) == 1
    assert (row.state, row.asked, row.refunds) == ("refunded", 4, 2)


@one_emulator
def test_a_sale_is_opened_once_and_started_once(world: World) -> None:
    """A form that is sent twice, and a task that is delivered twice, start nothing twice."""
    open_sale(world)
    with world.context():
        form = SaleForm(3, 3, "60", "you", "fast")
        assert not orders.open_sale(world.clients, SALE, form)
        orders.open_orders.enqueue(world.clients, orders.open_orders.bind(SALE, 0))
    world.settle(patience_s=1)

    assert seen(world).started == 6
    assert seen(world).bank.calls == 6


def test_a_cancelled_order_is_undone(world: World) -> None:
    """An operator cancels one that waits: it is refunded, and its piece is on its shelf again."""
    open_sale(world, orders=2, stock=2)
    world.settle(patience_s=1)
    with world.context():
        assert orders.order.cancel(world.clients, flow_id_of(SALE, 1))
    world.settle(patience_s=1)

    assert stages(world) == {"charged": 1, "refunded": 1}
    assert seen(world).orders[1].reason == "cancelled"
    assert seen(world).adds_up


@one_emulator
def test_an_order_that_is_cancelled_while_it_is_charged_is_refunded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call ends first, and is undone before the order ends."""
    charge = bank.charge

    def charge_and_cancel(clients: Clients, sale: str, number: int, *rest: Any) -> str:
        payment = charge(clients, sale, number, *rest)
        assert orders.order.cancel(clients, flow_id_of(sale, number))
        return payment

    monkeypatch.setattr(bank, "charge", charge_and_cancel)
    open_sale(world, orders=1, stock=1)
    world.settle(patience_s=10)

    after = seen(world)
    assert (after.bank.held, after.bank.refunded, after.stock_reserved) == (0, 1, 0)
    assert stages(world) == {"refunded": 1}
    assert after.adds_up


@one_emulator
def test_a_second_charge_would_be_seen(world: World) -> None:
    """A charge under another key is one too many, and the page says so."""
    open_sale(world, orders=1, stock=1)
    world.settle(patience_s=1)
    with world.context():
        bank.charge(world.clients, SALE, 0, "another key", 0)

    assert seen(world).bank.twice == 1
    assert not seen(world).adds_up


@one_emulator
def test_old_sales_are_deleted_with_all_their_rows(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new sale makes room; a form that opened a deleted one opens nothing."""
    monkeypatch.setattr(orders, "MAX_SALES", 1)
    open_sale(world, orders=2, stock=2)
    world.settle(patience_s=1)
    world.clock.sleep(1)
    open_sale(world, "b" * 32)

    with world.context():
        assert sale_key(SALE).get() is None
        assert order_key(SALE, 0).get() is None
        assert charges_of(SALE).fetch(2) == []
        with pytest.raises(orders.GoneSaleError):
            orders.open_sale(world.clients, SALE, SaleForm(3, 3, "60", "you", "fast"))
    world.settle(patience_s=200)  # The flows of the deleted sale end without it.
    with world.context():
        assert orders.order.state(flow_id_of(SALE, 0)).state == "rejected"
