"""Limits of pull queues: each at its last good value and one beyond, and how long things stay."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from rollforward.datastore.transactions import transact
from rollforward.pull_queues import BadItemError, PullQueue, listing, pattern
from rollforward.pull_queues.entities import PullReceipt
from rollforward.pull_queues.listing import letter_of, queue_details, replay_dead_letters
from rollforward.pull_queues.pattern import PullQueues
from rollforward.runtime import naive_utc
from rollforward.tasks.runs import UnknownLetterError
from tests.infra.world import World
from tests.rollforward.pull_queues.harness import WORK, add, lease, payloads, waiting

MINUTE_S, DAY_S = 60, 24 * 3600
ONCE = PullQueue("once", max_deliveries=1, partitions=2)


def bury(world: World, *payloads: str, tag: str | None = None) -> None:
    """Let items of the queue `once` die, one after the other."""
    for payload in payloads:
        ONCE.add(world.clients, payload, tag=tag)
        ONCE.lease(world.clients, tag=tag, lease_s=1)
        world.clock.sleep(2)
        assert ONCE.lease(world.clients, tag=tag) == []


@pytest.mark.parametrize(
    "options",
    [
        {"name": "a"},
        {"name": "a" * 50},
        {"max_deliveries": 1},
        {"partitions": 1},
        {"partitions": 64},
    ],
)
def test_a_queue_may_be_declared_up_to_its_limits(options: dict[str, Any]) -> None:
    PullQueue(**{"name": "queue", **options})


@pytest.mark.parametrize(
    "options",
    [
        {"name": ""},
        {"name": "a" * 51},
        {"name": "9"},
        {"name": "a|b"},
        {"max_deliveries": 0},
        {"partitions": 0},
        {"partitions": 65},
    ],
)
def test_a_queue_beyond_its_limits_is_no_declaration(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must match|must be at least 1 and .* 64"):
        PullQueue(**{"name": "queue", **options})


def test_a_queue_has_eight_partitions_and_ten_deliveries_unless_it_says_so() -> None:
    assert PullQueue("queue") == PullQueue("queue", max_deliveries=10, partitions=8)


@pytest.mark.parametrize(
    ("lease_s", "is_good"),
    [(1, True), (7 * DAY_S, True), (0.9, False), (7 * DAY_S + 1, False)],
)
def test_a_lease_lasts_from_a_second_to_a_week(world: World, lease_s: float, is_good: bool) -> None:
    """Taken or renewed; it ends then, and not before."""
    add(world, "a")
    if not is_good:
        with pytest.raises(ValueError, match="lease_s must be between 1 and 604800"):
            lease(world, lease_s=lease_s)
        with pytest.raises(ValueError, match="lease_s must be between 1 and 604800"):
            WORK.renew(world.clients, lease(world), lease_s=lease_s)
        return
    [leased] = lease(world, 1_000, lease_s=lease_s)
    world.clock.sleep(0.5)
    [renewed] = WORK.renew(world.clients, [leased], lease_s=lease_s)
    after = datetime.timedelta(seconds=lease_s)
    now_utc = naive_utc(world.clock.now())

    assert abs(renewed.expires_at - now_utc - after) < datetime.timedelta(seconds=0.1)
    world.clock.sleep(lease_s - 0.2)
    assert lease(world) == []
    world.clock.sleep(0.4)
    assert payloads(lease(world)) == ["a"]


def test_a_lease_takes_one_item_for_a_minute_unless_it_says_so(world: World) -> None:
    """So does a renewal, and an item that is given back can be leased at once."""
    add(world, "a", "b")
    [leased] = WORK.lease(world.clients)
    world.clock.sleep(MINUTE_S - 1)
    [renewed] = WORK.renew(world.clients, [leased])
    world.clock.sleep(MINUTE_S - 1)
    assert len(lease(world, 2)) == 1
    world.clock.sleep(2)

    [again] = lease(world, tag=leased.tag, limit=1)
    assert (again.id, again.deliveries) == (renewed.id, 2)
    WORK.release(world.clients, [again])
    assert lease(world)[0].id == again.id


def test_a_lease_takes_up_to_a_thousand_items(world: World) -> None:
    """And the longest delay of an item is ten years."""
    add(world, "a", "b")
    ten_years_s = 10 * 366 * DAY_S
    WORK.add(world.clients, "c", delay_s=ten_years_s)

    assert payloads(WORK.lease(world.clients, limit=1_000)) == ["a", "b"]
    with pytest.raises(ValueError, match="limit must be between 1 and 1,000, got 1001"):
        WORK.lease(world.clients, limit=1_001)
    with pytest.raises(BadItemError, match="at most ten years"):
        WORK.add(world.clients, "c", delay_s=ten_years_s + 1)


def test_a_tag_of_two_hundred_characters_is_a_tag(world: World) -> None:
    """In a transaction or not; one that is longer is refused there, too."""
    tag = "é" * 200
    add(world, "a", tag=tag)
    transact(lambda: WORK.add_in_transaction(world.clients, "b", tag=tag))
    with pytest.raises(BadItemError, match="tag must have 1 to 200"):
        transact(lambda: WORK.add_in_transaction(world.clients, "c", tag=f"{tag}é"))

    assert payloads(lease(world, tag=tag)) == ["a", "b"]
    assert waiting() == 2


def test_a_tag_has_items_until_the_last_is_acked_or_dead(world: World) -> None:
    """Leased ones count, and those of another tag, or of a tag that begins like it, do not."""
    assert not ONCE.has_items("a")
    for tag in ("a", "ab", None):
        ONCE.add(world.clients, "work", tag=tag)
    assert (ONCE.has_items("a"), ONCE.has_items("b")) == (True, False)
    leases = ONCE.lease(world.clients, tag="a", lease_s=60)
    assert ONCE.has_items("a")
    ONCE.ack(world.clients, leases)
    assert (ONCE.has_items("a"), ONCE.has_items("ab")) == (False, True)
    bury(world, "poison", tag="b")
    assert not ONCE.has_items("b")


def test_dead_letters_are_kept_for_thirty_days(world: World) -> None:
    """Of each queue; what waits, however long, stays."""
    other = PullQueue("twice", max_deliveries=1, partitions=2)
    add(world, "waits")
    other.add(world.clients, "later")
    bury(world, "a", "b")
    other.lease(world.clients, lease_s=1)
    world.clock.sleep(2)
    assert other.lease(world.clients) == []
    world.clock.sleep(30 * DAY_S - 5)
    sweeps = [PullQueues().sweep(world.clients, [WORK, ONCE, other])]
    world.clock.sleep(10)
    sweeps += [PullQueues().sweep(world.clients, [WORK, ONCE, other]) for _ in range(2)]

    counts = [swept["dead_letters_deleted"] for swept in sweeps]
    assert (counts[0] < 3, sum(counts), counts[2]) == (True, 3, 0)
    assert waiting() == 1


def test_a_sweep_deletes_so_many_receipts_and_the_next_one_more(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pattern, "MAX_KEYS", 1)
    monkeypatch.setattr(pattern, "MAX_PAGES", 2)
    for key in "abc":
        WORK.add(world.clients, "work", idempotency_key=key)
    world.clock.sleep(DAY_S + 1)

    assert [PullQueues().delete_expired(world.clients) for _ in range(3)] == [2, 1, 0]
    assert PullReceipt.query().fetch() == []


@pytest.mark.parametrize("most", [1, 2, 3, 1_000])
def test_a_queue_is_counted_up_to_a_limit(
    world: World, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """By its page and by its gauges: what waits in all partitions, is leased, and is dead."""
    monkeypatch.setattr(listing, "MAX_COUNTED", most)
    monkeypatch.setattr(pattern, "MAX_COUNTED", most)
    bury(world, "x", "y")
    for number in range(8):
        ONCE.add(world.clients, str(number))
    ONCE.lease(world.clients, limit=2)
    ONCE.add(world.clients, "later", delay_s=60)

    shown = queue_details(world.clients, ONCE)
    gauges = {gauge.name: gauge for gauge in PullQueues().gauges(world.clients, [ONCE])}

    expected = {"waiting": min(most, 6), "dead_letters": min(most, 2), "counted_up_to": most}
    expected |= {"leased_or_delayed": 3 if most == 1_000 else 0}
    assert shown.numbers == {**expected, "max_deliveries": 1, "partitions": 2}
    assert gauges["pull_queue_items"].value == min(most, 9)
    assert gauges["pull_queue_dead_letters"].value == min(most, 2)
    assert {str(gauge.labels) for gauge in gauges.values()} == {"{'pull_queue': 'once'}"}


def test_items_of_other_queues_are_not_counted(world: World) -> None:
    """Whether their names come before or behind it."""
    for name in ("a", "once-more", "oncf", "z"):
        PullQueue(name).add(world.clients, "x")
    ONCE.add(world.clients, "mine", delay_s=60)

    shown = queue_details(world.clients, ONCE)
    gauges = {gauge.name: gauge.value for gauge in PullQueues().gauges(world.clients, [ONCE])}

    assert (shown.numbers["waiting"], shown.numbers["leased_or_delayed"]) == (0, 1)
    assert gauges["pull_queue_items"] == 1


def test_the_oldest_dead_letters_are_shown(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The beginning of each; those of a command are as many, the oldest first."""
    monkeypatch.setattr(listing, "MAX_SHOWN", 2)
    monkeypatch.setattr(listing, "MAX_REPLAYED", 2)
    bury(world, "a" * 201, "b", "c")

    shown = queue_details(world.clients, ONCE)
    assert [(issue.outcome, issue.reason) for issue in shown.issues] == [
        ("failed", f"leased 1 times: {'a' * 200}"),
        ("failed", "leased 1 times: b"),
    ]
    assert shown.has_letters
    assert replay_dead_letters(world.clients, ONCE, "retry") == "once"
    assert [letter.payload for letter in ONCE.dead_letters()] == ["c"]
    assert queue_details(world.clients, PullQueue("empty")).run.verbs == ()


def test_a_dead_letter_has_its_facts(world: World) -> None:
    """What waits or is gone is none."""
    bury(world, "a", tag="t")
    bury(world, "b")
    first, second = ONCE.dead_letters()
    ids = [ONCE.add(world.clients, "waits"), "", "none", "x" * 1_001]

    letter = letter_of(ONCE, first.id)
    assert (letter.name, letter.body, letter.error) == ("t", "a", "never acked, after 1 lease")
    added_at = letter.numbers["added_at"]
    assert letter.numbers == {"tag": "t", "leases": 1, "added_at": added_at}
    assert letter.died.timestamp() - float(added_at) == pytest.approx(2, abs=0.5)
    assert letter_of(ONCE, second.id).name == "no tag"
    assert letter_of(ONCE, second.id).numbers["tag"] == "none"
    for id_ in ids:
        with pytest.raises(UnknownLetterError):
            letter_of(ONCE, id_)
