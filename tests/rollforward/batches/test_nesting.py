"""Nested batches: a member that becomes a batch ends with it, at each level once."""

from __future__ import annotations

import pytest

from rollforward.batches import completion
from rollforward.batches.entities import BatchState
from rollforward.batches.errors import NestedError
from tests.infra.faults.explorer import IS_EXHAUSTIVE
from tests.infra.world import World
from tests.rollforward.batches.harness import (
    NOTES,
    RAN,
    TREES,
    Branch,
    branch,
    callbacks,
    deliver_all,
    deliver_next,
    mend,
    notes,
    rows_here,
    told,
)

WIDTH = 22 if IS_EXHAUSTIVE else 4


def grow(world: World, tree: Branch, count: int = 1) -> None:
    with world.context():
        TREES.populate(world.clients, "root", [(branch, tree)] * count, seal=True)
    world.deliver_due(50_000)
    world.settle()


@pytest.mark.timeout(1800 if IS_EXHAUSTIVE else 120)
def test_a_tree_completes_once_at_each_level(world: World) -> None:
    """F1, F2: batches in batches in a batch; `make soak` takes 10,648 leaves."""
    grow(world, Branch("t", WIDTH, levels=1), count=WIDTH)

    batches = 1 + WIDTH + WIDTH**2
    with world.context():
        states = rows_here(BatchState)
        assert told(TREES, "root")[0]["done"] == WIDTH
    assert [batch.done for batch in states] == [WIDTH] * batches
    assert all(batch.outcome == "succeeded" for batch in states)
    assert sum(batch.done for batch in states) == WIDTH + WIDTH**2 + WIDTH**3
    assert len(callbacks(world)) == batches
    assert set(callbacks(world).values()) == {1}


def test_three_levels_of_batches_roll_up(world: World) -> None:
    """F1, F6: what fails in a leaf fails its batch, and the member that this is, up to the root."""
    grow(world, Branch("t", 2, levels=1, bad=1))

    with world.context():
        [middle] = TREES.nested("root")
        below = TREES.nested(middle.batch_id)
        [failed] = TREES.failures("root")
        assert told(TREES, "root")[0]["failed"] == 1
    assert (middle.failed, middle.done) == (2, 0)
    assert [(batch.failed, batch.done) for batch in below] == [(1, 1)] * 2
    assert failed.error.startswith("failed: of 2 members 2 failed, 0 cancelled (trees:")
    assert set(callbacks(world).values()) == {1}


def test_running_the_root_again_runs_the_failed_leaves_again(world: World) -> None:
    """F1: and no leaf that is done; each level completes once more."""
    grow(world, Branch("t", 2, levels=1, bad=1))
    with world.context():
        mend()
        [middle] = TREES.nested("root")
        with pytest.raises(NestedError):
            TREES.run_again(world.clients, middle.batch_id)
        assert TREES.run_again(world.clients, "root") == 1
    world.settle()

    with world.context():
        assert [completion["outcome"] for completion in told(TREES, "root")] == [
            "failed",
            "succeeded",
        ]
        [middle] = TREES.nested("root")
        assert middle.done == 2
    leaves = {name.partition("/")[2]: times for name, times in RAN.items() if "leaf" in name}
    assert set(leaves.values()) == {1}
    assert set(callbacks(world).values()) == {1}


def test_cancelling_a_batch_cancels_what_is_nested_in_it(world: World) -> None:
    """F7: at once, and none of its members runs."""
    with world.context():
        TREES.populate(world.clients, "root", [(branch, Branch("t", 3))], seal=True)
    for queue in ("default", "fan-out"):
        deliver_next(world, queue)
    with world.context():
        [child] = TREES.nested("root")
        assert child.waiting == 3
        TREES.cancel(world.clients, "root")
    deliver_all(world, "default")
    world.settle()

    with world.context():
        [child] = TREES.nested("root")
        assert (child.outcome, child.cancelled) == ("cancelled", 3)
        assert told(TREES, "root")[0]["outcome"] == "cancelled"
    assert not [name for name in RAN if "leaf" in name]


def test_a_nested_batch_whose_end_was_lost_ends_its_member_when_that_runs_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F7: the work item was parked, say; the sweep has the member run once more."""
    with monkeypatch.context() as patch:
        patch.setattr(completion, "end_parent", lambda *args: None)
        grow(world, Branch("t", 2))
    with world.context():
        assert [nested.outcome for nested in TREES.nested("root")] == ["succeeded"]
        assert not told(TREES, "root")
    world.clock.sleep(completion.STALE_S + 1)
    world.sweep()
    world.settle()

    with world.context():
        assert [call["outcome"] for call in told(TREES, "root")] == ["succeeded"]


def test_members_of_both_kinds_share_a_batch(world: World) -> None:
    with world.context():
        work = [*notes("a"), (branch, Branch("t", 2))]
        NOTES.populate(world.clients, "b", work, seal=True)
    world.settle()

    with world.context():
        assert told(NOTES, "b")[0]["done"] == 2
        [child] = NOTES.nested("b")
        results = [member.result for member in NOTES.results("b")]
    assert child.done == 2
    assert results[1]["done"] == 2
