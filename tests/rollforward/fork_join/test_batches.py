"""Items that are inserted together: all of them count, or none, and once under one key."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence

import pytest

from rollforward.fork_join import Accepted, BadItemError, DifferentItemError, OutcomeUnknownError
from rollforward.fork_join.entities import WorkReceipt
from rollforward.fork_join.items import MAX_BATCH_ITEMS, MAX_ITEM_BYTES
from rollforward.testing.injection import ERROR, REPLY_LOST
from tests.infra.world import World
from tests.rollforward.fork_join.tally_queue import AT_ONCE, TALLIES, Mark, packs, put, tallied


def insert(
    world: World, labels: Sequence[str], key: str | None = None, *, tally: str = "t"
) -> list[Accepted]:
    """Insert marks together; a fault may strike it, unlike what runs in `world.context`."""
    with world.clients.context():
        marks = [Mark(label) for label in labels]
        return TALLIES.insert_batch(world.clients, tally, marks, idempotency_key=key)


def names(count: int) -> list[str]:
    return [f"m{number}" for number in range(count)]


def test_a_thousand_items_are_one_commit_of_few_rows(world: World) -> None:
    """A row for each pack, and one receipt for all."""
    with world.context():
        marks = [Mark(label) for label in names(1_000)]
        before = world.clients.meter.total()
        accepted = AT_ONCE.insert_batch(world.clients, "t", marks, idempotency_key="k")
        spent = world.clients.meter.total() - before
        receipts = WorkReceipt.query().fetch()
    assert (len(accepted), len(set(accepted))) == (1_000, 1_000)
    assert (spent.writes, spent.round_trips - spent.tasks) == (2 + 1, 1)
    assert len(receipts) == 1
    world.settle()
    with world.context():
        assert tallied("t") == Counter(names(1_000))


def test_each_item_is_where_its_answer_says(world: World) -> None:
    """45 items in packs of 20: the results of their fold are found by their answers."""
    accepted = insert(world, names(45))
    with world.context():
        assert sorted(len(pack.items.split("},")) for pack in packs()) == [5, 20, 20]
        assert not any(TALLIES.outcome(item).is_folded for item in accepted)
    world.settle()
    with world.context():
        assert all(TALLIES.outcome(item).is_folded for item in accepted)
        assert tallied("t") == Counter(names(45))


def test_a_repeated_batch_counts_once_and_is_answered_as_the_first(world: World) -> None:
    """Before its fold and after; each item with its place."""
    first = insert(world, names(45), "k")
    again = insert(world, names(45), "k")
    world.settle()
    late = insert(world, names(45), "k")
    world.settle()

    assert not any(item.is_duplicate for item in first)
    for answers in (again, late):
        assert all(item.is_duplicate for item in answers)
        assert [(a.pack, a.position) for a in answers] == [(a.pack, a.position) for a in first]
    with world.context():
        assert tallied("t") == Counter(names(45))


def test_a_key_belongs_to_one_batch(world: World) -> None:
    """Other items, one less, or another order are another batch; a lone item is one, too."""
    insert(world, names(3), "k")
    for other in (names(2), names(4), ["m1", "m0", "m2"]):
        with pytest.raises(DifferentItemError):
            insert(world, other, "k")
    with pytest.raises(DifferentItemError):
        put(world, "t", "m0", idempotency_key="k")
    world.settle()
    with world.context():
        assert tallied("t") == Counter(names(3))


def test_a_bad_item_is_named_and_nothing_is_inserted(world: World) -> None:
    """Of another type, too large, with text that cannot be stored; none, or too many."""
    wrong: list[tuple[Sequence[object], str]] = [
        ([Mark("a"), Mark(7)], "item 2: item does not match"),  # type: ignore[arg-type]
        ([Mark("a"), Mark("b"), Mark("x" * MAX_ITEM_BYTES)], "item 3: item must have at most"),
        ([Mark("\ud800")], "item 1: item does not match"),
        ([], "1 to 1000 items, got 0"),
        ([Mark("a")] * (MAX_BATCH_ITEMS + 1), "got 1001"),
        ([Mark("x" * 30_000)] * 40, "at most 900000 bytes"),
    ]
    for marks, message in wrong:
        with world.context(), pytest.raises(BadItemError, match=message):
            TALLIES.insert_batch(world.clients, "t", marks, idempotency_key="k")  # type: ignore[arg-type]
    with world.context():
        assert packs() == []
        assert WorkReceipt.query().fetch() == []


@pytest.mark.parametrize("kind", [ERROR, REPLY_LOST])
@pytest.mark.parametrize("key", ["k", None])
def test_a_fault_at_any_call_lets_all_count_or_none(
    world: World, kind: str, key: str | None
) -> None:
    """D1: with a key the caller repeats it until it is accepted; without one, nothing is torn."""
    at, fired = 0, True
    while fired:
        tally, own = f"t{at}", key and f"{key}{at}"
        world.plan.reset(kind, at)
        is_accepted = False
        with world.plan.watched(), contextlib.suppress(OutcomeUnknownError):
            insert(world, names(45), own, tally=tally)
            is_accepted = True
        fired = bool(world.plan.fired)
        world.plan.reset()
        if key is not None and not is_accepted:
            insert(world, names(45), own, tally=tally)
            is_accepted = True
        world.heal(lambda: packs() == [])
        with world.context():
            counts = tallied(tally)
        whole = Counter(names(45))
        assert counts == whole if is_accepted else counts in (whole, Counter()), (at, kind)
        at += 1
    assert at >= 2


def test_two_batches_and_lone_items_of_one_key_are_folded_together(world: World) -> None:
    """Their packs share an epoch."""
    insert(world, names(25))
    put(world, "t", "lone")
    insert(world, ["other"], "k")
    with world.context():
        epochs = {pack.key.id().split("|")[1] for pack in packs()}
    world.settle()

    assert len(epochs) <= 2  # A full batch does not wait for more.
    with world.context():
        assert tallied("t") == Counter([*names(25), "lone", "other"])
