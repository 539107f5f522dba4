"""Views of your own: the sales of each shop, and the number of shops by sales.

    .venv/bin/python -m docs.examples.sum_up_sales

Sales are made, changed, moved and deleted; then both views are rebuilt and verified. Each task is
delivered twice. The program starts its own services: see raise_prices.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar
from urllib.parse import urlsplit

from google.cloud import ndb

from docs.examples.raise_prices import ROOT, open_clients
from rollforward.continuations.pages.attempt import page_task
from rollforward.local.cloudtasks.emulator import RunningEmulator, running
from rollforward.local.services.standalone import datastore_emulator
from rollforward.materialized_views import Contributions, Row, View, ViewGroup, ViewMaintenance
from rollforward.runtime import Clients


# howto: from here
class Sale(ndb.Model):
    shop = ndb.TextProperty()
    buyer = ndb.TextProperty()
    cents = ndb.IntegerProperty(indexed=False)


class Seller(ndb.Model):
    shop = ndb.TextProperty()


class SalesByShop(View):
    """The sales of a shop, joined with its sellers."""

    source = Sale
    ranked = ("cents", "buyer")

    @staticmethod
    def contributions(sale: Sale) -> Contributions:
        return {sale.shop: {"cents": sale.cents, "buyer": sale.buyer}}

    @staticmethod
    def from_seller(seller: Seller) -> Contributions:
        return {seller.shop: {}}

    joins: ClassVar[Mapping[Any, Any]] = {Seller: from_seller}


class ShopsBySales(View):
    """The number of shops by number of sales; its sources are the rows above."""

    source = SalesByShop

    @staticmethod
    def contributions(row: Row) -> Contributions:
        return {row.count: {"cents": row.sum("cents")}} if row.count else {}


SHOPS = ViewGroup("shops", SalesByShop, ShopsBySales)
BUILDS = ViewMaintenance(SHOPS)
# howto: to here


def play(clients: Clients, queue: RunningEmulator) -> list[str]:
    """Play through all operations on the views; return the output of each step."""
    with clients.context():
        return [*follow(clients, queue), *ask(clients, queue), *build(clients, queue)]


def follow(clients: Clients, queue: RunningEmulator) -> list[str]:
    """Save, move and delete; the rows follow."""
    token = SHOPS.save(
        clients,
        Sale(id="s1", shop="Aki", buyer="Lin", cents=700),
        Sale(id="s2", shop="Aki", buyer="Ada", cents=250),
        Sale(id="s3", shop="Ben", buyer="Lin", cents=400),
    )
    early = SHOPS.read(clients, SalesByShop, at_least=token, timeout_s=0)
    deliver_all(clients, queue)
    late = SHOPS.read(clients, SalesByShop, at_least=token)
    unchanged = SHOPS.save(clients, Sale(id="s1", shop="Aki", buyer="Lin", cents=700))
    SHOPS.save(clients, Sale(id="s2", shop="Ben", buyer="Ada", cents=300))
    SHOPS.delete(clients, ndb.Key(Sale, "s3"))
    deliver_all(clients, queue)
    return [
        f"at once: {shown(early.rows)}, met {early.is_satisfied}, {early.freshness.waiting} wait",
        f"then: {shown(late.rows)}, met {late.is_satisfied}, {late.freshness.waiting} wait",
        f"an unchanged save sets {len(unchanged.updates)} updates going",
        f"moved and deleted: {shown(SHOPS.read(clients, SalesByShop).rows)}",
    ]


def ask(clients: Clients, queue: RunningEmulator) -> list[str]:
    """Read the ranking, the other side of the join, and the downstream view."""
    SHOPS.save(
        clients,
        Sale(id="s4", shop="Aki", buyer="Ada", cents=100),
        Seller(id="Mia", shop="Aki"),
    )
    deliver_all(clients, queue)
    [(dearest, cents)] = SHOPS.top(SalesByShop, "Aki", "cents")
    sellers = [key.id() for key, _ in SHOPS.members(SalesByShop, "Aki", Seller)]
    return [
        f"Aki's dearest sale: {dearest.id()}, {cents}; "
        f"buyers: {SHOPS.distinct(SalesByShop, 'Aki', 'buyer')}; sellers: {', '.join(sellers)}",
        f"shops by sales: {shown(SHOPS.read(clients, ShopsBySales).rows)}",
    ]


def build(clients: Clients, queue: RunningEmulator) -> list[str]:
    """Rebuild and verify, with a sale in between."""
    before = SHOPS.catalog().live(SalesByShop)
    BUILDS.rebuild(clients, SalesByShop)
    SHOPS.save(clients, Sale(id="s5", shop="Cho", buyer="Ada", cents=50))
    deliver_all(clients, queue)
    after = SHOPS.catalog().live(SalesByShop)
    for view in SHOPS.views.values():
        BUILDS.verify(clients, view, "spring")
    deliver_all(clients, queue)
    found = [BUILDS.verification(clients, view, "spring") for view in SHOPS.views.values()]
    return [
        f"{before} became {after}: {shown(SHOPS.read(clients, SalesByShop).rows)}",
        f"shops by sales: {shown(SHOPS.read(clients, ShopsBySales).rows)}",
        f"verified: {', '.join(each.state for each in found)}; "
        f"differences: {sum(len(each.differences) for each in found)}",
    ]


def shown(rows: Any) -> str:
    return "; ".join(f"{row.name} {row.count}, {row.sum('cents')}" for row in rows) or "nothing"


def deliver_all(clients: Clients, queue: RunningEmulator) -> None:
    """Act as the queue's dispatcher: deliver due tasks, updates first, each twice."""
    tasks = {task.path: task for task in [*SHOPS.tasks, *map(page_task, BUILDS.jobs)]}
    while due := sorted(each.task_name for each in queue.engine.due()):
        updates = [name for name in due if "/queues/views/" in name]
        attempt = queue.engine.begin_attempt((updates or due)[0])
        task = tasks[urlsplit(attempt.url).path]
        for _ in range(2):
            task.work(clients, task.read(attempt.body))
        queue.engine.end_attempt(attempt.id, status=204)


def main() -> None:
    """Start the services, play, and print the result."""
    with (
        datastore_emulator() as datastore,
        running(queue_yaml=ROOT / "queue.yaml", dispatching=False) as queue,
    ):
        print("\n".join(play(open_clients(datastore, queue), queue)))  # noqa: T201


if __name__ == "__main__":
    main()
