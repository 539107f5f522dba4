"""Something to walk over, and what becomes of it: shared by the tests of continuations."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from google.cloud import ndb

from rollforward import continuations
from rollforward.continuations import ItemError, Job
from rollforward.continuations.sources import EntitySource
from rollforward.runtime import Clients
from tests.infra.world import World


class Item(ndb.Model):
    """Something to work on."""

    value = ndb.IntegerProperty(indexed=False)


class Ledger(ndb.Model):
    """How often an item was applied in a run: 1, if all is well."""

    count = ndb.IntegerProperty(indexed=False, default=0)


@dataclass(frozen=True)
class Walk:
    """Arguments of the jobs below."""

    run_id: str
    group: str = "g"


def items_of(args: Walk) -> EntitySource:
    return EntitySource(Item, key_prefix=f"{args.group}:")


def count_items(clients: Clients, args: Walk, items: list[Item]) -> list[ItemError | None]:
    keys = [ndb.Key(Ledger, f"{args.run_id}/{item.key.id()}") for item in items]
    rows = [row or Ledger(key=key) for key, row in zip(keys, ndb.get_multi(keys), strict=True)]
    for row in rows:
        row.count += 1
    ndb.put_multi(rows)
    return [None] * len(items)


APPLY = Job("apply", "fan-out", Walk, items_of, apply=count_items, page_size=2)


def put_items(world: World, count: int, group: str = "g") -> list[str]:
    """Store items under names that spread as hashes do."""
    with world.context():
        return put_items_here(count, group)


def put_items_here(count: int, group: str = "g") -> list[str]:
    """Do the same in the context that is open."""
    names = [f"{group}:{(i * 2654435761) % 2**32:08x}" for i in range(count)]
    ndb.put_multi([Item(id=name, value=i) for i, name in enumerate(names)])
    return names


def ledger(world: World, run_id: str) -> Counter[str]:
    """Return how often each item was applied."""
    with world.context():
        return ledger_here(run_id)


def ledger_here(run_id: str) -> Counter[str]:
    """Do the same in the context that is open."""
    lower, upper = ndb.Key(Ledger, f"{run_id}/"), ndb.Key(Ledger, f"{run_id}0")
    rows = Ledger.query(Ledger._key > lower, Ledger._key < upper).fetch()
    return Counter({row.key.id().removeprefix(f"{run_id}/"): row.count for row in rows})


def deliver_job(outside: Counter[str]) -> Job[Walk, Item]:
    """Return a job that acts on the outside world, by a remote call of its own."""

    @contextlib.contextmanager
    def open_line(clients: Clients, args: Walk) -> Iterator[Callable[[Item], None]]:
        plan = clients.cache.plan  # type: ignore[attr-defined]

        def act(item: Item) -> None:
            def effect() -> None:
                outside[item.key.id()] += 1

            plan.around("act", effect, lambda code: TimeoutError("no answer"))

        yield act

    return Job("deliver", "fan-out", Walk, items_of, side_effect=open_line, page_size=2)


def run_to_end(world: World, job: Job[Walk, Item], run_id: str, **kwargs: int) -> None:
    """Start a run and deliver all its tasks."""
    with world.context():
        continuations.start(world.clients, job, Walk(run_id), run_id=run_id, **kwargs)
    world.settle()
