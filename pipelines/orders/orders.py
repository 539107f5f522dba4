"""Orders: the flow of each, from the shelf to the door, or back.

A sale is one commit: its row, its shelves and a task. The task starts a flow for each order, with
the order's row in the same commit. The steps of a flow write that row, so a page reads orders by
one query. The courier is an event; when none comes in time, the steps are undone, the last first.

Lost on failure: nothing. A call to the bank whose worker died is in doubt. It is made again, under
the same key.
Cost of an order that is done: five commits, the bank's call with its lease, and five tasks.

Routes: POST /tasks/flows/orders, /tasks/orders/open, /tasks/orders/courier.
Source: sagas, H. Garcia-Molina and K. Salem, 1987; the Pipeline API of App Engine, 2010.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

import pydantic
from google.cloud import ndb

from models.orders import (
    OrderCard,
    OrderSale,
    OrderShelf,
    charges_of,
    newest_sales,
    order_key,
    orders_of,
    sale_key,
    shelf_key,
)
from pipelines.orders import bank
from rollforward import outbox
from rollforward.datastore import current_transaction, transact
from rollforward.flows import FlowEndedError, Steps, UnknownFlowError, flow
from rollforward.runtime import Clients, naive_utc
from rollforward.tasks import Reject, Retry, task

MAX_ORDERS = 200
MAX_SALES = 20
SHELVES = 10
TRY_ON_S = 5
# What starts, and what an event is sent to, by one commit.
PER_COMMIT = 20
KEEP = datetime.timedelta(days=2)

# The stages of an order, forwards and backwards.
ACCEPTED, RESERVED, CHARGED, HANDED, DONE = "accepted", "reserved", "charged", "handed", "done"
RETURNING, REFUNDED, REJECTED = "returning", "refunded", "rejected"
BEFORE_THE_COURIER = (ACCEPTED, RESERVED, CHARGED)
ENDED = (DONE, REFUNDED, REJECTED)

PACES_MS = {"fast": 20, "watch": 400, "slow": 1_500}  # What a call to the bank takes.
PATIENCES_S = {"15": 15, "60": 60, "300": 300}
COURIERS = ("two-thirds", "you")
# How long the courier who comes on his own lets orders wait.
COURIER_AFTER_S = 4.0
AT_A_TIME = 8  # Deliveries of the queue.

Visit = Literal["all", "half", "two-thirds"]
VISITS: tuple[Visit, ...] = ("all", "half", "two-thirds")


@dataclass(frozen=True)
class SaleForm:
    """A form filled in well: the orders, their stock, and the paces of the bank and the courier."""

    orders: int
    stock: int
    patience: str
    courier: str
    pace: str


@dataclass(frozen=True)
class OrderArgs:
    """An order, and how long its calls and waits take."""

    sale: Annotated[str, pydantic.Field(min_length=32, max_length=32)]
    number: Annotated[int, pydantic.Field(ge=0, lt=MAX_ORDERS)]
    patience_s: Annotated[int, pydantic.Field(ge=1, le=3600)]
    bank_ms: Annotated[int, pydantic.Field(ge=0, le=5_000)]


class GoneSaleError(LookupError):
    """A sale of this id existed, and was deleted to make room for newer ones."""


def topic_of(sale: str) -> str:
    """Return the topic that the pages of a sale watch."""
    return f"orders:{sale}"


def flow_id_of(sale: str, number: int) -> str:
    """Return the id of an order's flow."""
    return f"{sale}-{number:03d}"


# The flow


@flow("orders", queue="orders", keep=KEEP)
def order(step: Steps, args: OrderArgs) -> str:
    """Reserve, charge, wait for the courier, try it on; or give all of it back."""
    clients, sale = step.clients, args.sale
    step.undo_commit("close", close, clients, args)
    if not step.commit("reserve", reserve, clients, args):
        raise Reject("sold out")
    step.undo_commit("release", release, args)
    key = step.key("charge")
    payment = step.outside("charge", bank.charge, clients, sale, args.number, key, args.bank_ms)
    if payment:  # Before any other step: an order that is cancelled now begins none.
        step.undo("refund", bank.refund, clients, sale, key, args.bank_ms)
        step.undo_commit("take back", take_back, clients, args)
    step.commit("note payment", note_payment, clients, args, payment)
    if not payment:
        raise Reject("the card was declined")
    came = step.wait_for("courier", timeout_s=args.patience_s)
    step.commit("hand over", hand_over, clients, args, came is not None)
    if came is None:
        raise Reject("no courier came in time")
    step.sleep("try it on", seconds=TRY_ON_S)
    step.commit("confirm", confirm, clients, args)
    return payment


def reserve(clients: Clients, args: OrderArgs) -> bool:
    """Take a piece from the shelf of an order; return whether there was one."""
    shelf = shelf_key(args.sale, args.number % SHELVES).get()
    if shelf is None or shelf.reserved >= shelf.stock:
        _note(clients, args, reason="sold out")
        return False
    shelf.reserved += 1
    shelf.put()
    _note(clients, args, RESERVED)
    return True


def release(args: OrderArgs) -> None:
    """Put a piece back on its shelf."""
    shelf = shelf_key(args.sale, args.number % SHELVES).get()
    if shelf is not None:
        shelf.reserved -= 1
        shelf.put()


def note_payment(clients: Clients, args: OrderArgs, payment: str) -> None:
    """Note the answer of the bank, and how often it was in doubt."""
    doubts = doubts_of(args)
    if payment:
        _note(clients, args, CHARGED, payment=payment, doubts=doubts)
    else:
        _note(clients, args, reason="the card was declined", doubts=doubts)


def doubts_of(args: OrderArgs) -> int:
    """Return how many calls of an order's flow were in doubt, by its row: a read, in a step."""
    steps = order.state(flow_id_of(args.sale, args.number)).steps.values()
    return sum(record.doubts for record in steps)


def hand_over(clients: Clients, args: OrderArgs, is_there: bool) -> None:
    """Note that the courier came, or did not."""
    if is_there:
        _note(clients, args, HANDED)
    else:
        _note(clients, args, reason="no courier came in time")


def confirm(clients: Clients, args: OrderArgs) -> None:
    """Note that the order is done."""
    _note(clients, args, DONE)


def take_back(clients: Clients, args: OrderArgs) -> None:
    """Note that what was charged is about to be refunded."""
    _note(clients, args, RETURNING)


def close(clients: Clients, args: OrderArgs) -> None:
    """Note the end of an order that went backwards."""
    row = order_key(args.sale, args.number).get()
    if row is not None:
        row.stage = REFUNDED if row.stage == RETURNING else REJECTED
        row.reason = row.reason or "cancelled"
        row.doubts = doubts_of(args)
        _save(clients, args.sale, row)


def _note(clients: Clients, args: OrderArgs, stage: str = "", **fields: object) -> None:
    """Write an order's row, in the transaction of a step."""
    row = order_key(args.sale, args.number).get()
    if row is None:
        raise Reject("the sale was deleted, to make room for newer ones")
    row.populate(stage=stage or row.stage, **fields)
    _save(clients, args.sale, row)


def _save(clients: Clients, sale: str, row: OrderCard) -> None:
    row.changed = naive_utc(clients.clock.now())
    row.put()
    current_transaction().hook("orders", lambda: _Published(clients, sale))


@dataclass
class _Published:
    """The page of a sale, which is told of a commit after it."""

    clients: Clients
    sale: str

    def on_retry(self, cause: Exception) -> None:
        """Nothing was changed that a page need see."""

    def on_commit(self) -> None:
        self.clients.publish(topic_of(self.sale))

    def on_outcome_unknown(self) -> None:
        self.on_commit()  # It may be committed.


# The sale


def open_sale(clients: Clients, sale: str, form: SaleForm) -> bool:
    """Open a sale and have its orders started, once for its id; return whether it is new.

    Raises:
        GoneSaleError: it existed, and is deleted.
    """
    if sale_key(sale).get() is None and _has_flow(sale):
        raise GoneSaleError(sale)

    def body() -> bool:
        if sale_key(sale).get() is not None:
            return False
        ndb.put_multi([_sale(clients, sale, form), *_shelves(sale, form)])
        outbox.enqueue(clients, open_orders, open_orders.bind(sale, 0))
        if form.courier != "you":
            visit = courier.bind(sale, "two-thirds")
            delay_s = COURIER_AFTER_S + _charging_s(form)
            outbox.enqueue(clients, courier, visit, delay_s=delay_s)
        return True

    is_new = transact(body)
    if is_new:
        _delete_old()
    return is_new


def _charging_s(form: SaleForm) -> float:
    return form.orders * PACES_MS[form.pace] / 1000 / AT_A_TIME


def _has_flow(sale: str) -> bool:
    try:
        order.state(flow_id_of(sale, 0))
    except UnknownFlowError:
        return False
    return True


def _sale(clients: Clients, sale: str, form: SaleForm) -> OrderSale:
    return OrderSale(
        key=sale_key(sale),
        created=naive_utc(clients.clock.now()),
        orders=form.orders,
        stock=form.stock,
        patience_s=PATIENCES_S[form.patience],
        courier=form.courier,
        pace=form.pace,
    )


def _shelves(sale: str, form: SaleForm) -> Iterator[OrderShelf]:
    """Yield the shelves, which share the stock as evenly as the orders share the shelves."""
    for number in range(SHELVES):
        stock = form.stock // SHELVES + (number < form.stock % SHELVES)
        yield OrderShelf(key=shelf_key(sale, number), stock=stock, reserved=0)


@task("/tasks/orders/open", queue="default")
def open_orders(clients: Clients, sale: str, first: int) -> None:
    """Start the next orders of a sale, and enqueue the start of the rest: one commit."""
    row = sale_key(sale).get()
    if row is None:
        return  # It was deleted, to make room for newer ones.
    numbers = range(first, min(first + PER_COMMIT, row.orders))
    all_args = [OrderArgs(sale, number, row.patience_s, PACES_MS[row.pace]) for number in numbers]

    def body() -> None:
        is_new = [order.start(clients, flow_id_of(sale, args.number), args) for args in all_args]
        if not any(is_new):
            return  # An earlier delivery did.
        created = naive_utc(clients.clock.now())
        for args in all_args:
            key = order_key(sale, args.number)
            OrderCard(key=key, number=args.number, stage=ACCEPTED, changed=created).put()
        if numbers.stop < row.orders:
            outbox.enqueue(clients, open_orders, open_orders.bind(sale, numbers.stop))

    transact(body)
    clients.publish(topic_of(sale))


def _delete_old() -> None:
    """Delete sales beyond MAX_SALES, a few at a time: each new one makes room for one.

    The rows of their flows are deleted by the sweep, two days after their end.
    """
    for old in newest_sales().fetch(3, offset=MAX_SALES):
        sale = old.key.id()
        rows = [
            *orders_of(sale).fetch(MAX_ORDERS, keys_only=True),
            *charges_of(sale).fetch(2 * MAX_ORDERS, keys_only=True),
            *(shelf_key(sale, number) for number in range(SHELVES)),
        ]
        ndb.delete_multi([*rows, old.key])


# The courier


@task("/tasks/orders/courier", queue="default")
def courier(clients: Clients, sale: str, visit: Visit) -> int:
    """Come for all orders that are open, or for some; return for how many.

    An order that does not wait yet keeps the event until it does. It takes one courier at most.

    Raises:
        Retry: not all orders have been started.
    """
    row, rows = sale_key(sale).get(), orders_of(sale).fetch(MAX_ORDERS)
    if row is not None and len(rows) < row.orders:
        raise Retry("orders are still being started", after_s=1.0)
    open_rows = [row for row in rows if row.stage in BEFORE_THE_COURIER]
    numbers = [row.number for row in open_rows if _is_visited(row.number, visit)]
    parts = (numbers[at : at + PER_COMMIT] for at in range(0, len(numbers), PER_COMMIT))
    return sum(_signal(clients, sale, part, visit) for part in parts)


def _is_visited(number: int, visit: Visit) -> bool:
    if visit == "half":
        return number % 2 == 0
    return visit == "all" or number % 3 < 2


def _signal(clients: Clients, sale: str, numbers: Iterable[int], visit: Visit) -> int:
    def body() -> int:
        return sum(_signal_one(clients, flow_id_of(sale, number), visit) for number in numbers)

    return transact(body)


def _signal_one(clients: Clients, flow_id: str, visit: Visit) -> bool:
    try:
        return order.signal(clients, flow_id, "courier", {"for": visit}, event_id="courier")
    except (FlowEndedError, UnknownFlowError):
        return False
