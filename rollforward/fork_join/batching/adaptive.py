"""Adaptive batches: a fork-join queue that follows a promised latency.

Each joiner stores its measurements in memcached, and a policy for the next batch of the key: its
period, its size, and the number of shards. Each decision has its reason, in words, for the page.

A policy is a hint. The queue's declaration bounds any value from memcached, so a wrong value
changes when items are folded, never whether.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import pydantic

from rollforward.runtime.clients import Clients
from rollforward.runtime.type_adapters import adapter_of

# The weight of a new figure against the average of the earlier ones.
EWMA_ALPHA = 0.3
# Between the time a task is due and the run of its joiner, usually.
DELIVERY_S = 0.05
# One epoch, which has one lock and one range of keys, takes this rate.
ITEMS_PER_S_OF_A_SHARD = 2_000
FIRST_SIZE = 100
MIN_SIZE = 10
TTL_S = 600


@dataclass(frozen=True)
class Limits:
    """The declared maximum of each number."""

    target_latency_s: float
    period_s: float
    max_batch_size: int
    shards: int


@dataclass(frozen=True)
class BatchStats:
    """The measurements of one joiner: folded items, and the durations of batch and fold.

    `open_s` is None if the clock of the writer that opened the batch is ahead of the joiner's.
    """

    items: int
    open_s: float | None
    fold_s: float


@dataclass(frozen=True)
class BatchPolicy:
    """The numbers of the next batch of a key, with their reasons."""

    # memcached may hold any value, and JSON has numbers that no duration can have.
    period_s: Annotated[float, pydantic.Field(allow_inf_nan=False, ge=0, le=1e9)]
    max_batch_size: int
    shards: int
    items_per_s: Annotated[float, pydantic.Field(allow_inf_nan=False, ge=0, le=1e9)] = 0.0
    fold_s: Annotated[float, pydantic.Field(allow_inf_nan=False, ge=0, le=1e9)] = 0.0
    why_period: str = "Nothing has been folded lately: the first item does not wait."
    why_size: str = "A cautious beginning."
    why_shards: str = "One batch at a time is enough."


def first(limits: Limits) -> BatchPolicy:
    """Return the policy of an idle key: its first item does not wait for others."""
    return BatchPolicy(
        period_s=0.0, max_batch_size=min(FIRST_SIZE, limits.max_batch_size), shards=1
    )


def read(clients: Clients, name: str, limits: Limits) -> BatchPolicy:
    """Return the last policy of a key, bounded by the limits."""
    cached = clients.cache.get(name)
    if cached is None:
        return first(limits)
    try:
        policy: BatchPolicy = adapter_of(BatchPolicy).validate_json(cached)
    except pydantic.ValidationError:
        return first(limits)
    return replace(
        policy,
        period_s=min(max(policy.period_s, 0.0), limits.period_s),
        max_batch_size=min(max(policy.max_batch_size, 1), limits.max_batch_size),
        shards=min(max(policy.shards, 1), limits.shards),
    )


def record(clients: Clients, name: str, stats: BatchStats, limits: Limits) -> None:
    """Compute the policy of the next batch, and store it for all processes."""
    decided = next_policy(read(clients, name, limits), stats, limits)
    clients.cache.set(name, adapter_of(BatchPolicy).dump_json(decided), TTL_S)


def next_policy(policy: BatchPolicy, stats: BatchStats, limits: Limits) -> BatchPolicy:
    """Return the next policy after a policy and the measurements of its batch."""
    rate = policy.items_per_s
    if stats.open_s is not None:
        # Writers spread over all shards, and a joiner sees one.
        items_per_s = stats.items / max(stats.open_s, DELIVERY_S)
        rate = _ewma(rate, policy.shards * items_per_s)
    fold_s = _ewma(policy.fold_s, stats.fold_s)
    period_s, why_period = _period(rate, fold_s, limits)
    size, why_size = _size(policy.max_batch_size, stats, limits)
    shards, why_shards = _shards(rate, limits)
    return BatchPolicy(period_s, size, shards, rate, fold_s, why_period, why_size, why_shards)


def _ewma(average: float, value: float) -> float:
    return value if not average else average + EWMA_ALPHA * (value - average)


def _period(rate: float, fold_s: float, limits: Limits) -> tuple[float, str]:
    """Wait as long as the promise allows, unless no other item is expected."""
    left_s = min(limits.period_s, limits.target_latency_s - 2 * fold_s - DELIVERY_S)
    if left_s <= 0:
        return 0.0, (
            f"A fold takes {_ms(fold_s)} of the {_ms(limits.target_latency_s)} promised: "
            "there is no time to wait, and the next batch gathers while this one is folded."
        )
    if rate * left_s < 2:
        return 0.0, f"At {rate:.1f} items a second no other would share the wait."
    return left_s, (
        f"At {rate:.0f} items a second, waiting {_ms(left_s)} gathers about {rate * left_s:.0f}; "
        f"a fold takes {_ms(fold_s)} of the {_ms(limits.target_latency_s)} promised."
    )


def _size(size: int, stats: BatchStats, limits: Limits) -> tuple[int, str]:
    """Return the size that a transaction can fold within half of the promise."""
    if stats.fold_s > limits.target_latency_s / 2 and stats.items > MIN_SIZE:
        size = max(min(size, stats.items) // 2, min(MIN_SIZE, limits.max_batch_size))
        return size, f"{stats.items} items took {_ms(stats.fold_s)}: too long, so half as many."
    if (
        stats.items >= size
        and stats.fold_s < limits.target_latency_s / 4
        and size < limits.max_batch_size
    ):
        size = min(2 * size, limits.max_batch_size)
        return size, f"{stats.items} items took only {_ms(stats.fold_s)}: twice as many."
    return size, f"{stats.items} items took {_ms(stats.fold_s)}: that is fine."


def _shards(rate: float, limits: Limits) -> tuple[int, str]:
    shards = min(limits.shards, 1 + int(rate / ITEMS_PER_S_OF_A_SHARD))
    if shards == 1:
        return 1, "One batch at a time is enough."
    return shards, f"{rate:.0f} items a second are spread over {shards} batches."


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"
