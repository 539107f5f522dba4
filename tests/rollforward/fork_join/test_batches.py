"""Items that are inserted together: all of them count, or none, and once under one key."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from rollforward.datastore.transactions import transact
from rollforward.fork_join import (
    Accepted,
    BadItemError,
    DifferentItemError,
    ForkJoin,
    OutcomeUnknownError,
)
from rollforward.fork_join.entities import WorkReceipt
from rollforward.fork_join.items import (
    MAX_BATCH_ITEMS,
    MAX_BATCH_PACKS,
    MAX_ITEM_BYTES,
    MAX_PACK_ITEMS,
)
from rollforward.tasks.dead_task_entities import open_dead_tasks
from rollforward.testing.injection import ERROR, REPLY_LOST
from tests.infra.world import Services, World
from tests.rollforward.fork_join.tally_queue import (
    AT_ONCE,
    TALLIES,
    Mark,
    packs,
    put,
    tallied,
    tally,
)


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
    assert (spent.writes, spent.round_trips - spent.tasks) == (3 + 1, 1)
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


def test_an_insert_of_no_items_in_a_transaction_is_refused(world: World) -> None:
    with world.context(), pytest.raises(BadItemError, match="at least one item"):
        transact(lambda: TALLIES.insert_in_transaction(world.clients, "t"))


def test_a_bad_item_is_named_and_nothing_is_inserted(world: World) -> None:
    """Of another type, too large, with text that cannot be stored; none, or too many."""
    wrong: list[tuple[Sequence[object], str]] = [
        ([Mark("a"), Mark(7)], "item 2: item does not match"),  # type: ignore[arg-type]
        ([Mark("a"), Mark("b"), Mark("x" * MAX_ITEM_BYTES)], "item 3: item must have at most"),
        ([Mark("\ud800")], "item 1: item does not match"),
        ([Mark("a")] * 44 + [Mark(7)], "item 45: item does not match"),  # type: ignore[arg-type]
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


def test_a_batch_of_one_is_no_lone_item(world: World) -> None:
    """Nor is it taken for one: a lone item is answered with its place in a pack of others."""
    put(world, "t", "a", idempotency_key="k")
    with pytest.raises(DifferentItemError):
        insert(world, ["a"], "k")
    insert(world, ["b"], "l")
    with pytest.raises(DifferentItemError):
        put(world, "t", "b", idempotency_key="l")
    world.settle()
    with world.context():
        assert tallied("t") == Counter("ab")


@dataclass(frozen=True)
class Tree:
    value: Any


def nested(levels: int) -> Tree:
    """Return a tree that as JSON has this many levels of objects and lists."""
    value: Any = 1
    for _ in range(levels - 1):
        value = [value]
    return Tree(value)


def test_what_is_accepted_can_be_read_however_deep_it_is_nested(services: Services) -> None:
    """JSON is read to 200 levels, one of them a pack's list; large items are read one by one."""
    folded: list[Tree] = []

    def note(clients: Any, batch: Any, items: Sequence[Tree]) -> None:
        folded[:] = items

    trees = ForkJoin("trees", Tree, note, queue="fork-join", period_s=1.0)
    world = World(services, fork_joins=[trees])
    with world.context():
        for insert_bad in (
            lambda: trees.insert(world.clients, "t", nested(200)),
            lambda: trees.insert_batch(world.clients, "t", [nested(1), nested(200), nested(1)]),
        ):
            with pytest.raises(BadItemError, match="recursion limit"):
                insert_bad()
        assert packs() == []
        good = [nested(1), nested(199), Tree("x" * 30_000), Tree("y" * 30_000)]
        trees.insert_batch(world.clients, "t", good)
    world.settle()
    assert folded == good


def test_a_poison_item_of_a_large_batch_is_parked_and_the_others_are_folded(world: World) -> None:
    """D3: its pack is bisected by one commit, which the service limits to 500 writes."""
    marks = [Mark(label) for label in ("bad", *names(499))]
    with world.context():
        AT_ONCE.insert_batch(world.clients, "t", marks)
        assert max(pack.items.count("label") for pack in packs()) == MAX_PACK_ITEMS
    world.settle()
    with world.context():
        assert tallied("t") == Counter(names(499))
        assert packs() == []
        [dead] = open_dead_tasks().fetch()
    assert "no tally takes bad" in dead.reason


def test_a_queue_of_small_batches_takes_as_many_items_as_fit_into_a_commit(
    services: Services,
) -> None:
    """One more is refused at once: a commit that is too large fails however often it is made."""
    singles = ForkJoin("singles", Mark, tally, queue="fork-join", period_s=1.0, max_batch_size=1)
    world = World(services, fork_joins=[singles])
    marks = [Mark(label) for label in names(MAX_BATCH_PACKS + 1)]
    with world.context():
        with pytest.raises(BadItemError, match=f"at most {MAX_BATCH_PACKS} items"):
            singles.insert_batch(world.clients, "t", marks, idempotency_key="k")
        assert packs() == []
        singles.insert_batch(world.clients, "t", marks[1:], idempotency_key="k")
        assert len(packs()) == MAX_BATCH_PACKS


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
