"""How a fork-join queue is declared, and what follows from that for the batches of a key."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from rollforward.fork_join import adaptive
from rollforward.fork_join.adaptive import BatchPolicy, BatchStats, Limits
from rollforward.fork_join.epochs import Shape, Slot
from rollforward.runtime.clients import Clients

MAX_BATCH_SIZE = 500
MAX_PERIOD_S = 3600.0
MAX_LINGER_S = 0.2
# How long an idempotency key is known at least.
RECEIPTS_FOR = timedelta(hours=24)


@dataclass(frozen=True)
class QueueSettings:
    """A queue as it is declared; `fork_join` says what each of these is.

    Raises:
        ValueError: there can be no such queue.
    """

    name: str
    period_s: float
    max_batch_size: int
    shards: int
    target_latency_s: float | None
    receipts_for: timedelta = RECEIPTS_FOR
    linger_s: float = 0.0
    are_last: Callable[[Clients, str, int], bool] | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9_-]{1,60}", self.name):
            raise ValueError(f"a queue's name is of a-z, 0-9, _ and -, not {self.name!r}")
        if not 0 <= self.period_s <= MAX_PERIOD_S:
            raise ValueError(f"a period lasts from 0 to {MAX_PERIOD_S:g} seconds")
        if not 1 <= self.max_batch_size <= 10_000 or not 1 <= self.shards <= 100:
            raise ValueError("a batch has 1 to 10,000 items, a key 1 to 100 shards")
        if self.target_latency_s is not None and self.target_latency_s <= 0:
            raise ValueError("a latency is more than 0 seconds")
        if not 0 <= self.linger_s <= MAX_LINGER_S:
            raise ValueError(f"an insert waits for company for 0 to {MAX_LINGER_S:g} seconds")

    @property
    def limits(self) -> Limits | None:
        """What a policy may not exceed; None: every batch is as declared."""
        if self.target_latency_s is None:
            return None
        return Limits(self.target_latency_s, self.period_s, self.max_batch_size, self.shards)

    def policy(self, clients: Clients, key: str) -> BatchPolicy | None:
        """Return how the batches of a key are, and why; None: as they are declared."""
        return adaptive.read(clients, self._policy_name(key), self.limits) if self.limits else None

    def record(self, clients: Clients, key: str, stats: BatchStats) -> None:
        """Let the next batch of a key follow from what a joiner saw."""
        if self.limits is not None:
            adaptive.record(clients, self._policy_name(key), stats, self.limits)

    def shape(self, clients: Clients, key: str) -> Shape:
        """Return how the next epoch of a key will be."""
        policy = self.policy(clients, key)
        if policy is None:
            return Shape(self.period_s, self.max_batch_size)
        return Shape(policy.period_s, policy.max_batch_size)

    def slot(self, clients: Clients, key: str) -> Slot:
        """Return where a key's items go now; asked once per commit, for all that share it."""
        if self.shards == 1:
            return Slot(self.name, key)
        policy = self.policy(clients, key)
        shards = self.shards if policy is None else policy.shards
        return Slot(self.name, key, clients.random.randrange(shards))

    def _policy_name(self, key: str) -> str:
        return f"fork-join:policy:{self.name}:{key}"
