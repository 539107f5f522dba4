"""Depth of the outbox, and the age of its rows."""

from __future__ import annotations

import pytest
from google.cloud import ndb

from rollforward import outbox
from rollforward.datastore.partitions import PARTITIONS
from rollforward.datastore.transactions import transact
from rollforward.outbox.entities import OutboxTask, outbox_key, outbox_rows
from rollforward.outbox.sweep import sweep
from tests.infra.world import World
from tests.rollforward.outbox.rows import DEPTH, enqueue_unacked, strand


def test_the_depth_tells_how_much_waits_and_for_how_long(world: World) -> None:
    """Rows, the oldest one's age, and the rate of the last full minute."""
    world.flush()  # The rate is counted for the app as a whole.
    with world.context():
        idle = outbox.depth(world.clients)
    strand(world, 3)
    world.clock.sleep(90)
    strand(world, 2)

    with world.context():
        busy = outbox.depth(world.clients)
        sweep(world.clients)
        world.clock.sleep(60)
        depth_after = outbox.depth(world.clients)

    assert idle == outbox.Depth(0, False, oldest_s=0, oldest_unacked_s=0, relayed_per_s=0)
    assert (busy.waiting, busy.is_truncated, busy.oldest_s) == (5, False, pytest.approx(90, abs=1))
    assert (depth_after.waiting, depth_after.oldest_s) == (2, pytest.approx(60, abs=1))
    assert depth_after.relayed_per_s == (3 / 60 if world.services.memcached else 0)


def test_unacked_rows_have_an_age_of_their_own(world: World) -> None:
    """A row that waits for its task is no sign that the relay is stuck."""
    with world.context():
        transact(lambda: enqueue_unacked(world.clients))
    world.clock.sleep(500)
    strand(world, 1)
    world.clock.sleep(40)

    with world.context():
        depth = outbox.depth(world.clients)

    assert depth.waiting == 2
    assert depth.oldest_s == pytest.approx(40, abs=1)
    assert depth.oldest_unacked_s == pytest.approx(540, abs=1)


def test_a_partition_has_its_own_rows_and_the_outer_ones_what_lies_beyond(world: World) -> None:
    """B1: each row is within reach of one walk, also one whose key was made by hand."""
    ids = [*(f"{partition}{'0' * 23}|x" for partition in PARTITIONS), " before", "~ behind"]
    with world.context():
        ndb.put_multi([OutboxTask(id=id_, path="/x", queue="q", body="{}") for id_ in ids])
        found = {
            partition: [key.id() for key in outbox_rows(partition).fetch(keys_only=True)]
            for partition in PARTITIONS
        }
        ndb.delete_multi([outbox_key(id_) for id_ in ids])

    assert {partition: [id_[0] for id_ in rows] for partition, rows in found.items()} == {
        partition: [*(" " if partition == "0" else ""), partition, *("~" * (partition == "f"))]
        for partition in PARTITIONS
    }


def test_the_depth_of_very_many_is_not_counted_to_the_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frequent reader must not read a whole backlog."""
    monkeypatch.setattr(DEPTH, "MAX_COUNTED", 5)
    strand(world, 7)

    with world.context():
        depth = outbox.depth(world.clients)

    assert (depth.waiting, depth.is_truncated) == (5, True)
