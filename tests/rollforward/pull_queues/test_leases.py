"""Leases beside other workers and services that fail: what was leased is its caller's."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors

from rollforward.datastore.transactions import transact
from rollforward.pull_queues import OLDEST, PullQueue, leasing
from rollforward.runtime import naive_utc
from rollforward.testing.world import in_threads
from tests.infra.world import World
from tests.rollforward.pull_queues.harness import WORK, Ahead, add, lease, payloads, put_items

ONE = PullQueue("one", max_deliveries=1, partitions=1)
TWO = PullQueue("two", partitions=2)
LONE = PullQueue("lone", partitions=1)


def fail_from(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Let the commits of leases fail from this one on, the first being 1."""
    commit, count = leasing._commit, 0

    def failing(*args: Any) -> Any:
        nonlocal count
        count += 1
        if count >= number:
            raise rpc_errors.PermissionDenied("made by a test")
        return commit(*args)

    monkeypatch.setattr(leasing, "_commit", failing)


def overtake(world: World, monkeypatch: pytest.MonkeyPatch, rival: Callable[[], Any]) -> None:
    """Let another worker act once between the query and the read of the next lease."""
    read = leasing.read_versions

    def overtaken(client: Any, keys: Sequence[Any]) -> Any:
        monkeypatch.setattr(leasing, "read_versions", read)
        in_threads(_in_context(world, rival))
        return read(client, keys)

    monkeypatch.setattr(leasing, "read_versions", overtaken)


@pytest.mark.parametrize("partition", [0, 1])
def test_the_oldest_item_is_found_in_each_partition(world: World, partition: int) -> None:
    """Its time decides, and not where it lies: two partitions, and the oldest item in either."""
    put_items(world, TWO, partition, used_up=0, good=1)
    world.clock.sleep(60)
    put_items(world, TWO, 1 - partition, used_up=0, good=1)

    oldest = leasing.oldest(TWO._shape, naive_utc(world.clock.now()))
    assert oldest is not None
    assert oldest.key.id() == f"two|{partition}-00"


def test_what_was_leased_before_an_error_is_its_callers(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P2: it would be hidden until its lease ends; the error comes with the next call."""
    for number in range(20):
        TWO.add(world.clients, f"item {number}")
    fail_from(monkeypatch, 2)

    leases = TWO.lease(world.clients, limit=20)

    assert 0 < len(leases) < 20
    with pytest.raises(rpc_errors.PermissionDenied):
        TWO.lease(world.clients, limit=20)


def test_an_error_before_anything_was_leased_is_raised(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P2: an empty answer would say that nothing waits."""
    add(world, "a")
    fail_from(monkeypatch, 1)

    with pytest.raises(rpc_errors.PermissionDenied):
        lease(world)


def test_a_partition_where_another_worker_was_faster_is_tried_once_more(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P2: what that one did not take is leased by the same call."""
    ONE.add(world.clients, "a")
    commit, answers = leasing._commit, [None]
    monkeypatch.setattr(
        leasing, "_commit", lambda *args: answers.pop() if answers else commit(*args)
    )

    assert payloads(ONE.lease(world.clients)) == ["a"]
    assert answers == []


def test_a_partition_where_others_are_always_faster_is_left_after_two_tries(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P3: a worker gets an answer, however many rivals it has."""
    ONE.add(world.clients, "a")
    tries: list[Any] = []
    monkeypatch.setattr(leasing, "_commit", lambda *args: tries.append(args))

    assert ONE.lease(world.clients) == []
    assert len(tries) == 2


@pytest.mark.parametrize("tag", [None, "t", OLDEST])
@pytest.mark.parametrize("partition", [0, 1])
def test_no_partition_comes_before_the_others(world: World, tag: Any, partition: int) -> None:
    """P3: an item of either is leased soon, though the other one always has more."""
    put_items(world, TWO, 1 - partition, used_up=0, good=40)
    put_items(world, TWO, partition, used_up=0, good=1)

    leased = (TWO.lease(world.clients, tag=tag)[0].id for _ in range(40))

    assert any(id_.startswith(f"{partition}-") for id_ in leased)


def test_an_item_that_is_leased_between_query_and_read_is_left_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P2: the keys that a query found may be another worker's by the time that they are read."""
    add(world, "a")
    rival_leases: list[Any] = []
    overtake(world, monkeypatch, lambda: rival_leases.extend(lease(world)))

    assert lease(world) == []
    assert payloads(rival_leases) == ["a"]


def test_a_partition_whose_head_another_worker_took_is_tried_once_more(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P2: all that the query found is another worker's, and what waits behind it is not."""
    for payload in "ab":
        LONE.add(world.clients, payload)
        world.clock.sleep(1)
    rival_leases: list[Any] = []
    overtake(world, monkeypatch, lambda: rival_leases.extend(LONE.lease(world.clients, limit=1)))

    assert payloads(LONE.lease(world.clients, limit=1)) == ["b"]
    assert payloads(rival_leases) == ["a"]


def _in_context(world: World, body: Callable[[], Any]) -> Callable[[], Any]:
    def run() -> None:
        with world.clients.context():
            body()

    return run


def test_one_call_for_the_oldest_tag_looks_at_so_many_tags_and_no_more(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P3: each call makes dead letters of what nobody can do, and a later one gets the rest."""
    monkeypatch.setattr(leasing, "MAX_TAGS", 2)
    for number in range(3):
        ONE.add(world.clients, f"poison {number}", tag=f"tag-{number}")
        world.clock.sleep(1)
    assert len(ONE.lease(world.clients, limit=3, lease_s=1)) == 3
    world.clock.sleep(2)
    ONE.add(world.clients, "good", tag="tag-9")
    world.clock.sleep(1)

    leased = [payloads(ONE.lease(world.clients, tag=OLDEST)) for _ in range(2)]

    assert leased == [[], ["good"]]
    assert len(ONE.dead_letters()) == 3


def test_of_leases_in_doubt_of_which_another_worker_took_one_none_is_held(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P2: the reply is lost, and a clock ahead ends a lease before its worker looks for it.

    The other worker's fence would be taken for its own.
    """
    for payload in ("a", "b"):
        LONE.add(world.clients, payload)
    ahead = replace(world.clients, clock=Ahead(world.clock, datetime.timedelta(minutes=2)))
    commit, rival_leases = leasing.commit_if_current, list[Any]()

    def commit_and_lose(client: Any, **changes: Any) -> None:
        monkeypatch.setattr(leasing, "commit_if_current", commit)
        commit(client, **changes)
        rival_leases.extend(LONE.lease(ahead, limit=1))
        raise rpc_errors.ServiceUnavailable("made by a test")  # type: ignore[no-untyped-call]

    monkeypatch.setattr(leasing, "commit_if_current", commit_and_lose)
    own = LONE.lease(world.clients, limit=2)

    assert len(rival_leases) == 1
    assert own == []
    assert LONE.ack(ahead, rival_leases) == []


def test_a_lease_in_a_transaction_is_refused_and_the_item_stays_as_it_was(world: World) -> None:
    """It was changed at once; a body that ran again leased others, and left these to their end."""
    add(world, "a", "b")
    held = lease(world, 1, lease_s=30)
    calls: list[tuple[str, Callable[[], object]]] = [
        ("lease", lambda: lease(world)),
        ("renew", lambda: WORK.renew(world.clients, held, lease_s=90)),
        ("release", lambda: WORK.release(world.clients, held)),
    ]
    for name, call in calls:
        with pytest.raises(RuntimeError, match=rf"^{name} of work commits at once"):
            transact(call)

    [free] = lease(world)
    assert free.deliveries == 1
    assert WORK.ack(world.clients, held) == []
