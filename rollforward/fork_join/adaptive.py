"""How a fork-join queue adapts to a latency that was promised.

Each joiner writes down in memcached what it saw, and what follows from it for the next batch of
the key: how long it stays open, with how many items it is full, over how many shards writers
spread. Each decision carries its reason, in words, for the page.

It is a hint. Whatever memcached forgets or makes up is bounded by the queue's declaration, and
changes when items are folded, never whether.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import pydantic

from rollforward.runtime.clients import Clients
from rollforward.runtime.type_adapters import adapter_of

# What a new figure weighs against the average of those before it.
EWMA_ALPHA = 0.3
# From the time a task is due until its joiner runs, mostly.
DELIVERY_S = 0.05
# So many items a second are no trouble for one epoch: one lock, one range of keys.
ITEMS_PER_S_OF_A_SHARD = 2_000
FIRST_SIZE = 100
MIN_SIZE = 10
TTL_S = 600


@dataclass(frozen=True)
class Limits:
    """What the declaration allows: the most of each."""

    target_latency_s: float
    period_s: float
    max_batch_size: int
    shards: int


@dataclass(frozen=True)
class BatchStats:
    """What one joiner saw: items folded, and how long the batch was open, and its fold took.

    `open_s` is None if the clock of the writer that opened the batch is ahead of the joiner's.
    """

    items: int
    open_s: float | None
    fold_s: float


@dataclass(frozen=True)
class BatchPolicy:
    """How the next batch of a key will be, and why."""

    # memcached may say anything, and JSON has more numbers than time has.
    period_s: Annotated[float, pydantic.Field(allow_inf_nan=False, ge=0, le=1e9)]
    max_batch_size: int
    shards: int
    items_per_s: Annotated[float, pydantic.Field(allow_inf_nan=False, ge=0, le=1e9)] = 0.0
    fold_s: Annotated[float, pydantic.Field(allow_inf_nan=False, ge=0, le=1e9)] = 0.0
    why_period: str = "Nothing has been folded lately: the first item does not wait."
    why_size: str = "A cautious beginning."
    why_shards: str = "One batch at a time is enough."


def first(limits: Limits) -> BatchPolicy:
    """Return how an idle key begins: its first item waits for no other, which may not come."""
    return BatchPolicy(
        period_s=0.0, max_batch_size=min(FIRST_SIZE, limits.max_batch_size), shards=1
    )


def read(clients: Clients, name: str, limits: Limits) -> BatchPolicy:
    """Return what was decided last for a key; within the limits, whatever memcached says."""
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


def record(clients: Clients, name: str, seen: BatchStats, limits: Limits) -> None:
    """Decide how the next batch will be, and store it for all processes."""
    decided = next_policy(read(clients, name, limits), seen, limits)
    clients.cache.set(name, adapter_of(BatchPolicy).dump_json(decided), TTL_S)


def next_policy(before: BatchPolicy, seen: BatchStats, limits: Limits) -> BatchPolicy:
    """Return how the next batch will be after what was seen."""
    rate = before.items_per_s
    if seen.open_s is not None:
        # Writers spread over all shards, and a joiner sees one.
        seen_per_s = seen.items / max(seen.open_s, DELIVERY_S)
        rate = _ewma(rate, before.shards * seen_per_s)
    fold_s = _ewma(before.fold_s, seen.fold_s)
    period_s, why_period = _period(rate, fold_s, limits)
    size, why_size = _size(before.max_batch_size, seen, limits)
    shards, why_shards = _shards(rate, limits)
    return BatchPolicy(period_s, size, shards, rate, fold_s, why_period, why_size, why_shards)


def _ewma(before: float, now: float) -> float:
    return now if not before else before + EWMA_ALPHA * (now - before)


def _period(rate: float, fold_s: float, limits: Limits) -> tuple[float, str]:
    """Wait as long as the promise allows, unless no other item would come."""
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


def _size(before: int, seen: BatchStats, limits: Limits) -> tuple[int, str]:
    """Take what a transaction can do within half of the promise."""
    if seen.fold_s > limits.target_latency_s / 2 and seen.items > MIN_SIZE:
        size = max(min(before, seen.items) // 2, min(MIN_SIZE, limits.max_batch_size))
        return size, f"{seen.items} items took {_ms(seen.fold_s)}: too long, so half as many."
    if (
        seen.items >= before
        and seen.fold_s < limits.target_latency_s / 4
        and before < limits.max_batch_size
    ):
        size = min(2 * before, limits.max_batch_size)
        return size, f"{seen.items} items took only {_ms(seen.fold_s)}: twice as many."
    return before, f"{seen.items} items took {_ms(seen.fold_s)}: that is fine."


def _shards(rate: float, limits: Limits) -> tuple[int, str]:
    shards = min(limits.shards, 1 + int(rate / ITEMS_PER_S_OF_A_SHARD))
    if shards == 1:
        return 1, "One batch at a time is enough."
    return shards, f"{rate:.0f} items a second are spread over {shards} batches."


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"
