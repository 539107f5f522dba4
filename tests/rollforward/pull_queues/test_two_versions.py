"""Pull queues while two versions of the app serve side by side."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from google.cloud import ndb

from rollforward.pull_queues import PullQueue
from rollforward.pull_queues.entities import PullItem, items_of
from tests.infra.world import World
from tests.rollforward.pull_queues.harness import WORK, add, lease, payloads, waiting


def test_what_the_next_version_adds_to_an_item_is_not_erased(world: World) -> None:
    """P1: leased, renewed and released by this one, it keeps a property of the next one."""
    add(world, "a")
    [row] = items_of("work").fetch()
    with later_items():
        stored = row.key.get()
        stored.later = "kept"
        stored.put()

    leases = lease(world)
    leases = WORK.renew(world.clients, leases)
    WORK.release(world.clients, leases)

    with later_items():
        assert row.key.get().later == "kept"
    assert WORK.ack(world.clients, lease(world)) == []
    assert waiting() == 0


def test_versions_that_allow_different_deliveries_share_their_items(world: World) -> None:
    """P1: an item that one version has leased often is leased by the other, and acked once."""
    following = PullQueue("work", max_deliveries=9, partitions=4)
    add(world, "a", "b")
    for _ in range(3):
        lease(world, lease_s=1)
        world.clock.sleep(2)

    leases = following.lease(world.clients, limit=10)

    assert payloads(leases) == ["a", "b"]
    assert following.ack(world.clients, leases) == []
    assert lease(world) == []
    assert WORK.dead_letters() == []


@contextmanager
def later_items() -> Iterator[None]:
    """Let ndb know items as a later version does, which has more properties."""
    kind = PullItem._get_kind()
    type("LaterItem", (ndb.Expando,), {"_get_kind": classmethod(lambda cls: kind)})
    try:
        yield
    finally:
        ndb.Model._kind_map[kind] = PullItem
