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
# A total that is drawn at the head of the page may be so old.
TOTAL_AGE_S = 1.0

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
    """The totals of all ways, and of the forms."""

    by_way: dict[str, int]
    forms: int


def click(clients: Clients, amount: int, form: str) -> Counted:
    """Add to the sharded counter, once for each form."""
    return SHARDED.increment_many(
        clients, {KEY: amount, FORMS: amount}, idempotency_key=f"form.{form}"
    )


def sums(clients: Clients) -> Sums:
    """Return the current total of each way."""
    by_way = {way: counter.total(clients, KEY).value for way, counter in WAYS.items()}
    return Sums(by_way, SHARDED.total(clients, FORMS).value)


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
