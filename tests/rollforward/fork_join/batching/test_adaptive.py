"""Adaptive queues: decisions, their reasons, and the declared bounds."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollforward.fork_join import fork_join
from rollforward.fork_join.batching.adaptive import (
    BatchPolicy,
    BatchStats,
    Limits,
    first,
    next_policy,
)
from tests.infra.world import Services, World
from tests.rollforward.fork_join.tally_queue import Mark, batches, tallied, tally

LIMITS = Limits(target_latency_s=1.0, period_s=2.0, max_batch_size=400, shards=4)
TUNED = fork_join(
    "tallies-next_policy",
    queue="fork-join",
    period_s=1.0,
    max_batch_size=40,
    shards=2,
    target_latency_s=1.0,
)(tally)


def after(*seen: BatchStats) -> BatchPolicy:
    tuning = first(LIMITS)
    for one in seen:
        tuning = next_policy(tuning, one, LIMITS)
    return tuning


def test_an_idle_key_does_not_wait_for_company() -> None:
    """Idle latency stays near zero."""
    assert first(LIMITS).period_s == 0
    quiet = after(*[BatchStats(items=1, open_s=5.0, fold_s=0.01)] * 5)
    assert quiet.period_s == 0
    assert "no other would share" in quiet.why_period


@pytest.mark.parametrize(("items", "waits"), [(9, False), (11, True)])
def test_one_waits_for_company_if_two_come_meanwhile(items: int, waits: bool) -> None:
    """At the limit: 1.8 and 2.2 items within the second that is left."""
    limits = Limits(target_latency_s=10.0, period_s=1.0, max_batch_size=400, shards=1)
    seen = BatchStats(items=items, open_s=5.0, fold_s=0.01)

    assert bool(next_policy(first(limits), seen, limits).period_s) is waits


def test_a_busy_key_waits_as_long_as_was_promised() -> None:
    """Batches grow with the load: the window is the promise minus the fold."""
    busy = after(*[BatchStats(items=100, open_s=0.5, fold_s=0.1)] * 10)
    assert busy.period_s == pytest.approx(1.0 - 2 * 0.1 - 0.05, abs=0.01)
    assert "200 items a second" in busy.why_period


def test_a_slow_fold_leaves_no_time_to_wait() -> None:
    """The latency target comes first."""
    slow = after(*[BatchStats(items=100, open_s=0.5, fold_s=0.8)] * 10)
    assert slow.period_s == 0
    assert slow.max_batch_size < 100
    assert "no time to wait" in slow.why_period


def test_full_batches_that_fold_quickly_grow() -> None:
    """Up to the declared size, and no further."""
    tuning = first(LIMITS)
    sizes = []
    for _ in range(6):
        tuning = next_policy(
            tuning, BatchStats(items=tuning.max_batch_size, open_s=0.1, fold_s=0.02), LIMITS
        )
        sizes.append(tuning.max_batch_size)
    assert sizes == [200, 400, 400, 400, 400, 400]


def test_a_very_hot_key_is_spread_and_comes_back() -> None:
    """Shards follow the rate, up and down."""
    hot = first(LIMITS)
    for _ in range(30):
        hot = next_policy(
            hot, BatchStats(items=5_000 // hot.shards, open_s=1.0, fold_s=0.1), LIMITS
        )
    assert hot.shards == 3
    assert "spread over 3" in hot.why_shards
    cold = hot
    for _ in range(20):
        cold = next_policy(cold, BatchStats(items=10, open_s=1.0, fold_s=0.1), LIMITS)
    assert cold.shards == 1


@pytest.mark.parametrize(("rate", "shards"), [(500, 1), (5_000, 3), (9_000, 5), (15_000, 8)])
def test_shards_settle_where_the_rate_wants_them(rate: int, shards: int) -> None:
    """Each joiner sees one shard, so its rate is multiplied by the shards."""
    limits = replace(LIMITS, shards=8)
    tuning, settled = first(limits), list[int]()
    for _ in range(100):
        open_s = max(tuning.period_s, 0.1)
        seen = BatchStats(int(rate / tuning.shards * open_s), open_s, fold_s=0.05)
        for _ in range(tuning.shards):
            tuning = next_policy(tuning, seen, limits)
        settled.append(tuning.shards)

    assert set(settled[-20:]) == {shards}


def test_a_clock_that_is_ahead_says_nothing_of_the_rate() -> None:
    """The duration of a batch from the future is unknown."""
    policy = after(*[BatchStats(items=100, open_s=0.5, fold_s=0.1)] * 10)
    adapted = next_policy(policy, BatchStats(items=300, open_s=None, fold_s=0.1), LIMITS)

    assert (adapted.items_per_s, adapted.shards) == (policy.items_per_s, policy.shards)


NO_TIME = [
    b'{"period_s":NaN,"max_batch_size":5,"shards":1}',
    b'{"period_s":1,"max_batch_size":5,"shards":1,"items_per_s":Infinity}',
    b'{"period_s":1,"max_batch_size":5,"shards":1,"fold_s":-1}',
]
finite = st.floats(min_value=0, max_value=1e6)


@given(
    seen=st.builds(
        BatchStats, items=st.integers(1, 10**6), open_s=finite | st.none(), fold_s=finite
    ),
    period_s=finite,
    size=st.integers(1, 10**6),
    rate=finite,
)
def test_every_decision_is_within_the_declaration(
    seen: BatchStats, period_s: float, size: int, rate: float
) -> None:
    """For any measurement and any value in memcached."""
    policy = BatchPolicy(
        min(period_s, LIMITS.period_s), min(size, LIMITS.max_batch_size), 1, items_per_s=rate
    )
    tuning = next_policy(policy, seen, LIMITS)
    assert 0 <= tuning.period_s <= LIMITS.period_s
    assert 1 <= tuning.max_batch_size <= LIMITS.max_batch_size
    assert 1 <= tuning.shards <= LIMITS.shards
    assert all((tuning.why_period, tuning.why_size, tuning.why_shards))


def test_a_queue_adapts_by_what_its_joiners_see(services: Services) -> None:
    """D2: from alone and at once to together and later; the totals are exact all the way."""
    world = World(services, fork_joins=[TUNED])
    labels = [str(i) for i in range(200)]
    for i, label in enumerate(labels):
        with world.clients.context():
            TUNED.insert(world.clients, "t", Mark(label))
        world.clock.sleep(0.02)
        if i % 5 == 0:
            world.deliver_due()
    world.settle()

    with world.context():
        assert tallied("t") == Counter(labels)
        sizes = batches("t")
        tuning = TUNED.policy(world.clients, "t")
    assert sizes[0] < 10 < max(sizes)
    assert tuning is not None
    assert tuning.period_s > 0


@pytest.mark.parametrize(
    "cached", [b"", b"{}", b"[]", b'{"period_s":1e9,"max_batch_size":-3,"shards":99}', *NO_TIME]
)
def test_what_memcached_makes_up_is_bounded(services: Services, cached: bytes) -> None:
    """D2: nonsense resets the policy; numbers are cut to the declared limits."""
    world = World(services, fork_joins=[TUNED])
    world.clients.cache.set("fork-join:policy:tallies-next_policy:t", cached, 60)

    tuning = TUNED.policy(world.clients, "t")

    assert tuning is not None
    assert 0 <= tuning.period_s <= 1.0
    assert 1 <= tuning.max_batch_size <= 40
    assert 1 <= tuning.shards <= 2
