"""One count, kept in four ways: the page shows them side by side.

one-row    exact, in one shard: what a counter is before anybody thinks about it
sharded    exact, in as many shards as conflicts ask for
gathered   by a fork-join queue: one write per batch
in-memory  in the processes, whose sums the queue gathers

Lost on failure: nothing that was accepted; in memory, what a killed process had not stored.
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
# Clicks of forms are counted beside the others, by the same commit: what was accepted is known.
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
    """What each way has counted."""

    by_way: dict[str, int]
    forms: int


def click(clients: Clients, amount: int, form: str) -> Counted:
    """Add to the sharded counter, once for each form."""
    return SHARDED.increment_many(
        clients, {KEY: amount, FORMS: amount}, idempotency_key=f"form.{form}"
    )


def sums(clients: Clients) -> Sums:
    """Return what each way has counted, now."""
    by_way = {way: counter.total(clients, KEY).value for way, counter in WAYS.items()}
    return Sums(by_way, SHARDED.total(clients, FORMS).value)


def shards(clients: Clients) -> ShardStatus:
    """Return the shards of the counter on the page."""
    return SHARDED.status(clients, KEY)


def resize(clients: Clients, number: int | None) -> None:
    """Give the counter so many shards; None: as many as conflicts ask for."""
    SHARDED.resize(clients, KEY, number)


# The limit of production, simulated

LIMITED_KINDS = ("CounterShard", "CounterTotal")


def is_row_of(key: Any, declarations: Collection[str]) -> bool:
    """Return whether a key is a row of some counters, by their declarations' names."""
    last = key.path[-1]
    return last.kind in LIMITED_KINDS and last.name.split("|")[1] in declarations


def limit(clients: Clients) -> EntityWriteLimit | None:
    """Return the simulation of the limit; None: this app runs where the limit is real."""
    found = clients.services.get(EntityWriteLimit)
    return found if isinstance(found, EntityWriteLimit) else None


def apply_switch(clients: Clients) -> bool | None:
    """Have this process limit its writes as the switch says; return that, None: there is none."""
    found = limit(clients)
    if found is None:
        return None
    row = switch_key().get()
    found.is_on = row is None or row.is_on
    return found.is_on


def switch_limit(clients: Clients, *, to: bool) -> None:
    """Switch the simulation on or off, for all processes."""
    ClickSwitch(key=switch_key(), is_on=to).put()
    apply_switch(clients)
