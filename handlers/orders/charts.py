"""The board of a sale: a lane for each stage, with a card for each order in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipelines.orders import orders
from pipelines.orders.progress import OrderProgress, SaleProgress

# Title, what goes on there, and the state whose colour it has.
FORWARDS = {
    orders.ACCEPTED: ("Accepted", "waits for a worker", "waiting"),
    orders.RESERVED: ("Reserved", "call to the bank", "running"),
    orders.CHARGED: ("Charged", "waits for the courier", "waiting"),
    orders.HANDED: ("Handed over", "in its trial period", "running"),
    orders.DONE: ("Done", "confirmed", "done"),
}
BACKWARDS = {
    orders.RETURNING: ("Undoing", "refund by the bank", "retrying"),
    orders.REFUNDED: ("Refunded", "stock released", "cancelled"),
    orders.REJECTED: ("Rejected", "sold out, or declined", "skipped"),
}
WORDS = {stage: title for stage, (title, _, _) in {**FORWARDS, **BACKWARDS}.items()}


@dataclass(frozen=True)
class Lane:
    """A stage of the board, and the orders that are there."""

    stage: str
    title: str
    text: str
    state: str
    orders: Sequence[OrderProgress]
    of: int

    @property
    def growth(self) -> int:
        """How wide the lane is beside others, 1 to 4: wider when more of the orders are there."""
        return 1 + min(3, 5 * len(self.orders) // max(1, self.of))


@dataclass(frozen=True)
class Board:
    """The lanes of a sale: forwards, and below them backwards."""

    forwards: Sequence[Lane]
    backwards: Sequence[Lane]


def board_of(sale: SaleProgress) -> Board:
    """Return the board of a sale."""
    return Board(_lanes(sale, FORWARDS), _lanes(sale, BACKWARDS))


def _lanes(sale: SaleProgress, stages: dict[str, tuple[str, str, str]]) -> list[Lane]:
    return [
        Lane(stage, *words, [order for order in sale.orders if order.stage == stage], sale.asked)
        for stage, words in stages.items()
    ]
