"""One count, kept in four ways: the page shows them side by side.

one-row    exact, in one shard: the naive counter
sharded    exact, in as many shards as conflicts require
gathered   by a fork-join queue: one write per batch
in-memory  in the processes, whose sums the queue gathers

Lost on failure: no accepted click; in memory, the clicks that a killed process had not stored.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from models.counters import ClickSwitch, switch_key
from rollforward.counters import Counted, Counter, ShardStatus
from rollforward.runtime import Clients
from rollforward.runtime.channel.write_limit import EntityWriteLimit

KEY = "clicks"
# Clicks of forms are also counted apart, in the same commit, so the accepted ones are known.
FORMS = "clicks of forms"
MAX_SHARDS_BY_HAND = 64
MAX_READINGS = 3

ONE_ROW = Counter("clicks-one-row", queue="default", max_shards=1)
SHARDED = Counter("clicks", queue="default", max_shards=128, calm_s=20)
GATHERED = Counter("clicks-gathered", "gathered", queue="fork-join")
IN_MEMORY = Counter("clicks-in-memory", "in_memory", queue="fork-join")

WAYS: dict[str, Counter] = {
    "one-row": ONE_ROW,
    "sharded": SHARDED,
    "gathered": GATHERED,
    "in-memory": IN_MEMORY,
}
MAX_CLICK = 1_000_000


@dataclass(frozen=True)
class Sums:
    """The totals of all ways, and of the forms.

    Attributes:
        pending: Gathered clicks that are accepted and not folded yet, or parked.
        is_stable: Nothing changed between the readings, so the numbers fit each other.
    """

    by_way: dict[str, int]
    forms: int
    pending: int
    is_stable: bool


def click(clients: Clients, amount: int, form: str) -> Counted:
    """Add to the sharded counter, once for each form."""
    return SHARDED.increment_many(
        clients, {KEY: amount, FORMS: amount}, idempotency_key=f"form.{form}"
    )


def sums(clients: Clients) -> Sums:
    """Return the current total of each way, and the pending clicks; read again if some moved."""
    for _ in range(MAX_READINGS):
        earlier = _moving(clients)
        by_way = {way: counter.total(clients, KEY).value for way, counter in WAYS.items()}
        pending = _pending()
        if is_stable := _moving(clients) == earlier:
            break
    return Sums(by_way, earlier[0], pending, is_stable)


def _moving(clients: Clients) -> tuple[int, int]:
    """Return the numbers that are read beside another one that changes with them."""
    return SHARDED.total(clients, FORMS).value, GATHERED.total(clients, KEY).value


def _pending() -> int:
    queue = GATHERED.fork_join
    assert queue is not None
    depth = queue.depth(KEY)
    return depth.waiting + len(depth.parked)


def shards(clients: Clients) -> ShardStatus:
    """Return the shards of the counter on the page."""
    return SHARDED.status(clients, KEY)


def resize(clients: Clients, number: int | None) -> None:
    """Give the counter this number of shards; None: as many as conflicts require."""
    SHARDED.resize(clients, KEY, number)


# The limit of production, simulated

LIMITED_KINDS = ("CounterShard", "CounterTotal")


def is_row_of(key: Any, declarations: Collection[str]) -> bool:
    """Return whether a key is a row of some counters, by their declarations' names."""
    entity = key.path[-1]
    return entity.kind in LIMITED_KINDS and entity.name.split("|")[1] in declarations


def limit(clients: Clients) -> EntityWriteLimit | None:
    """Return the simulation of the limit; None: in production, which has the real one."""
    service = clients.services.get(EntityWriteLimit)
    return service if isinstance(service, EntityWriteLimit) else None


def apply_switch(clients: Clients) -> bool | None:
    """Apply the stored switch to this process; return its value, None: no simulation."""
    simulation = limit(clients)
    if simulation is None:
        return None
    row = switch_key().get()
    simulation.is_on = row is None or row.is_on
    return simulation.is_on


def switch_limit(clients: Clients, *, to: bool) -> None:
    """Switch the simulation on or off, for all processes."""
    ClickSwitch(key=switch_key(), is_on=to).put()
    apply_switch(clients)
