"""Batches that are run again, each beside one that looks alike: it is left alone."""

from __future__ import annotations

import pytest

from rollforward.batches.adding import populate
from rollforward.batches.completion import End, end_members
from rollforward.batches.entities import pages_within
from tests.infra.world import World
from tests.rollforward.batches.harness import (
    BEST,
    NOTES,
    RAN,
    deliver_all,
    notes,
    outcomes,
    told,
)


def test_a_late_end_of_a_cancelled_generation_counts_no_more(world: World) -> None:
    """F6: a worker that began before the cancelling ends when the batch runs again."""
    with world.context():
        NOTES.populate(world.clients, "b", notes("a"), seal=True)
        BEST.populate(world.clients, "b", notes("a"), seal=True)
        NOTES.cancel(world.clients, "b")
        assert NOTES.run_again(world.clients, "b") == 1
        [page] = pages_within("notes:b").fetch(keys_only=True)
        late = End(page.id(), 0, 1, is_done=False, error="late")
        end_members.insert(world.clients, "notes:b", late)
    world.clock.sleep(1)
    deliver_all(world, "fork-join")

    with world.context():
        assert (NOTES.progress("b").failed, NOTES.progress("b").waiting) == (0, 1)
        assert BEST.progress("b").waiting == 1


def test_a_late_delivery_of_a_cancelled_generation_does_not_run(world: World) -> None:
    """F6: not even while its process believes that the batch runs, because the next one does."""
    with world.context():
        NOTES.populate(world.clients, "b", notes("a", "b"), seal=True)
    deliver_all(world, "default")
    late = [task.name for task in world.live_tasks("fan-out")]
    with world.context():
        NOTES.cancel(world.clients, "b")
        assert NOTES.run_again(world.clients, "b") == 2
    deliver_all(world, "default")
    created = [task.name for task in world.live_tasks("fan-out") if task.name not in late]
    for name in (created[0], *late):
        assert world.deliver(name) == 204
    assert RAN.total() == 1

    assert world.deliver(created[1]) == 204
    assert RAN == {"b/a": 1, "b/b": 1}


def test_a_member_that_runs_again_is_no_failure_meanwhile(world: World) -> None:
    """F6: it waits; when it fails once more it is one again, with its error."""
    with world.context():
        NOTES.populate(world.clients, "b", notes("a", "bad1", "bad2"), seal=True)
    seen = []
    for generation in (1, 2):
        world.settle()
        with world.context():
            failed = [member.error for member in NOTES.failures("b")]
            seen.append((outcomes(NOTES, "b"), failed))
            if generation == 1:
                NOTES.run_again(world.clients, "b")
                meanwhile = (outcomes(NOTES, "b"), list(NOTES.failures("b")))

    rejected = [f"Reject: {label} is rejected" for label in ("bad1", "bad2")]
    assert seen == [(["done", "failed", "failed"], rejected)] * 2
    assert meanwhile == (["done", "waiting", "waiting"], [])


def test_each_generation_has_a_walk_of_its_own(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F3: over all pages, and without the sweep."""
    monkeypatch.setattr(populate, "MAX_PAGE_MEMBERS", 1)
    with world.context():
        NOTES.populate(world.clients, "b", notes("bad1", "bad2"), seal=True)
        BEST.populate(world.clients, "b", notes("a"), seal=True)
    world.settle()
    for _ in range(2):
        with world.context():
            assert NOTES.run_again(world.clients, "b") == 2
        world.settle()

    assert RAN == {"b/bad1": 3, "b/bad2": 3, "b/a": 1}
    with world.context():
        assert len(told(NOTES, "b")) == 3
        assert len(told(BEST, "b")) == 1
