"""Two versions of a shop on one store, rolled forward and back under load, as real processes.

Nothing is lost, doubled, dead or slowed, although a worker of either version is killed.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from google.cloud import ndb

from rollforward.pull_queues.entities import PullItem
from rollforward.tasks.dead_task_entities import open_dead_tasks
from rollforward.testing.leftovers import remaining_rows
from tests.infra.runs.sampling import kills
from tests.infra.stack import ROOT, until
from tests.process.servers import THREADS
from tests.process.versions import second_shop as shop
from tests.process.versions.deployment import Deployment, deployed
from tests.process.versions.load import Buyer
from tests.process.versions.router import DONE, WAITS

# The shares of the first version: rolled forward, back, and forward again.
SHARES = (1, 0.5, 0, 0.5, 1, 0.5, 0)
KILLED_AT = {1: "first", 3: "second"}
REBUILT_AT = 2
SALES_AT_A_TIME = 12
PRICES = 20
CUT_OFF = len(KILLED_AT) * THREADS  # Deliveries that a killed worker may have had.
TIMEOUT_S = 240.0
# Paths that only the second version knows.
NEW = {
    f"/tasks/{name}"
    for name in ("mail-receipt-to", "request-review", "thank", "batches/parcels/wrap")
}
VIEW = "materialized-views/sales/sales_by_product"

pytestmark = [pytest.mark.process, kills]


@dataclass
class ShopDeployment(Deployment):
    """Two versions of the shop, and the forms that buyers had accepted."""

    accepted: list[dict[str, Any]] = field(default_factory=list)

    def of(self, path: str) -> list[dict[str, Any]]:
        return [line for line in list(self.accepted) if line["path"] == path]

    def rebuild(self) -> None:
        """Rebuild the view that has changed, as an operator does, while the second version serves.

        Not by this process: the tests have fewer copies of a catalog.
        """
        self.ask_as_operator("POST", f"/control/runs/{VIEW}:rebuild")
        until(self.is_rebuilt, TIMEOUT_S)

    def is_rebuilt(self) -> bool:
        self.run_waiting()  # A rebuild looks again for what is in flight, ever more rarely.
        numbers = self.ask_as_operator("GET", f"/control/runs/{VIEW}").json()["numbers"]
        assert numbers.get("phase") != "failed"
        return bool(numbers["building"] == "none")

    def is_over(self) -> bool:
        """Return whether nothing waits any more; the shop's cron and an operator do their part."""
        assert open_dead_tasks().fetch(1) == []
        self.run_waiting()
        self.sweep()
        buyer = Buyer(self.router.url, 0)
        buyer.send("/labels")
        is_idle = self.queue.engine.is_idle("", with_scheduled=True, with_retrying=True)
        return is_idle and not remaining_rows() and PullItem.query().get(keys_only=True) is None


@pytest.fixture
def deployment(
    tmp_path: Path, datastore_address: Callable[[str], str], memcached_address: str | None
) -> Iterator[ShopDeployment]:
    targets = {
        version: f"tests.process.versions.{version}_shop:serve" for version in ("first", "second")
    }
    address = datastore_address("datastore")
    with deployed(ShopDeployment, tmp_path, targets, address, memcached_address) as started:
        yield started


@contextlib.contextmanager
def buying(deployment: ShopDeployment) -> Iterator[subprocess.Popen[str]]:
    """Let buyers send forms meanwhile, from a process of their own."""
    command = [sys.executable, "-m", "tests.process.versions.load", deployment.router.url]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        lines = process.stdout

        def read() -> None:
            deployment.accepted.extend(json.loads(line) for line in lines)

        reader = threading.Thread(target=read)
        reader.start()
        try:
            yield process
        finally:
            process.stdin.close()
            reader.join()
    assert process.returncode == 0


@pytest.mark.timeout(600)
def test_a_shop_is_rolled_forward_and_back_under_load(
    deployment: ShopDeployment,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    """H9: each sale is mailed, packed, summed and counted once by two versions."""
    for model in vars(shop).values():  # Other tests of this process have a Sale, too.
        if isinstance(model, type) and issubclass(model, ndb.Model):
            monkeypatch.setitem(ndb.Model._kind_map, model._get_kind(), model)
    ndb.put_multi([shop.Price(id=f"price {number}") for number in range(PRICES)])
    deployment.sweep()
    with buying(deployment) as buyers:
        for phase, share in enumerate(SHARES):
            deployment.router.split(first=share, second=1 - share)
            deployment.sweep()
            if phase in KILLED_AT:
                deployment.kill_worker(KILLED_AT[phase])
            enough = len(deployment.of("/sell")) + SALES_AT_A_TIME
            while len(deployment.of("/sell")) < enough:
                assert buyers.poll() is None, "a buyer was refused"
                time.sleep(0.1)
            if phase == REBUILT_AT:
                deployment.rebuild()
    until(deployment.is_over, TIMEOUT_S)
    deployment.rebuild()
    until(deployment.is_over, TIMEOUT_S)

    record_property("sales", len(deployment.of("/sell")))
    assert_sold_once(deployment)
    assert_views_are_a_recount(deployment)
    assert_nothing_was_slowed(deployment)


def assert_sold_once(deployment: ShopDeployment) -> None:
    """Compare what is stored with the forms that the shop has accepted."""
    forms = {line["id"]: line for line in deployment.of("/sell")}
    sales = {sale.key.id(): sale for sale in shop.Sale.query().fetch()}
    gifts = {id_ for id_, sale in sales.items() if sale.gift_note}
    of_version = {
        version: {
            id_ for id_, form in forms.items() if (form["version"], form["sent"]) == (version, 1)
        }
        for version in (1, 2)
    }

    assert sales.keys() == forms.keys()
    assert all(sale.is_shipped for sale in sales.values())
    assert of_version[2] <= gifts
    assert not of_version[1] & gifts
    total = {
        key: shop.MAILS.total(deployment.clients, key).value
        for key in ("receipts", "reviews", "thanks")
    }
    assert total == {"receipts": len(sales), "reviews": len(sales), "thanks": len(gifts)}
    assert shop.HANDED_OVER.total(deployment.clients, "sales").value == len(sales)
    assert len(shop.Parcel.query().fetch(keys_only=True)) == 2 * len(sales)
    assert {key.id() for key in shop.Label.query().fetch(keys_only=True)} == sales.keys()
    assert {key.id() for key in shop.Wrapping.query().fetch(keys_only=True)} <= gifts
    sold = Counter(sale.product for sale in sales.values())
    tills = {till.key.id(): (till.receipts, till.cents) for till in shop.Till.query().fetch()}
    assert tills == {product: (count, count * shop.CENTS) for product, count in sold.items()}
    raises = len(deployment.of("/raise"))
    assert raises > 0
    prices = {(price.raises, price.cents) for price in shop.Price.query().fetch()}
    assert prices == {(raises, shop.CENTS + 10 * raises)}


def assert_views_are_a_recount(deployment: ShopDeployment) -> None:
    """The view that no version has changed was never rebuilt."""
    for view in (shop.SalesByState, shop.SalesByProduct):
        expected: dict[Any, Counter[str]] = defaultdict(Counter)
        for sale in shop.Sale.query().fetch():
            for name, measures in view.contributions(sale).items():
                expected[name].update({"count": 1, **measures})
        rows = shop.SALES.read(deployment.clients, view).rows
        measures = ["cents", "gifts"] if view is shop.SalesByProduct else ["cents"]
        assert {
            row.name: {"count": row.count, **{name: row.sum(name) for name in measures}}
            for row in rows
        } == expected


def assert_nothing_was_slowed(deployment: ShopDeployment) -> None:
    """Tasks that both versions know end with nearly each delivery; the new ones wait meanwhile."""
    ends: dict[str, Counter[str]] = defaultdict(Counter)
    waits = 0
    for delivery, count in deployment.router.deliveries.items():
        if delivery.path in NEW:
            assert delivery.version == "second" or delivery.end != DONE
            waits += count * (delivery.end == WAITS)
        elif delivery.end != WAITS:
            ends[delivery.path][delivery.end] += count
    slow = {
        path: dict(counts)
        for path, counts in ends.items()
        if counts[DONE] < 0.9 * (counts.total() - CUT_OFF)
    }

    assert waits > 0, "no task met the version that does not know it"
    assert slow == {}
