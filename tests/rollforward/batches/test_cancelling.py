"""Cancelling trees of batches: all that runs below, of that generation, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from google.api_core.exceptions import ServiceUnavailable
from google.cloud import ndb

from rollforward.batches import ClosedError, completion, members
from rollforward.batches.adding.creation import RunMember
from rollforward.batches.completion import STALE_S, CancelNested, cancel_nested
from rollforward.batches.declaration import MemberRef
from rollforward.batches.entities import REMOVED, RUNNING, BatchState, pages_within
from rollforward.batches.errors import NestedError
from rollforward.batches.members import Member
from tests.infra.world import World
from tests.rollforward.batches.harness import (
    NOTES,
    RAN,
    TREES,
    Branch,
    branch,
    deliver_all,
    deliver_next,
    notes,
    told,
)


def grow(world: World, count: int) -> Sequence[ndb.Key]:
    """Make a batch whose members are batches that run; return their keys."""
    with world.context():
        TREES.populate(world.clients, "root", [(branch, Branch("t", 2))] * count, seal=True)
    deliver_next(world, "default")
    for _ in range(count):
        deliver_next(world, "fan-out")
    return children(world)


def children(world: World) -> Sequence[ndb.Key]:
    with world.context():
        query = BatchState.query(BatchState.parent == "trees:root").order(BatchState._key)
        return query.fetch(keys_only=True)  # type: ignore[no-any-return]


def states(world: World) -> list[str | None]:
    """Return what came of each nested batch."""
    keys = children(world)
    with world.context():
        return [state.outcome for state in ndb.get_multi(keys)]


def test_a_nested_batch_that_is_removed_is_passed_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F7: those behind it are cancelled all the same, by one walk however often it is delivered."""
    monkeypatch.setattr(completion, "MAX_CANCELLED", 2)
    removed_key, *_ = grow(world, 4)
    with world.context():
        removed = removed_key.get()
        removed.state = REMOVED
        removed.put()
        TREES.cancel(world.clients, "root")
    with world.context():
        for _ in range(3):
            cancel_nested.work(world.clients, CancelNested("trees:root", 1))
    urls = [task.http_request.url for task in world.live_tasks("default")]
    # The first page's, the next page's, and that of the child which was cancelled.
    assert sum("cancel-nested" in url for url in urls) == 3
    deliver_all(world, "default")

    assert states(world) == [None, "cancelled", "cancelled", "cancelled"]


def test_a_cancelling_reaches_all_pages_of_what_is_nested(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F7: each page has a walk of its own, the third one, too."""
    monkeypatch.setattr(completion, "MAX_CANCELLED", 2)
    grow(world, 7)
    with world.context():
        TREES.cancel(world.clients, "root")
    deliver_all(world, "default")

    assert states(world) == ["cancelled"] * 7


def test_what_was_cancelled_before_it_was_sealed_takes_no_more_when_it_is_run_again(
    world: World,
) -> None:
    """F1: its members of then are all that it waits for, so that it completes."""
    with world.context():
        NOTES.populate(world.clients, "b", notes("a", "c"))
        NOTES.cancel(world.clients, "b")
    world.settle()
    with world.context():
        assert NOTES.run_again(world.clients, "b") == 2
        with pytest.raises(ClosedError):
            NOTES.populate(world.clients, "b", notes("d"), idempotency_key="d")
    world.settle()

    with world.context():
        assert [call["outcome"] for call in told(NOTES, "b")] == ["cancelled", "succeeded"]
    assert sorted(RAN) == ["b/a", "b/c"]


def test_a_late_cancelling_leaves_the_next_generation_alone(world: World) -> None:
    """F7: what was run again meanwhile goes on."""
    grow(world, 2)
    with world.context():
        TREES.cancel(world.clients, "root")
    world.settle()
    assert states(world) == ["cancelled"] * 2
    with world.context():
        TREES.run_again(world.clients, "root")
    while states(world) != [None, None]:
        is_walk = world.engine.due(world.engine.place.queue_name("default"))
        deliver_next(world, "default" if is_walk else "fan-out")
    with world.context():
        cancel_nested.work(world.clients, CancelNested("trees:root", 1))

    assert states(world) == [None, None]
    world.settle()
    assert states(world) == ["succeeded"] * 2


def test_a_late_cancelling_leaves_alone_what_the_next_generation_has_taken_over(
    world: World,
) -> None:
    """F7: a nested batch that has run all the while is of the last member that came to it."""
    grow(world, 2)
    with world.context():
        TREES.cancel(world.clients, "root")
        TREES.run_again(world.clients, "root")
        [page] = pages_within("trees:root").fetch()
        for position in range(2):
            ref = MemberRef("trees:root", page.key.id(), position, 2)
            again = Member(world.clients, TREES.declaration, ref)
            again.nest(TREES, notes("leaft.0", "leaft.1"))
        cancel_nested.work(world.clients, CancelNested("trees:root", 1))

    assert states(world) == [None] * 2
    world.settle()
    assert states(world) == ["succeeded"] * 2


def test_a_cancelling_ends_what_an_earlier_one_has_not_reached(world: World) -> None:
    """F7: a batch that was nested in an earlier generation still runs; its task was purged, say."""
    grow(world, 2)
    with world.context():
        for _ in range(2):
            TREES.cancel(world.clients, "root")
            TREES.run_again(world.clients, "root")
        TREES.cancel(world.clients, "root")
    assert states(world) == [None] * 2
    with world.context():
        cancel_nested.work(world.clients, CancelNested("trees:root", 3))

    assert states(world) == ["cancelled"] * 2


@pytest.mark.parametrize("generation", [1, 2])
def test_a_member_that_was_cancelled_nests_no_more(world: World, generation: int) -> None:
    """F7: one that is at work meanwhile is refused, so nothing runs below a batch that is over."""
    key = "trees:root"
    with world.context():
        TREES.populate(world.clients, "root", [(branch, Branch("t", 2))], seal=True)
        [page] = pages_within(key).fetch()
        if generation == 2:
            ref = MemberRef(key, page.key.id(), 0, 1)
            Member(world.clients, TREES.declaration, ref).nest(TREES, notes("a"))
            TREES.cancel(world.clients, "root")
            for nested in TREES.nested("root"):
                TREES.cancel(world.clients, nested.batch_id)
            TREES.run_again(world.clients, "root")
        TREES.cancel(world.clients, "root")
        ref = MemberRef(key, page.key.id(), 0, generation)
        late = Member(world.clients, TREES.declaration, ref)
        with pytest.raises(ClosedError):
            late.nest(TREES, notes("a"))
    world.settle()

    assert states(world) == ["cancelled"] * (generation - 1)
    assert not RAN


def test_a_member_that_nests_and_then_fails_is_over_with_its_batch(world: World) -> None:
    """F7: it fails with its own error, and nothing below it runs."""
    with world.context():
        tree = Branch("t", 2, is_rejected=True)
        TREES.populate(world.clients, "root", [(branch, tree)], seal=True)
    world.settle()

    assert states(world) == ["cancelled"]
    with world.context():
        [failed] = TREES.failures("root")
    assert failed.error.endswith("t is rejected")
    assert set(RAN) == {"root/t"}


def test_a_member_that_nests_while_it_fails_is_over_with_its_batch(world: World) -> None:
    """F7: two of its deliveries overlap, and the root completes before the nested batch runs."""
    with world.context():
        TREES.populate(world.clients, "root", [(branch, Branch("t", 2))], seal=True)
        [page] = pages_within("trees:root").fetch()
        args = RunMember("trees:root", page.key.id(), 0, 1, "{}")
        members.fail(TREES.declaration, world.clients, args, "ValueError: gave up")
        ref = MemberRef("trees:root", page.key.id(), 0, 1)
        child = Member(world.clients, TREES.declaration, ref).nest(TREES, notes("a", "b"))
    world.clock.sleep(1)
    deliver_all(world, "fork-join")
    with world.context():
        assert TREES.progress("root").outcome == "failed"
        assert not TREES.progress(child).is_complete
    deliver_all(world, "default")

    assert states(world) == ["cancelled"]
    world.settle()
    assert not RAN


def test_a_failure_waits_until_what_is_nested_is_cancelled(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F7: if that fails at first, the end of the member is not counted either."""
    [child] = grow(world, 1)

    def is_lost(*args: object) -> None:
        raise ServiceUnavailable("made by the test")

    with world.context():
        [page] = pages_within("trees:root").fetch()
        args = RunMember("trees:root", page.key.id(), 0, 1, "{}")
        with monkeypatch.context() as patch:
            patch.setattr("rollforward.batches.members.cancel_child", is_lost)
            with pytest.raises(ServiceUnavailable):
                members.fail(TREES.declaration, world.clients, args, "ValueError: gave up")
        world.clock.sleep(1)
        deliver_all(world, "fork-join")
        assert not TREES.progress("root").is_complete
        assert child.get().state == RUNNING
        members.fail(TREES.declaration, world.clients, args, "ValueError: gave up")
    world.clock.sleep(1)
    deliver_all(world, "fork-join")

    assert states(world) == ["cancelled"]
    with world.context():
        assert TREES.progress("root").outcome == "failed"


def test_a_member_nests_in_one_declaration_only(world: World) -> None:
    """F2: it ends with the batch that it has become, so a second one would be left behind."""
    with world.context():
        TREES.populate(world.clients, "root", [(branch, Branch("t", 2))], seal=True)
        [page] = pages_within("trees:root").fetch()
        ref = MemberRef("trees:root", page.key.id(), 0, 1)
        member = Member(world.clients, TREES.declaration, ref)
        child = member.nest(TREES, notes("a"))
        with pytest.raises(NestedError, match="cannot become notes:"):
            member.nest(NOTES, notes("b"))
        assert member.nest(TREES, notes("a")) == child

    assert states(world) == [None]


def test_a_cancelling_that_a_queue_lost_is_made_up_for(world: World) -> None:
    """F7: the sweep wakes no member of a batch for which nobody waits."""
    grow(world, 2)
    with world.context():
        TREES.cancel(world.clients, "root")
    for queue in ("default", "fan-out"):
        world.engine.purge_queue(world.engine.place.queue_name(queue))
    ran = dict(RAN)
    world.clock.sleep(STALE_S + 1)
    world.sweep()

    assert states(world) == ["cancelled"] * 2
    world.settle()
    assert ran == RAN


def test_the_process_that_cancels_begins_no_member_afterwards(world: World) -> None:
    """F7: it knows at once; others may believe for a second that the batch runs."""
    with world.context():
        NOTES.populate(world.clients, "b", notes("a", "b"), seal=True)
    deliver_next(world, "default")
    deliver_next(world, "fan-out")
    with world.context():
        assert NOTES.cancel(world.clients, "b")
    deliver_next(world, "fan-out")

    assert RAN == {"b/a": 1}
