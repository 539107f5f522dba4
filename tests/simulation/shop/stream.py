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
    reads: Sequence[int] = (2,)
    inputs: ClassVar[Mapping[str, KeyOf]] = {"orders": lambda order: order["customer"]}
    outputs = ("released",)

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.list("orders").append(record.value)
        ctx.set_timer("release", record.timestamp_ms + HELD_MS)

    def timer(self, ctx: Context, timer: Timer) -> None:
        for order in ctx.state.list("orders").get():
            ctx.produce("released", order)
        ctx.state.list("orders").clear()

    def upgrade(self, state: dict[str, Any], version: int) -> dict[str, Any]:
        return {"orders": list(state.get("held", {}).values())}


class OrdersHeldById(HeldOrders):
    """Version 2, which keeps the orders by their ids."""

    name = HeldOrders.name
    version = 2
    reads = (1,)

    def record(self, ctx: Context, record: Record) -> None:
        order = record.value
        ctx.state["held"] = ctx.state.get("held", {}) | {order["order"]: order}
        ctx.set_timer("release", record.timestamp_ms + HELD_MS)

    def timer(self, ctx: Context, timer: Timer) -> None:
        for order in ctx.state.get("held", {}).values():
            ctx.produce("released", order)
        ctx.state["held"] = {}

    def upgrade(self, state: dict[str, Any], version: int) -> dict[str, Any]:
        return {"held": {order["order"]: order for order in state.get("orders", [])}}


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


def sales_of(*standby: type[HeldOrders]) -> Pipeline:
    """Return the pipeline of a version.

    Args:
        standby: What somebody may let take the place of version 1.
    """
    return Pipeline(
        "simulated-sales",
        HeldOrders,
        standby=standby,
        sinks=[ReleasedOrders("released", name="simulated-released")],
        intervals=1,
    )
