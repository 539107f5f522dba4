"""Settings of a fork-join queue, and the shapes of its batches that follow from them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from rollforward.fork_join.batching import adaptive
from rollforward.fork_join.batching.adaptive import BatchPolicy, BatchStats, Limits
from rollforward.fork_join.batching.epochs import Shape, Slot
from rollforward.runtime.clients import Clients

MAX_BATCH_SIZE = 500
MAX_PERIOD_S = 3600.0
MAX_LINGER_S = 0.2
# The least time for which an idempotency key is remembered.
RECEIPTS_FOR = timedelta(hours=24)


@dataclass(frozen=True)
class QueueSettings:
    """The declaration of a queue; `fork_join` describes its fields.

    Raises:
        ValueError: a field is out of range.
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
            raise ValueError(f"name must be a-z, 0-9, _ and -, got {self.name!r}")
        if not 0 <= self.period_s <= MAX_PERIOD_S:
            raise ValueError(
                f"period_s must be between 0 and {MAX_PERIOD_S:g}, got {self.period_s}"
            )
        if not 1 <= self.max_batch_size <= 10_000:
            raise ValueError(
                f"max_batch_size must be between 1 and 10000, got {self.max_batch_size}"
            )
        if not 1 <= self.shards <= 100:
            raise ValueError(f"shards must be between 1 and 100, got {self.shards}")
        if self.target_latency_s is not None and not self.target_latency_s > 0:
            raise ValueError(f"target_latency_s must be positive, got {self.target_latency_s}")
        if not 0 <= self.linger_s <= MAX_LINGER_S:
            raise ValueError(
                f"linger_s must be between 0 and {MAX_LINGER_S:g}, got {self.linger_s}"
            )

    @property
    def limits(self) -> Limits | None:
        """The limits of a policy; None: every batch is as declared."""
        if self.target_latency_s is None:
            return None
        return Limits(self.target_latency_s, self.period_s, self.max_batch_size, self.shards)

    def policy(self, clients: Clients, key: str) -> BatchPolicy | None:
        """Return the policy of a key's batches; None: as declared."""
        return adaptive.read(clients, self._policy_name(key), self.limits) if self.limits else None

    def record(self, clients: Clients, key: str, stats: BatchStats) -> None:
        """Adapt the next batch of a key to the measurements of a joiner."""
        if self.limits is not None:
            adaptive.record(clients, self._policy_name(key), stats, self.limits)

    def shape(self, clients: Clients, key: str) -> Shape:
        """Return the shape of a key's next epoch."""
        policy = self.policy(clients, key)
        if policy is None:
            return Shape(self.period_s, self.max_batch_size)
        return Shape(policy.period_s, policy.max_batch_size)

    def slot(self, clients: Clients, key: str) -> Slot:
        """Return the slot of a key's items; called once per commit, for all that share it."""
        if self.shards == 1:
            return Slot(self.name, key)
        policy = self.policy(clients, key)
        shards = self.shards if policy is None else policy.shards
        return Slot(self.name, key, clients.random.randrange(shards))

    def _policy_name(self, key: str) -> str:
        return f"fork-join:policy:{self.name}:{key}"
