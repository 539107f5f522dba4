"""The stream of the shop: each order is held by its customer, until a timer lets all of them out.

The values of a version may have further fields, which the other one leaves alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from rollforward.runtime import Clients
from rollforward.streams import Computation, Context, Pipeline, Record, Timer
from rollforward.streams.model.computation import KeyOf
from rollforward.streams.model.sink import Sink, SinkRecord
from tests.simulation.shop.entities import StreamedOrder, StreamedRevenue, count_run

HELD_MS = 10_000
SHOP = "shop"


class HeldOrders(Computation):
    """The orders of a customer, until none has come for a while."""

    name = "simulated-held-orders"
    inputs: ClassVar[Mapping[str, KeyOf]] = {"orders": lambda order: order["customer"]}
    outputs = ("released",)

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.list("orders").append(record.value)
        ctx.set_timer("release", record.timestamp_ms + HELD_MS)

    def timer(self, ctx: Context, timer: Timer) -> None:
        for order in ctx.state.list("orders").get():
            ctx.produce("released", order)
        ctx.state.list("orders").clear()


class ReleasedOrders(Sink):
    """Writes each order that comes out, and their sum."""

    def make(self, record: SinkRecord) -> Any:
        return record.value

    def write(self, clients: Clients, values: Sequence[Any]) -> None:
        row = StreamedRevenue.get_by_id(SHOP) or StreamedRevenue(id=SHOP)
        row.cents += sum(order["cents"] for order in values)
        row.orders += len(values)
        row.put()
        for order in values:
            count_run(StreamedOrder, order["order"])


SALES = Pipeline(
    "simulated-sales",
    HeldOrders,
    sinks=[ReleasedOrders("released", name="simulated-released")],
    intervals=1,
)
