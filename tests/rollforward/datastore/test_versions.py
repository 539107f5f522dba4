"""Commits in one round trip: what they refuse, and that a refused one writes nothing."""

from __future__ import annotations

import pytest
from google.api_core import exceptions as rpc_errors

from rollforward.datastore.transactions import OUTCOME_UNKNOWN
from rollforward.datastore.versions import CHANGED, insert_all, put_unchanged
from rollforward.testing.injection import REPLY_LOST
from tests.infra.world import World
from tests.rollforward.datastore.counters import Tally, break_call, counted

pytestmark = pytest.mark.fast


def _insert(watched_world: World, count: int = 1) -> tuple[Tally, int]:
    tally = Tally(id="t", count=count)
    [version] = insert_all(watched_world.clients.datastore, [tally])
    return tally, version


def test_an_owner_writes_again_and_again_in_one_round_trip_each(watched_world: World) -> None:
    """Each commit tells the version that the next one needs: no begin, no read."""
    tally, version = _insert(watched_world)
    for count in (2, 3, 4):
        tally.count = count
        version = put_unchanged(watched_world.clients.datastore, tally, version)

    assert watched_world.plan.calls == ["Commit"] * 4
    assert counted() == 4


def test_a_write_over_somebody_elses_is_refused(watched_world: World) -> None:
    """Compare-and-set: the entity was written since, so nothing is."""
    tally, version = _insert(watched_world)
    Tally(id="t", count=10).put()

    tally.count = 2
    with pytest.raises(CHANGED):
        put_unchanged(watched_world.clients.datastore, tally, version)

    assert counted() == 10


def test_a_write_of_what_was_deleted_is_refused(watched_world: World) -> None:
    """A deleted entity is not brought back to life."""
    tally, version = _insert(watched_world)
    tally.key.delete()

    with pytest.raises(CHANGED):
        put_unchanged(watched_world.clients.datastore, tally, version)

    assert Tally.get_by_id("t") is None


def test_a_write_whose_reply_was_lost_is_refused_when_it_is_repeated(watched_world: World) -> None:
    """The version of a commit is known only by its reply: repeating it cannot count twice."""
    tally, version = _insert(watched_world)
    tally.count = 2
    break_call(watched_world, "Commit", REPLY_LOST)
    with pytest.raises(OUTCOME_UNKNOWN):
        put_unchanged(watched_world.clients.datastore, tally, version)

    tally.count = 3
    with pytest.raises(CHANGED):
        put_unchanged(watched_world.clients.datastore, tally, version)

    assert counted() == 2


def test_all_or_none_is_inserted(watched_world: World) -> None:
    """One that exists refuses the others of the same commit."""
    _insert(watched_world)

    with pytest.raises(rpc_errors.AlreadyExists):
        insert_all(watched_world.clients.datastore, [Tally(id="new"), Tally(id="t", count=9)])

    assert Tally.get_by_id("new") is None
    assert counted() == 1
