"""Progress of a sale, and its reconciliation: orders against the bank's statement and the stock.

asked for = started + to be started
started = done + refunded + rejected + open
the bank holds = done + open after the charge
taken from stock = done + open after the reservation

All of it is computed here, from the rows: those of the orders, which the steps wrote, and those of
the bank and the shelves, which know nothing of stages. So a step that took effect twice, or whose
effect was lost, makes two numbers differ that are read from different places.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from google.cloud import ndb

from models.orders import (
    DECLINED,
    HELD,
    REFUNDED,
    OrderCard,
    OrderCharge,
    OrderSale,
    charges_of,
    orders_of,
    shelf_key,
)
from pipelines.orders.orders import (
    BEFORE_THE_COURIER,
    CHARGED,
    DONE,
    ENDED,
    HANDED,
    MAX_ORDERS,
    RESERVED,
    RETURNING,
    SHELVES,
)
from rollforward.runtime import Clients, naive_utc

# An order waits for five minutes at most. The page of an older sale need not poll every second.
MOVES_FOR = datetime.timedelta(minutes=45)


@dataclass(frozen=True)
class OrderProgress:
    """An order: its stage, and how often the bank was asked to charge for it, or that in doubt."""

    number: int
    stage: str
    reason: str
    payment: str
    asked: int
    doubts: int
    changed_s: float

    @property
    def was_hit(self) -> bool:
        return self.asked > 1 or self.doubts > 0


@dataclass(frozen=True)
class BankStatement:
    """The bank's rows of a sale, by their states; `twice`: orders that it charged twice."""

    held: int
    refunded: int
    declined: int
    calls: int
    repeats: int
    twice: int


@dataclass(frozen=True)
class SaleProgress:
    """A sale: its orders, the bank's statement, and the stock.

    Attributes:
        missing: Orders that the bank knows, and that have no row.
        in_doubt: Calls to the bank of which nobody knew whether they had taken effect, as the flows
            counted them.
        elapsed_s: Until its last order ended, or until now.
    """

    id: str
    row: OrderSale
    orders: Sequence[OrderProgress]
    bank: BankStatement
    missing: int
    stock_reserved: int
    in_doubt: int
    elapsed_s: float
    is_recent: bool

    @property
    def asked(self) -> int:
        return int(self.row.orders)

    @property
    def created(self) -> datetime.datetime:
        created: datetime.datetime = self.row.created
        return created

    @property
    def by_stage(self) -> Mapping[str, int]:
        return Counter(order.stage for order in self.orders)

    @property
    def started(self) -> int:
        return len(self.orders)

    @property
    def unstarted(self) -> int:
        return self.asked - self.started

    @property
    def ended(self) -> int:
        return self._in(*ENDED)

    @property
    def open(self) -> int:
        return self.started - self.ended

    @property
    def waiting(self) -> int:
        """Orders that a courier could come for."""
        return self._in(*BEFORE_THE_COURIER)

    @property
    def is_over(self) -> bool:
        return self.ended == self.asked

    @property
    def is_moving(self) -> bool:
        return not self.is_over and self.is_recent

    @property
    def charged(self) -> int:
        """What the bank should hold, by the orders: done, or open and charged."""
        return self._in(DONE, CHARGED, HANDED)

    @property
    def reserved(self) -> int:
        """What should be taken from stock, by the orders: done, or open and reserved."""
        return self._in(DONE, RESERVED, CHARGED, HANDED, RETURNING)

    @property
    def adds_up(self) -> bool:
        """Whether the bank and the stock agree with the orders; only over, it has to."""
        is_whole = self.bank.held == self.charged and self.stock_reserved == self.reserved
        return is_whole and self.bank.twice == 0

    def _in(self, *stages: str) -> int:
        return sum(self.by_stage.get(stage, 0) for stage in stages)


def progress(clients: Clients, sale: OrderSale) -> SaleProgress:
    """Return the progress of a sale: two queries, and the shelves.

    A stage that the bank or the stock is ahead of is not yet written. So they agree at the end, and
    in between whenever no step is at work.
    """
    sale_id = sale.key.id()
    read_at = naive_utc(clients.clock.now())
    # Each charge is of an order that was stored before it, so one without an order is evidence.
    charges: list[OrderCharge] = charges_of(sale_id).fetch(2 * MAX_ORDERS)
    rows: list[OrderCard] = orders_of(sale_id).fetch(MAX_ORDERS)
    shelves = ndb.get_multi([shelf_key(sale_id, number) for number in range(SHELVES)])
    asked: Counter[int] = Counter()
    for charge in charges:
        asked[charge.number] += charge.asked
    listed = [_order(sale, row, asked[row.number]) for row in rows]
    is_over = sum(order.stage in ENDED for order in listed) == sale.orders
    now_s = (read_at - sale.created).total_seconds()
    return SaleProgress(
        id=sale_id,
        row=sale,
        orders=listed,
        bank=_statement(charges),
        missing=len({charge.number for charge in charges} - {row.number for row in rows}),
        stock_reserved=sum(shelf.reserved for shelf in shelves if shelf is not None),
        in_doubt=sum(order.doubts for order in listed),
        elapsed_s=max([order.changed_s for order in listed], default=0.0) if is_over else now_s,
        is_recent=read_at - sale.created < MOVES_FOR,
    )


def reads_of(sale: SaleProgress) -> int:
    """Return how many rows a page of a sale reads."""
    charges = sale.bank.held + sale.bank.refunded + sale.bank.declined
    return 1 + sale.started + charges + SHELVES


def _order(sale: OrderSale, row: OrderCard, asked: int) -> OrderProgress:
    changed_s = max(0.0, (row.changed - sale.created).total_seconds())
    reason, payment = row.reason or "", row.payment or ""
    return OrderProgress(row.number, row.stage, reason, payment, asked, row.doubts or 0, changed_s)


def _statement(charges: Sequence[OrderCharge]) -> BankStatement:
    states = Counter(charge.state for charge in charges)
    # A second key for an order is a second charge.
    of_orders = Counter(charge.number for charge in charges if charge.state != DECLINED)
    return BankStatement(
        held=states[HELD],
        refunded=states[REFUNDED],
        declined=states[DECLINED],
        calls=sum(charge.asked for charge in charges),
        repeats=sum(charge.asked - 1 for charge in charges),
        twice=sum(count - 1 for count in of_orders.values()),
    )
