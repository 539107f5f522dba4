"""A queue for tests: tallies, which know every item that was ever folded into them."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from google.cloud import ndb

from rollforward.datastore.versions import read_versions
from rollforward.fork_join import Batch, ForkJoin, fork_join
from rollforward.fork_join.entities import EpochId, PackId, WorkPack, key_hash_of, pack_key
from rollforward.runtime import Clients
from rollforward.tasks.dead_task_entities import open_dead_tasks
from tests.infra.neighbour_rows import elsewhere, untouched
from tests.infra.world import Services, World


class MarkTally(ndb.Model):
    """The folded items; an item that appears twice was folded twice."""

    labels = ndb.JsonProperty(default=[])
    batches = ndb.JsonProperty(default=[])


@dataclass(frozen=True)
class Mark:
    label: str


def tally(clients: Clients, batch: Batch, items: Sequence[Mark]) -> Sequence[str]:
    """Note each item; labels that begin with "bad" cannot be noted."""
    bad = [item.label for item in items if item.label.startswith("bad")]
    if bad:
        raise ValueError(f"no tally takes {bad[0]}")
    row = MarkTally.get_by_id(batch.key) or MarkTally(id=batch.key)
    count = len(row.labels)
    row.labels = [*row.labels, *(item.label for item in items)]
    row.batches = [*row.batches, len(items)]
    row.put()
    return [f"{item.label} is number {count + i}" for i, item in enumerate(items, 1)]


def tally_guarded(
    clients: Clients, batch: Batch, items: Sequence[Mark]
) -> list[tuple[ndb.Model, int | None]]:
    """Return what `tally` would write; it has no results."""
    [stored] = read_versions(clients.datastore, [ndb.Key(MarkTally, batch.key)])
    row, version = stored or (MarkTally(id=batch.key), None)
    if any(item.label.startswith("bad") for item in items):
        raise ValueError("no tally takes one of these")
    row.labels = [*row.labels, *(item.label for item in items)]
    row.batches = [*row.batches, len(items)]
    return [(row, version)]


TALLIES = fork_join("tallies", queue="fork-join", period_s=1.0, max_batch_size=20)(tally)
AT_ONCE = fork_join("tallies-at-once", queue="fork-join", period_s=0)(tally)
SHARDED = fork_join("tallies-sharded", queue="fork-join", period_s=1.0, shards=3)(tally)
GUARDED = fork_join(
    "tallies-guarded", queue="fork-join", period_s=1.0, max_batch_size=20, guarded=tally_guarded
)(tally)
NEIGHBOUR = "tallies-2"
QUEUES: list[ForkJoin[Mark]] = [TALLIES, AT_ONCE, SHARDED, GUARDED]


def tally_world(services: Services) -> World:
    return World(services, fork_joins=QUEUES)


def tallied(key: str) -> Counter[str]:
    """Return how often each item was folded."""
    row = MarkTally.get_by_id(key)
    return Counter(row.labels if row else [])


def batches(key: str) -> list[int]:
    row = MarkTally.get_by_id(key)
    return row.batches if row else []


@contextmanager
def neighbours(world: World) -> Iterator[None]:
    """Put neighbouring packs into the store; check in the end that they are unchanged.

    They are of a queue whose name begins like that of the tallies, and of another namespace.
    """
    opened = datetime.datetime(2030, 5, 1, 12)  # noqa: DTZ001
    epoch = EpochId("c0ffee012345", opened, key_hash_of(TALLIES.name, "t")).text
    with world.context():
        neighbour, tallied = (
            PackId(name, epoch, 1, 0, "c0ffee") for name in (NEIGHBOUR, TALLIES.name)
        )
        keys = [pack_key(pack.text) for pack in (neighbour, neighbour.parked)]
        keys += [elsewhere(pack_key(pack.text)) for pack in (tallied, tallied.parked)]
        rows = [WorkPack(key=key, batch_key="t", items='[{"label":"a"}]') for key in keys]
    with untouched(world, rows):
        yield


def packs() -> list[WorkPack]:
    """Return the pending packs, without parked ones."""
    return [pack for pack in all_packs() if not pack.key.id().startswith("parked:")]


def all_packs() -> list[WorkPack]:
    """Return the pending and the parked packs, without neighbours."""
    return [pack for pack in WorkPack.query() if f"{NEIGHBOUR}|" not in pack.key.id()]


def put(world: World, key: str, *labels: str, queue: Any = TALLIES, **options: Any) -> Any:
    with world.clients.context():
        return [queue.insert(world.clients, key, Mark(label), **options) for label in labels]


def tasks(world: World) -> Any:
    return world.live_tasks("fork-join")


def mended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the join accept bad items."""

    def join(clients: Any, batch: Any, items: Any) -> Any:
        return AT_ONCE.join(clients, batch, [Mark(i.label.replace("bad", "good")) for i in items])

    monkeypatch.setattr(TALLIES, "join", join)


def replay(world: World) -> None:
    """Replay the only dead task."""
    with world.context():
        (dead,) = open_dead_tasks().fetch()
        task = world.app.extensions["wiring"].registry.tasks["/tasks/dead/replay"]
        task.enqueue(world.clients, task.args(dead.key.id()))
