"""A flow whose code is the test's, and changes as a new version does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from google.cloud import ndb

from rollforward.datastore.transactions import transact
from rollforward.flows import RetryPolicy, Steps, flow
from rollforward.flows.reading import FlowState
from rollforward.flows.wakes import FlowArgs
from rollforward.tasks.errors import Reject
from tests.infra.world import World
from tests.rollforward.flows.shop import mail

SWEEP = "/cron/flows/sweep"
DAY_S = 24 * 3600.0
ID = "f1"
RUN_ID = f"test-probe|{ID}"


class ProbeCount(ndb.Model):
    """How often something was done in Datastore."""

    count = ndb.IntegerProperty(indexed=False, default=0)


@dataclass
class Code:
    """The code of the flow, and what it did outside: how often, and in which order."""

    run: Callable[[Steps], Any] = lambda step: None
    done: list[str] = field(default_factory=list)
    fails: Counter[str] = field(default_factory=Counter)  # How often each is still to fail.

    def act(self, name: str) -> str:
        """Do something outside; return its name."""
        self.done.append(name)
        if self.fails[name] > 0:
            self.fails[name] -= 1
            raise ValueError(f"{name} failed")
        return name

    def act_in_store(self, name: str) -> int:
        """Count something in Datastore; return the count."""
        row = ProbeCount.get_by_id(name) or ProbeCount(id=name)
        row.count += 1
        row.put()
        self.act(name)
        return int(row.count)


CODE = Code()


@flow("test-probe", members=[mail], retries=RetryPolicy(attempts=3))
def probe(step: Steps) -> Any:
    """Run the code of the test."""
    return CODE.run(step)


def counted(name: str) -> int:
    """Return how often something was done in Datastore."""
    row = ProbeCount.get_by_id(name)
    return row.count if row is not None else 0


def settle(world: World, days: float = 0) -> FlowState:
    """Let some time pass, and then a sweep, and what is due; return the flow's state."""
    if days:
        world.clock.sleep(days * DAY_S)
        world.sweep(SWEEP)
    # A task that waits for another version pauses for a minute at most, and is tried for an hour.
    world.settle(patience_s=50)
    return probe.state(ID)


def run(world: World, code: Callable[[Steps], Any]) -> FlowState:
    """Start a flow of some code, and let it go as far as it goes within a minute."""
    CODE.run = code
    assert probe.start(world.clients, ID)
    return settle(world)


def deliver_again(world: World) -> FlowState:
    """Deliver the flow once more, for nothing."""
    probe.task.enqueue(world.clients, FlowArgs(f"test-probe|{ID}"))
    return settle(world)


def reject(reason: str) -> None:
    raise Reject(reason)


def in_transaction(*calls: Callable[[], Any]) -> list[Any]:
    return transact(lambda: [call() for call in calls])
