"""A schedule: visitors place orders while faults strike; in the end all totals are exact.

The model is what the visitors were told. An order that was accepted is there; one that was refused,
or whose answer was lost, may be. All else follows from the orders that are there.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from rollforward.testing.leftovers import remaining_rows
from tests.simulation.faults import Fault, written
from tests.simulation.plan import DAY, Plan, Request, plan_of
from tests.simulation.processes import Process, in_virtual_time
from tests.simulation.shop.app import API
from tests.simulation.shop.entities import PlacedOrder
from tests.simulation.shop.first import FIRST
from tests.simulation.shop.second import SECOND
from tests.simulation.shop.totals import Look, wrong_totals
from tests.simulation.watch import TICK_S, TICKS, StuckError, watched
from tests.simulation.world import World

ATTEMPTS, AGAIN_AFTER_S = 4, 3.0
PLAYED_S, ENDED_S = 60.0, 30.0  # Before the end of the day, and after it: faults may strike.
SHOPS = {shop.version: shop for shop in (FIRST, SECOND)}
LOOKED_AGAIN_S = 5.0
# Of a deployment, by the part of an order that it is about; "": of all.
DEPLOYED = {"": f"{API}/rebuilds", "stream": f"{API}/replacements"}
ENDS = {"pack": f"{API}/days/{DAY}/end", "stream": f"{API}/sales/end"}
PICKED_AFTER_S = (0.1, 1.0, 4.0, 20.0, 45.0)
# Between two sweeps: a batch in which nothing has moved is looked at after half an hour, and again
# an hour later.
SWEPT_AFTER_S = (60.0, 60.0, 3_700.0, 60.0, 1_900.0, 60.0, 3_700.0, 60.0, 7_300.0, 60.0)
ACCEPTED = 204


class BrokenPromiseError(AssertionError):
    """The totals are not what they have to be."""


@dataclass
class Visitor:
    """Sends its requests one after the other, each again if it is not answered.

    Attributes:
        accepted: The requests that were answered.
        sent: How often one was sent.
    """

    world: World
    requests: list[Request]
    accepted: list[Request] = field(default_factory=list)
    sent: int = 0
    tried: int = 0

    def begin(self) -> None:
        self.world.at(self.world.now_s + self.requests[0].after_s, "visitor", self._send)

    def _send(self, process: Process) -> None:
        """Send the next request; plan the one after it before, since the process may die."""
        path, body, _ = request = self.requests[0]
        self.sent += 1
        self.tried += 1
        number = self.tried
        self.world.at(self.world.now_s + AGAIN_AFTER_S, "visitor", self._again(number))
        status, _ = process.request("POST", path, json=body)
        self.world.statuses[f"{path} {status}"] += 1
        if status == ACCEPTED:
            self.accepted.append(request)
        if status == ACCEPTED and self.tried == number:
            self._next()

    def _again(self, number: int) -> Callable[[Process], None]:
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

    def orders(self) -> set[str]:
        """Return the orders that it was told are placed."""
        return {one.body["order"] for one in self.accepted if one.path == f"{API}/orders"}


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
        status, body = process.request("POST", f"{API}/picks", json={})
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
    """Plays schedules in one world, one after the other.

    Args:
        ticks: A schedule that takes no turn for so many looks is stuck.
        tick_s: In real time, between two looks.
    """

    def __init__(self, ticks: int = TICKS, tick_s: float = TICK_S) -> None:
        self.world = World([*SHOPS.values()])
        self.ticks, self.tick_s = ticks, tick_s
        self._begin(plan_of(0))

    def _begin(self, plan: Plan) -> None:
        world = self.world
        self.plan = plan
        self.visitors = [Visitor(world, list(requests)) for requests in plan.requests]
        self.auditor = Visitor(world, [Request(f"{API}/audits", {})])
        self.looker = Visitor(world, list(plan.looks))
        self.audited: set[str] = set()
        self.ends: list[Visitor] = []
        self.picker = Picker(world)

    def close(self) -> None:
        """Close the queue's database."""
        self.world.engine.close()

    def play(
        self, seed: int, faults: Sequence[Fault] | None = None, parts: Sequence[str] = ()
    ) -> Played:
        """Play the schedule of a seed, with its own faults and parts or with others.

        Raises:
            AssertionError: a promise is broken.
        """
        world, plan = self.world, plan_of(seed, parts)
        self._begin(plan if faults is None else replace(plan, faults=faults))
        with in_virtual_time(world):
            # As each worker's start does, within seconds: a deployment comes later.
            is_swept = bool(self.plan.deployments)
            begun = str(seed), self.plan.faults, self.plan.moods
            threads, serving = self.plan.threads, self.plan.serving
            world.begin(*begun, threads=threads, serving=serving, is_swept=is_swept)
            with watched(world, self.ticks, self.tick_s):
                try:
                    self._play()
                finally:
                    world.line.end()
                    world.end()
        line = world.line
        return Played(line.calls, list(line.met), list(line.trace), world.sweeps)

    def _play(self) -> None:
        world, begin_s = self.world, self.world.now_s
        if "pick" in self.plan.parts:
            self.picker.begin(*PICKED_AFTER_S)
        for deployment in self.plan.deployments:
            after_s, process, version = deployment
            world.deploy(begin_s + after_s, process, version)
        if "audit" in self.plan.parts:
            world.at(begin_s + self.plan.audited_after_s, "auditor", self._audit)
        for visitor in self.visitors:
            visitor.begin()
        if "look" in self.plan.parts:
            self.looker.begin()
        if self.plan.deployments:
            world.at(begin_s + self.plan.rebuilt_after_s, "operator", self._follow_up)
        world.run(until_s=begin_s + PLAYED_S)
        if self.plan.is_late:
            self._end()
            world.sweep()
            world.run(until_s=world.now_s + ENDED_S)
        world.end_faults()
        self._end()
        self._heal()

    def _audit(self, process: Process) -> None:
        self.audited = self._accepted()
        self.auditor.begin()

    def _end(self) -> None:
        """Seal the batch, and close the source of the stream, unless that was answered before."""
        for part, path in ENDS.items():
            if part in self.plan.parts:
                self._ask_once(path)
        if self.plan.deployments:
            self._follow_up()

    def _follow_up(self, _: Process | None = None) -> None:
        """Do what docs/howto says of the time when no process has the old version any more.

        The view is rebuilt, and the computation of the stream is replaced.
        """
        world = self.world
        if world.deployments or any(process.version == 1 for process in world.processes):
            world.at(world.now_s + LOOKED_AGAIN_S, "operator", self._follow_up)
            return
        for part, path in DEPLOYED.items():
            if not part or part in self.plan.parts:
                self._ask_once(path)

    def _retry_undos(self, process: Process) -> None:
        process.request("POST", f"{API}/fulfilments/retries")

    def _ask_once(self, path: str) -> None:
        if path not in {one.path for visitor in self.ends for one in visitor.accepted}:
            self.ends.append(Visitor(self.world, [Request(path, {})]))
            self.ends[-1].begin()

    def _heal(self) -> None:
        """Let time pass and the sweep run until all is right."""
        wrong: list[str] = []
        for pause_s in SWEPT_AFTER_S:
            if "pick" in self.plan.parts:
                self.picker.begin(0)
            if "flow" in self.plan.parts and self.plan.deployments:
                self.world.at(self.world.now_s, "operator", self._retry_undos)
            self.world.run(until_s=self.world.now_s + pause_s)
            # Looks take long: none while something goes on.
            wrong = self.world.unfinished() or self.wrong()
            if not wrong:
                return
            self.world.sweep()
        raise BrokenPromiseError("; ".join(wrong))

    def wrong(self) -> list[str]:
        """Return what is not as it has to be."""
        world = self.world
        clients = world.processes[0].clients
        with clients.context():
            orders = PlacedOrder.query().fetch()
            audited = self.audited if self.auditor.accepted else None
            shop = SHOPS[world.processes[0].version]
            looks = len(self.looker.accepted), self.looker.sent
            known = audited, shop, looks, world.relay, world.payments
            look = Look(clients, orders, DAY, world.is_purged, *known)
            totals = wrong_totals(look, self.plan.parts)
            # The attempts of a task that was purged expire after two days.
            left = remaining_rows(["TaskAttempts"] if world.is_purged else [])
            return [*self._lost(look.names), *self._doubled(), *totals, *left]

    def _accepted(self) -> set[str]:
        return set[str]().union(*(visitor.orders() for visitor in self.visitors))

    def _lost(self, placed: Sequence[str]) -> list[str]:
        missing = sorted(self._accepted().difference(placed))
        return [f"{order} was accepted, and is not there" for order in missing]

    def _doubled(self) -> list[str]:
        twice = [order for order, times in Counter(self.picker.acked).items() if times > 1]
        return [f"{order} was acknowledged, and came again" for order in twice]


def shrunk(
    simulator: Simulator, seed: int, faults: Sequence[Fault], parts: Sequence[str] = ()
) -> list[Fault]:
    """Return those of the faults by which a schedule still fails: without any of them it passes."""
    left = list(faults)
    for fault in faults:
        fewer = [other for other in left if other != fault]
        try:
            simulator.play(seed, fewer, parts)
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
        faults = plan_of(seed).faults
        if not isinstance(error, StuckError):  # Each try of such a one takes real time.
            faults = shrunk(simulator, seed, faults)
        needed = written(faults)
        again = f'python -m tests.simulation {seed} --faults "{needed}"'
        raise BrokenPromiseError(f"{type(error).__name__}: {error}\nplay it by: {again}") from error
