"""A schedule: visitors place orders while faults strike; in the end all totals are exact.

The model is what the visitors were told. An order that was accepted is there; one that was refused,
or whose answer was lost, may be. All else follows from the orders that are there.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from google.cloud import ndb

from rollforward.pull_queues.entities import PullItem
from rollforward.testing.leftovers import left_behind
from tests.simulation.faults import Fault, drawn, written
from tests.simulation.processes import Process, in_virtual_time
from tests.simulation.shop import app
from tests.simulation.world import World

CALLS = 600  # At which faults are drawn: the first minute makes 450 to 520.
MOST_FAULTS = 3
VISITORS, ORDERS = 2, 2
CUSTOMERS = ("ada", "bob")
DAY = "monday"
ATTEMPTS, AGAIN_AFTER_S = 4, 3.0
PLAYED_S = 60.0
PICKED_AFTER_S = (0.1, 1.0, 4.0, 20.0, 45.0)
# Between two sweeps: a batch in which nothing has moved is looked at after half an hour, and again
# an hour later.
SWEPT_AFTER_S = (60.0,) * 6 + (1_900.0, 60.0, 3_700.0, 60.0, 7_300.0, 60.0)
ACCEPTED = 204


class BrokenPromiseError(AssertionError):
    """The totals are not what they have to be."""


@dataclass
class Visitor:
    """Sends its requests one after the other, each again if it is not answered.

    Attributes:
        accepted: The orders that it was told are placed.
    """

    world: World
    requests: list[tuple[str, dict[str, Any]]]
    accepted: list[str] = field(default_factory=list)
    tried: int = 0

    def begin(self) -> None:
        self.world.at(self.world.now_s, "visitor", self._send)

    def _send(self, process: Process) -> None:
        """Send the next request; plan the one after it before, since the process may die."""
        path, body = self.requests[0]
        self.tried += 1
        number = self.tried
        self.world.at(self.world.now_s + AGAIN_AFTER_S, "visitor", self._again(number))
        status, _ = process.request("POST", path, json=body)
        self.world.statuses[f"{path} {status}"] += 1
        if status == ACCEPTED and "cents" in body:
            self.accepted.append(body["order"])
        if status == ACCEPTED and self.tried == number:
            self._next()

    def _again(self, number: int) -> Any:
        def send(process: Process) -> None:
            if self.tried != number or not self.requests:
                return  # It was answered.
            if number >= ATTEMPTS:
                self._next()
            else:
                self._send(process)

        return send

    def _next(self) -> None:
        self.requests.pop(0)
        self.tried = 0
        if self.requests:
            self.begin()


@dataclass
class Picker:
    """Works on the pull queue now and then; keeps what was acknowledged to it."""

    world: World
    acked: list[str] = field(default_factory=list)

    def begin(self, *after_s: float) -> None:
        """Pick in some seconds."""
        for seconds in after_s:
            self.world.at(self.world.now_s + seconds, "picker", self._pick)

    def _pick(self, process: Process) -> None:
        status, body = process.request("POST", f"{app.API}/picks", json={})
        self.world.statuses[f"picks {status}"] += 1
        if status == 200:
            self.acked += json.loads(body)


@dataclass(frozen=True)
class Played:
    """A schedule that was played: the calls it made, and the faults that it met."""

    calls: int
    met: Sequence[tuple[str, str]]
    trace: Sequence[str]
    sweeps: int


class Simulator:
    """Plays schedules in one world, one after the other."""

    def __init__(self) -> None:
        self.world = World(app.make, app.REGISTRY)
        self.visitors: list[Visitor] = []
        self.picker = Picker(self.world)

    def close(self) -> None:
        """Close the queue's database."""
        self.world.engine.close()

    def play(self, seed: int, faults: Sequence[Fault] | None = None) -> Played:
        """Play the schedule of a seed, with its own faults or with others.

        Raises:
            AssertionError: a promise is broken.
        """
        world = self.world
        faults = faults_of(seed) if faults is None else faults
        with in_virtual_time(world):
            world.begin(str(seed), faults)
            try:
                self._play(random.Random(f"{seed} visitors"))
            finally:
                world.line.end()
                world.end()
        line = world.line
        return Played(line.calls, list(line.met), list(line.trace), world.sweeps)

    def _play(self, chance: random.Random) -> None:
        world = self.world
        self.visitors = [Visitor(world, _requests(chance, number)) for number in range(VISITORS)]
        self.picker = Picker(world)
        self.picker.begin(*PICKED_AFTER_S)
        for visitor in self.visitors:
            visitor.begin()
        world.run(until_s=world.now_s + PLAYED_S)
        end_of_day = Visitor(world, [(f"{app.API}/days/{DAY}/end", {})])
        world.end_faults()
        end_of_day.begin()
        self._heal()

    def _heal(self) -> None:
        """Let time pass and the sweep run until all is right."""
        wrong: list[str] = []
        for pause_s in SWEPT_AFTER_S:
            self.picker.begin(0)
            self.world.run(until_s=self.world.now_s + pause_s)
            # Totals are looked at when nothing goes on: looks are a third of a schedule's time.
            wrong = self.world.unfinished() or self.wrong()
            if not wrong:
                return
            self.world.sweep()
        raise BrokenPromiseError("; ".join(wrong))

    def wrong(self) -> list[str]:
        """Return what is not as it has to be."""
        clients = self.world.processes[0].clients
        with clients.context():
            orders = app.PlacedOrder.query().fetch()
            totals = _totals(clients, orders, is_purged=self.world.is_purged)
            return [*self._lost(orders), *self._doubled(), *totals, *left_behind()]

    def _lost(self, orders: Sequence[Any]) -> list[str]:
        placed = {order.key.id() for order in orders}
        accepted = {order for visitor in self.visitors for order in visitor.accepted}
        return [f"{order} was accepted, and is not there" for order in sorted(accepted - placed)]

    def _doubled(self) -> list[str]:
        twice = [order for order, times in Counter(self.picker.acked).items() if times > 1]
        return [f"{order} was acknowledged, and came again" for order in twice]


def faults_of(seed: int) -> list[Fault]:
    """Return the faults that a seed draws."""
    return drawn(random.Random(f"{seed} faults"), CALLS, MOST_FAULTS)


def _requests(chance: random.Random, visitor: int) -> list[tuple[str, dict[str, Any]]]:
    requests: list[tuple[str, dict[str, Any]]] = []
    for number in range(ORDERS):
        order = {"order": f"v{visitor}n{number}", "customer": chance.choice(CUSTOMERS)}
        placed = {**order, "cents": chance.randrange(1, 500), "batch": DAY}
        requests.append((f"{app.API}/orders", placed))
        if chance.random() < 0.4:
            moved = {**order, "customer": chance.choice(CUSTOMERS)}
            requests.append((f"{app.API}/moves", moved))
    return requests


def _totals(clients: Any, orders: Sequence[Any], *, is_purged: bool) -> list[str]:
    """Return which totals are not those of the orders.

    A purge takes plain tasks for good: then mails may be missing.
    """
    names = [order.key.id() for order in orders]
    count, cents = len(orders), sum(order.cents for order in orders)
    revenue = ndb.Key(app.Revenue, app.SHOP).get() or app.Revenue()
    rows = app.CUSTOMERS.read(clients, app.OrdersOfCustomer).rows
    found = {row.name: (row.count, row.sum("cents")) for row in rows if row.count}
    expected = {
        customer: (len(prices), sum(prices))
        for customer in CUSTOMERS
        if (prices := [order.cents for order in orders if order.customer == customer])
    }
    mailed = {key.id() for key in app.MailedOrder.query().fetch(keys_only=True)}
    picked = {key.id() for key in app.PickedOrder.query().fetch(keys_only=True)}
    packed = {key.id() for key in app.PackedOrder.query().fetch(keys_only=True)}
    ledger = ndb.Key(app.BilledOrders, app.SHOP).get() or app.BilledOrders()
    finished = {row.key.id(): row.runs for row in app.FinishedOrder.query().fetch()}
    placed = {row.key.id(): row.placed for row in app.CustomerOrders.query().fetch()}
    shipped = {row.key.id(): row.shipped for row in app.ShippedOrders.query().fetch()}
    closed = ndb.Key(app.ClosedDay, DAY).get() or app.ClosedDay()
    counted = app.MAILED.total(clients, app.SHOP).value
    if is_purged and mailed <= set(names) and counted <= len(mailed):
        mailed, counted = set(names), count
    facts = {
        "placed": (app.PLACED.total(clients, app.SHOP).value, count),
        "mailed": (counted, count),
        "revenue": ((revenue.orders, revenue.cents), (count, cents)),
        "view": (found, expected),
        "mails": (mailed, set(names)),
        "packed": (packed, set(names)),
        "picked": (picked, set(names)),
        "left to pick": (PullItem.query().fetch(keys_only=True), []),
        "bills": ((ledger.bills, ledger.cents), (count, cents)),
        "finished": (finished, dict.fromkeys(names, 1)),
        "shipped in their order": (shipped, placed),
        "the callback": ((closed.runs > 0, closed.members, closed.packed), (True, count, count)),
    }
    return [f"{name}: {is_}, not {must}" for name, (is_, must) in facts.items() if is_ != must]


def shrunk(simulator: Simulator, seed: int, faults: Sequence[Fault]) -> list[Fault]:
    """Return those of the faults by which a schedule still fails: without any of them it passes."""
    left = list(faults)
    for fault in faults:
        fewer = [other for other in left if other != fault]
        try:
            simulator.play(seed, fewer)
        except AssertionError:
            left = fewer
    return left


def play_or_shrink(simulator: Simulator, seed: int) -> Played:
    """Play the schedule of a seed; of one that fails, tell how to play the least of it.

    Raises:
        BrokenPromiseError: with the error, and the command.
    """
    try:
        return simulator.play(seed)
    except AssertionError as error:
        needed = written(shrunk(simulator, seed, faults_of(seed)))
        again = f'python -m tests.simulation {seed} --faults "{needed}"'
        raise BrokenPromiseError(f"{type(error).__name__}: {error}\nplay it by: {again}") from error
