"""The stage of a sale: its orders, and the incidents of their deliveries."""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from handlers.shared.balance import Balance
from handlers.shared.demo_stage import DemoStage, name_by_path
from handlers.shared.formatting import number, plural
from handlers.shared.incidents import Delivery
from handlers.shared.stage import Cell, Stage, Timeline, suffered
from pipelines.orders.progress import SaleProgress, reads_of

FLOWS = "/tasks/flows/orders"
WORDS = {"/tasks/orders/open": "the start of orders", "/tasks/orders/courier": "the courier"}
_RUN_ID = re.compile(r"orders\|[0-9a-f]{32}-([0-9]{3})")


@dataclass(frozen=True)
class OrdersStage(DemoStage):
    """A sale; None: there is none."""

    sale: SaleProgress | None

    path = "/tasks/"
    paths = (FLOWS, *WORDS)

    @property
    def text(self) -> str:
        return self.sale.id if self.sale else ""

    @property
    def began(self) -> datetime.datetime | None:
        return self.sale.created if self.sale else None

    def timeline(self, started: float, age_s: float, deliveries: Sequence[Delivery]) -> Timeline:
        assert self.sale is not None
        return Timeline(
            started,
            self.sale.elapsed_s,
            is_over=not self.sale.is_moving,
            begin="ordered",
            end="all ended" if self.sale.is_over else "unfinished",
            is_complete=self.sale.is_over,
        )

    def name(self, delivery: Delivery) -> str:
        place = number_of(delivery)
        return name_by_path(delivery, WORDS) if place is None else f"order {place + 1}"

    def closing(self, stage: Stage) -> str:
        assert self.sale is not None
        bank = self.sale.bank
        parts = [f"{number(self.sale.ended)} of {plural(self.sale.asked, 'order')} ended"]
        parts += suffered(stage)
        if self.sale.in_doubt:
            parts.append(f"{plural(self.sale.in_doubt, 'call')} in doubt")
        parts.append(f"{number(bank.twice)} charged twice")
        return ", ".join([*parts, *books_of(self.sale).words])

    def balance(self) -> Balance | None:
        return books_of(self.sale) if self.sale else None

    def cost(self) -> list[Cell]:
        if self.sale is None:
            return []
        bank, sale = self.sale.bank, self.sale
        return [
            Cell("Calls to the bank", number(bank.calls), f"for {plural(sale.started, 'order')}"),
            Cell("Retried", number(bank.repeats), "under the same key"),
            Cell("In doubt", number(sale.in_doubt), "worker died in the call", sale.in_doubt > 0),
            Cell("Charged twice", number(bank.twice), "one key, one charge", bank.twice > 0),
            Cell("This page", plural(reads_of(sale), "read"), "two for each order"),
        ]


def books_of(sale: SaleProgress) -> Balance:
    """Return the books of a sale: its orders, compared with the bank's statement and the stock."""
    orders = Balance(
        is_moving=sale.is_moving,
        asked=sale.asked,
        made_count=sale.started + sale.missing,
        found_count=sale.ended,
        in_flight=sale.open,
        missing_count=sale.missing,
        doubled=sale.bank.twice,
    )
    if sale.missing:  # Nothing can be compared with an order that is gone.
        return orders
    is_open = sale.is_moving or sale.open > 0
    bank = Balance(is_moving=is_open, earlier=sale.charged, found_count=sale.bank.held)
    stock = Balance(is_moving=is_open, earlier=sale.reserved, found_count=sale.stock_reserved)
    bare = replace(orders, missing_count=0, doubled=0)
    return replace(orders, parts=(bare, bank, stock))


def number_of(delivery: Delivery) -> int | None:
    """Return which order a delivery was for; None: none, or that is not known."""
    match = _RUN_ID.fullmatch(str((delivery.body or {}).get("run_id", "")))
    return int(match[1]) if match else None
