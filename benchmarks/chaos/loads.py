"""Loads of flows and of lanes, by their demos."""

from __future__ import annotations

import contextlib
import secrets
import threading

from google.api_core.exceptions import GoogleAPICallError

from benchmarks.harness.books import until
from benchmarks.harness.dev_server import Stack
from benchmarks.healing.loads import Account, AllLoads, Visitor
from models.orders import newest_sales, sale_key
from models.tenants import newest_rushes, rush_key
from pipelines.orders.orders import MAX_SALES
from pipelines.orders.progress import progress as progress_of_sale
from pipelines.tenants.progress import progress as progress_of_rush
from pipelines.tenants.rushes import MAX_RUSHES
from rollforward.runtime import Clients

ORDERS, FLOOD = 6, 40
SALE_EVERY_S, RUSH_EVERY_S = 4.0, 4.0


class Orders:
    """Sales of orders: flows that charge, wait for a courier, and end or are undone.

    An order counts as done twice if the bank charged it twice.
    """

    def __init__(self, stack: Stack, clients: Clients) -> None:
        self.visitor, self.clients = Visitor(stack), clients
        self.asked = self.ended = self.twice = 0
        self.open_sales: list[str] = []
        self.over: dict[str, int] = {}

    def open(self) -> None:
        """Do nothing, as this load needs no target."""

    def write(self, is_over: threading.Event) -> None:
        fields = {"orders": str(ORDERS), "stock": str(ORDERS - 1), "courier": "you"}
        while not is_over.is_set():
            sale = secrets.token_hex(16)
            form = {"id": sale, **fields, "patience": "15", "pace": "fast"}
            self.visitor.send("/orders", "/orders", form)
            self.asked += ORDERS
            self.open_sales.append(sale)
            with self.clients.context():
                until(lambda sale=sale: self._has_begun(sale), "orders do not begin")
            self.visitor.send("/orders", f"/orders/{sale}/courier", {"visit": "all"})
            is_over.wait(SALE_EVERY_S)

    def account(self) -> Account:
        for sale in list(self.open_sales):
            row = sale_key(sale).get()
            seen = progress_of_sale(self.clients, row) if row else None
            if seen and seen.is_over and seen.adds_up:
                self.open_sales.remove(sale)
                self.over[sale] = seen.ended
                self.ended += seen.ended
            elif seen:
                self.twice = max(self.twice, seen.bank.twice)
        return Account(self.asked, self.ended, self.twice)

    def look_again(self) -> None:
        """Judge the newest sales again; older ones are deleted, and keep their verdicts."""
        newest = [row.key.id() for row in newest_sales().fetch(MAX_SALES)]
        for sale in self.over.keys() & newest:
            self.ended -= self.over.pop(sale)
            self.open_sales.append(sale)

    def _has_begun(self, sale: str) -> bool:
        with contextlib.suppress(GoogleAPICallError):  # The load reads the Datastore that fails.
            row = sale_key(sale).get()
            return row is not None and progress_of_sale(self.clients, row).unstarted == 0
        return False


class Tenants:
    """Rushes of tenants whose tasks wait in lanes: one floods its lane, and one has an order."""

    def __init__(self, stack: Stack, clients: Clients) -> None:
        self.visitor, self.clients = Visitor(stack), clients
        self.asked = self.done = 0
        self.open_rushes: list[str] = []
        self.over: dict[str, int] = {}

    def open(self) -> None:
        """Do nothing, as this load needs no target."""

    def write(self, is_over: threading.Event) -> None:
        sizes = {"flood": str(FLOOD), "behind": "2", "tasks": "5", "dead": "0"}
        while not is_over.is_set():
            rush = secrets.token_hex(16)
            rules = {"way": "lanes", "chosen": "B", "rule": "order", "pace": "fast"}
            self.visitor.send("/tenants", "/tenants", {"id": rush, **sizes, **rules})
            self.asked += FLOOD + 2 * 5
            self.open_rushes.append(rush)
            is_over.wait(RUSH_EVERY_S)

    def account(self) -> Account:
        for rush in list(self.open_rushes):
            row = rush_key(rush).get()
            seen = progress_of_rush(self.clients, row) if row else None
            if seen and seen.is_over:
                self.open_rushes.remove(rush)
                self.over[rush] = seen.done
                self.done += seen.done
        return Account(self.asked, self.done)

    def look_again(self) -> None:
        """Judge the newest rushes again; older ones are deleted, and keep their verdicts."""
        newest = [row.key.id() for row in newest_rushes().fetch(MAX_RUSHES)]
        for rush in self.over.keys() & newest:
            self.done -= self.over.pop(rush)
            self.open_rushes.append(rush)


def opened_loads(stack: Stack) -> AllLoads:
    """Return loads of all patterns, after creating their targets."""
    loads = AllLoads(stack, [Orders, Tenants])
    loads.open()
    return loads
