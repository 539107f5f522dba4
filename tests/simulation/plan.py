"""What a seed draws: the parts that follow from an order, the requests, deployments and faults."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.simulation.faults import Fault, drawn
from tests.simulation.services import payments, smtp
from tests.simulation.services.moods import Moods, MoodsOfOrders
from tests.simulation.shop.app import API
from tests.simulation.shop.totals import PARTS
from tests.simulation.world import BEGIN_S, PROCESSES

VISITORS, MOST_ORDERS = 2, 2
# In one seed of five threads of a process meet: more visitors come at once, with one order each.
CROWDED_OF, CROWDED = 5, 3
CROWD, ORDERS_IN_CROWD, THREADS = 5, 1, (2, 3)
CUSTOMERS = ("ada", "bob")
DAY = "monday"
LOOKS = 3
MOST_FAULTS = 3
APART = ("audit", "look")  # No part of an order.
# One seed in so many has all parts in one order; a deployment; faults after the end of the day.
WHOLE_OF, DEPLOYED_OF, LATE_OF = 8, 3, 2
# About how many remote calls there are in each part, at which faults are drawn, and after the end.
CALLS, LATE_CALLS = 120, 100
CALLS_OF = {"audit": 60, "flow": 90, "look": 10, "mail": 110, "pack": 50, "pick": 50, "revenue": 30}
CALLS_OF |= {"ship": 60, "stream": 120}

PAUSES_S = (0.0, 0.0, 1.0, 4.0, 12.0)
# One order in so many finds a service in a mood, or in two, one after the other.
MOODY_OF, MOST_MOODS = 3, 2
MAIL_MOODS = (*smtp.NOW_NOT, *smtp.NEVER, smtp.LOST_BEFORE, smtp.LOST_AFTER)
MAIL_MOODS += (f"{smtp.SLOW}:3", f"{smtp.SLOW}:8")
PAYMENT_MOODS = (*payments.NOW_NOT, *(f"{status}:40" for status in payments.NOW_NOT))
PAYMENT_MOODS += (payments.RESET_BEFORE, payments.TIMEOUT_BEFORE, payments.RESET_AFTER)
PAYMENT_MOODS += (payments.TIMEOUT_AFTER, payments.CUT, *payments.NEVER)
PAYMENT_MOODS += (f"{payments.SLOW}:3", f"{payments.SLOW}:20")


class Request(NamedTuple):
    """A request of a visitor: its path, its body, and how long it is thought about before."""

    path: str
    body: dict[str, Any]
    after_s: float = 0.0


class Deployment(NamedTuple):
    """A process gets a version of the code, some seconds after the beginning."""

    after_s: float
    process: int
    version: int


@dataclass(frozen=True)
class Plan:
    """A schedule, but for the order of its turns.

    Attributes:
        requests: Of each visitor.
        looks: Of one who only looks.
        audited_after_s: When the audit begins, if it is a part.
        rebuilt_after_s: When somebody rebuilds the view, if a deployment changes it.
        moods: Of the mail relay and of the payment service.
        is_late: Whether faults may also strike at the end of the day, and in a sweep.
        threads: Of each process. They meet in one process, unless a deployment takes all.
    """

    parts: Sequence[str]
    requests: Sequence[Sequence[Request]]
    looks: Sequence[Request]
    audited_after_s: float
    rebuilt_after_s: float
    deployments: Sequence[Deployment]
    moods: Moods
    is_late: bool
    threads: int
    faults: Sequence[Fault]

    @property
    def serving(self) -> int:
        """How many of the processes serve requests."""
        return 1 if self.threads > 1 and not self.deployments else PROCESSES


def plan_of(seed: int, parts: Sequence[str] = ()) -> Plan:
    """Return the plan that a seed draws.

    Args:
        parts: In the place of those that it draws.
    """
    chance = random.Random(f"{seed} plan")
    drawn_parts = sorted(chance.sample(PARTS, chance.randrange(2, 5)))
    parts = parts or (PARTS if chance.randrange(WHOLE_OF) == 0 else drawn_parts)
    is_late = chance.randrange(LATE_OF) == 0
    calls = CALLS + sum(CALLS_OF[part] for part in parts) + is_late * LATE_CALLS
    followed = [part for part in parts if part not in APART]
    is_crowd = seed % CROWDED_OF == CROWDED
    threads = random.Random(f"{seed} threads").choice(THREADS) if is_crowd else 1
    visitors = range(CROWD if is_crowd else VISITORS)
    return Plan(
        parts,
        [_requests(chance, visitor, followed, is_crowd=is_crowd) for visitor in visitors],
        [Request(f"{API}/looks", {}, chance.choice(PAUSES_S)) for _ in range(LOOKS)],
        chance.uniform(0, 30),
        chance.uniform(0, 40),
        _deployments(chance) if chance.randrange(DEPLOYED_OF) == 0 else [],
        Moods(
            _moods(random.Random(f"{seed} mail"), MAIL_MOODS),
            _moods(random.Random(f"{seed} payments"), PAYMENT_MOODS),
        ),
        is_late,
        threads,
        drawn(random.Random(f"{seed} faults"), calls, MOST_FAULTS),
    )


def _requests(
    chance: random.Random, visitor: int, parts: Sequence[str], *, is_crowd: bool
) -> list[Request]:
    requests: list[Request] = []
    orders = ORDERS_IN_CROWD if is_crowd else chance.randrange(1, MOST_ORDERS + 1)
    for number in range(orders):
        order = {"order": f"v{visitor}n{number}", "customer": chance.choice(CUSTOMERS)}
        at_ms = int(1000 * (BEGIN_S + chance.uniform(0, 30)))
        placed = {"cents": chance.randrange(1, 500), "batch": DAY, "parts": parts, "at_ms": at_ms}
        after_s = 0.0 if is_crowd else chance.choice(PAUSES_S)
        requests.append(Request(f"{API}/orders", {**order, **placed}, after_s))
        if chance.random() < 0.4:
            moved = {**order, "customer": chance.choice(CUSTOMERS)}
            requests.append(Request(f"{API}/moves", moved))
    return requests


def _deployments(chance: random.Random) -> list[Deployment]:
    """Draw a deployment, process by process; one of them may go back for a while."""
    at_s, deployments = chance.uniform(0, 10), list[Deployment]()
    for process in chance.sample(range(PROCESSES), PROCESSES):
        deployments.append(Deployment(at_s, process, 2))
        at_s += chance.uniform(0, 3)
    if chance.random() < 0.3:
        process = deployments[0].process
        deployments += [Deployment(at_s + 3, process, 1), Deployment(at_s + 8, process, 2)]
    return deployments


def _moods(chance: random.Random, moods: Sequence[str]) -> MoodsOfOrders:
    return {
        f"v{visitor}n{number}": chance.choices(moods, k=chance.randrange(1, MOST_MOODS + 1))
        for visitor in range(CROWD)
        for number in range(MOST_ORDERS)
        if chance.randrange(MOODY_OF) == 0
    }
