"""Idempotency keys: an insert counts once, and what proves that goes after its time."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
from google.cloud import ndb
from pydantic import Field

from rollforward.datastore.partitions import PARTITIONS
from rollforward.fork_join import Accepted, DifferentItemError, ForkJoin, ItemStatus
from rollforward.fork_join.entities import WorkReceipt, receipt_key
from rollforward.fork_join.pattern import EXPIRY
from rollforward.tasks import expiry as tasks_expiry
from rollforward.tasks.expiry import DeleteExpired
from rollforward.testing.world import in_threads
from tests.infra.world import Services, World
from tests.rollforward.fork_join.tally_queue import TALLIES, Mark, put, tallied, tally


def test_a_request_counts_once_however_often_it_is_made(world: World) -> None:
    """D1: before its batch is folded and after."""
    (original,) = put(world, "t", "a", idempotency_key="r1")
    (repeated,) = put(world, "t", "a", idempotency_key="r1")
    world.settle()
    (late,) = put(world, "t", "a", idempotency_key="r1")
    world.settle()

    assert not original.is_duplicate
    assert repeated.is_duplicate
    assert late.is_duplicate
    assert (repeated.pack, repeated.position) == (original.pack, original.position)
    with world.context():
        assert tallied("t") == Counter("a")


def test_an_idempotency_key_belongs_to_one_item_of_one_key(world: World) -> None:
    """Used for another item it is an error; for another key it is another request."""
    put(world, "t", "a", idempotency_key="r1")
    with pytest.raises(DifferentItemError):
        put(world, "t", "b", idempotency_key="r1")
    put(world, "u", "b", idempotency_key="r1")
    world.settle()

    with world.context():
        assert (tallied("t"), tallied("u")) == (Counter("a"), Counter("b"))


def test_one_idempotency_key_for_two_items_of_one_commit_is_an_error_for_the_second(
    world: World,
) -> None:
    """The same item again is a duplicate, in any order."""
    marks = [("t", Mark(label)) for label in "abca"]
    with world.clients.context():
        answers = TALLIES.insert_each(
            world.clients, marks, idempotency_keys=["r1", "r1", "r2", "r1"]
        )
    world.settle()

    original, other, _, repeated = answers
    assert isinstance(other, DifferentItemError)
    assert isinstance(repeated, Accepted)
    assert repeated.is_duplicate
    assert (repeated.pack, repeated.position) == (original.pack, original.position)  # type: ignore[union-attr]
    with world.context():
        assert tallied("t") == Counter("ac")


@pytest.mark.parametrize("keys", [[], ["r1", "r2"]])
def test_fewer_or_more_idempotency_keys_than_items_are_refused(
    world: World, keys: list[str]
) -> None:
    """An empty list, as of a request that lacks its keys, would insert a repeated item twice."""
    with (
        world.clients.context(),
        pytest.raises(ValueError, match=r"idempotency_keys must be 1, one an item, got [02]"),
    ):
        TALLIES.insert_each(world.clients, [("t", Mark("a"))], idempotency_keys=keys)
    world.settle()

    with world.context():
        assert tallied("t") == Counter()


def test_what_was_inserted_before_is_a_duplicate_behind_another_item_of_its_key(
    world: World,
) -> None:
    """The other item, which came first in the commit, is the error, and not the repeat."""
    (original,) = put(world, "t", "a", idempotency_key="r1")
    with world.clients.context():
        other, repeated = TALLIES.insert_each(
            world.clients, [("t", Mark("b")), ("t", Mark("a"))], idempotency_keys=["r1", "r1"]
        )
    world.settle()

    assert isinstance(other, DifferentItemError)
    assert isinstance(repeated, Accepted)
    assert repeated.is_duplicate
    assert (repeated.pack, repeated.position) == (original.pack, original.position)
    with world.context():
        assert tallied("t") == Counter("a")


@dataclass(frozen=True)
class Short:
    label: Annotated[str, Field(max_length=5)]


@dataclass(frozen=True)
class Labelled:
    label: str
    note: str = ""
    came_by: str = field(default="", compare=False)


def test_a_request_is_the_same_after_a_field_was_added(services: Services) -> None:
    """D1: a client retries the same request across a deployment."""
    options: dict[str, Any] = {"queue": "fork-join", "period_s": 1.0}
    old_queue = ForkJoin("labels", Short, tally, **options)
    new_queue = ForkJoin("labels", Labelled, tally, **options)
    world = World(services, fork_joins=[new_queue])
    with world.clients.context():
        old_queue.insert(world.clients, "t", Short("a"), idempotency_key="r")
        repeated = new_queue.insert(
            world.clients, "t", Labelled("a", came_by="mail"), idempotency_key="r"
        )
        back = old_queue.insert(world.clients, "t", Short("a"), idempotency_key="r")
        with pytest.raises(DifferentItemError):
            new_queue.insert(world.clients, "t", Labelled("a", note="more"), idempotency_key="r")
    world.settle()

    assert repeated.is_duplicate
    assert back.is_duplicate
    with world.context():
        assert tallied("t") == Counter("a")


def test_receipts_of_earlier_versions_are_good(world: World) -> None:
    """D1: their digest is of the whole item, defaults and all."""
    queue = ForkJoin("labels", Labelled, tally, queue="fork-join", period_s=1.0)
    (original,) = put(world, "t", "a", idempotency_key="other")
    with world.clients.context():
        text = json.dumps({"label": "a", "note": "", "came_by": ""}, separators=(",", ":"))
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        key = receipt_key("labels", "t", "r")
        WorkReceipt(key=key, pack=original.pack, position=0, digest=digest, expires="f2030").put()

        assert queue.insert(world.clients, "t", Labelled("a"), idempotency_key="r").is_duplicate


def test_the_same_request_at_the_same_moment_counts_once(world: World) -> None:
    """D1: also when both come into one commit, or into two that race."""
    answers: list[Any] = []
    in_threads(
        *[lambda: answers.extend(put(world, "t", "a", idempotency_key="r")) for _ in range(8)]
    )
    world.settle()

    assert [answer.is_duplicate for answer in answers].count(False) == 1
    with world.context():
        assert tallied("t") == Counter("a")


def forget_what_expired(world: World) -> None:
    """Let every partition forget, as the sweep would in time."""
    with world.clients.context():
        for partition in PARTITIONS:
            EXPIRY.task.work(world.clients, DeleteExpired(partition, "now"))


def test_receipts_are_forgotten_after_their_day(world: World) -> None:
    """Growth is bounded: not before 24 hours, and with the 26th."""
    hour = 3600
    began_s = world.clock.time_s
    put(world, "t", "a", idempotency_key="r1")
    world.settle()
    world.clock.sleep(began_s + 24 * hour - world.clock.time_s)
    forget_what_expired(world)
    assert left(world) == 1

    world.clock.sleep(2 * hour)
    forget_what_expired(world)
    assert left(world) == 0


def test_a_key_that_is_used_anew_while_the_sweep_is_at_it_keeps_its_receipt(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D8: between the query and the deletion another sweep deletes, and a client repeats."""
    put(world, "t", "a", idempotency_key="r1")
    world.settle()
    world.clock.sleep(26 * 3600)
    listed = tasks_expiry.expired

    class Meanwhile:
        def __init__(self, *range_: Any) -> None:
            self.query = listed(*range_)

        def fetch(self, *args: Any, **options: Any) -> Any:
            keys = self.query.fetch(*args, **options)
            if keys:
                ndb.delete_multi(keys)
                anew = TALLIES.insert(world.clients, "t", Mark("a"), idempotency_key="r1")
                assert not anew.is_duplicate
            return keys

    monkeypatch.setattr(tasks_expiry, "expired", Meanwhile)
    with world.clients.context():
        for partition in PARTITIONS:
            EXPIRY.delete_page(world.clients, partition)

    (repeated,) = put(world, "t", "a", idempotency_key="r1")
    assert repeated.is_duplicate


def test_results_are_forgotten_after_their_hour(world: World) -> None:
    """Growth is bounded: not before an hour, and with the third."""
    hour = 3600
    (accepted,) = put(world, "t", "a", keep_result=True)
    world.settle()
    world.clock.sleep(hour)
    forget_what_expired(world)
    with world.context():
        assert TALLIES.outcome(accepted).result == "a is number 1"

    world.clock.sleep(2 * hour)
    forget_what_expired(world)
    with world.context():
        assert TALLIES.outcome(accepted) == ItemStatus(is_folded=True)


def receipts(world: World, count: int) -> None:
    """Write receipts that expired long ago."""
    with world.context():
        ndb.put_multi(
            [
                WorkReceipt(
                    id=f"{i % 16:x}{i}", pack="p", position=0, digest="d", expires=f"{i % 16:x}2020"
                )
                for i in range(count)
            ]
        )


def left(world: World) -> int:
    with world.context():
        return len(WorkReceipt.query().fetch(keys_only=True))


def test_receipts_are_forgotten_as_fast_as_they_are_made(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Growth is bounded: one sweep deletes all that has expired, however much; a task, a few."""
    monkeypatch.setattr(EXPIRY, "page_size", 3)
    monkeypatch.setattr(tasks_expiry, "PAGES_PER_TASK", 2)
    receipts(world, 160)
    world.sweep()
    assert left(world) == 157
    world.deliver(world.live_tasks("default")[0].name)
    assert left(world) == 157 - 6
    world.settle()

    assert left(world) == 0


def test_what_forgets_does_not_pile_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep starts chains of limited length, and the next sweep continues."""
    monkeypatch.setattr(EXPIRY, "page_size", 1)
    monkeypatch.setattr(tasks_expiry, "PAGES_PER_TASK", 1)
    monkeypatch.setattr(EXPIRY, "max_tasks", 2)
    receipts(world, 160)
    world.sweep()
    world.settle()

    assert left(world) == 160 - 1 - 16 * 2


def test_forgetting_nothing_costs_two_queries(world: World) -> None:
    """An idle queue costs next to nothing."""
    with world.context():
        cost_before = world.clients.meter.cost()
        assert EXPIRY.sweep(world.clients) == 0
        cost = world.clients.meter.cost() - cost_before

    assert (cost.round_trips, cost.tasks) == (2, 0)


def test_a_request_that_was_made_before_costs_one_commit_and_one_look(world: World) -> None:
    """Its receipt refuses the commit, and tells why."""
    put(world, "t", "a", idempotency_key="r")
    with world.context(), world.plan.watched():
        assert TALLIES.insert(world.clients, "t", Mark("a"), idempotency_key="r").is_duplicate

    assert [call for call in world.plan.calls if "cache" not in call] == ["Commit", "Lookup"]
