"""Settings of a queue as queue.yaml, gcloud and the Cloud Tasks API write them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

UNLIMITED = -1


@dataclass(frozen=True)
class QueueSettings:
    """A queue's limits.

    Attributes:
        max_attempts: Deliveries after which the queue drops a task; UNLIMITED: never.
        max_age_s: Seconds after which it does; 0: never.
    """

    name: str
    rate_per_s: float
    burst: int
    max_concurrent: int
    min_backoff_s: float
    max_backoff_s: float
    max_doublings: int = 16
    max_attempts: int = UNLIMITED
    max_age_s: float = 0
    is_paused: bool = False

    def yaml_lines(self, purpose: str) -> list[str]:
        """Return the queue's entry in queue.yaml, below a comment."""
        return [
            f"  # {purpose}",
            f"  - name: {self.name}",
            f"    rate: {self.rate_per_s:g}/s",
            f"    bucket_size: {self.burst}",
            f"    max_concurrent_requests: {self.max_concurrent}",
            "    retry_parameters:",
            f"      min_backoff_seconds: {self.min_backoff_s:g}",
            f"      max_backoff_seconds: {self.max_backoff_s:g}",
        ]

    def gcloud_options(self) -> list[str]:
        """Return the options of `gcloud tasks queues create` and `update`."""
        return [
            "--max-attempts=unlimited",
            f"--max-dispatches-per-second={self.rate_per_s:g}",
            f"--max-concurrent-dispatches={self.max_concurrent}",
            f"--min-backoff={self.min_backoff_s:g}s",
            f"--max-backoff={self.max_backoff_s:g}s",
            f"--max-doublings={self.max_doublings}",
        ]


def suggested(name: str, patterns: frozenset[str] = frozenset()) -> QueueSettings:
    """Return settings for a new queue.

    Args:
        patterns: The patterns whose tasks go there.
    """
    if name == "outbox":  # At most one task a partition does any work.
        return QueueSettings(name, 20, 20, 4, 0.5, 5)
    if "streams" in patterns:  # A task works for up to 20 s; another interval's worker waits.
        return QueueSettings(name, 200, 100, 32, 0.1, 2, 4)
    return QueueSettings(name, 100, 100, 8, 0.2, 5)


def of_message(queue: Any) -> QueueSettings:
    """Return the settings of a queue of the Cloud Tasks API (a v2 message)."""
    limits, retries = queue.rate_limits, queue.retry_config
    return QueueSettings(
        name=str(queue.name).rpartition("/")[2],
        rate_per_s=limits.max_dispatches_per_second,
        burst=limits.max_burst_size,
        max_concurrent=limits.max_concurrent_dispatches,
        min_backoff_s=_seconds(retries.min_backoff),
        max_backoff_s=_seconds(retries.max_backoff),
        max_doublings=retries.max_doublings,
        max_attempts=retries.max_attempts,
        max_age_s=_seconds(retries.max_retry_duration),
        is_paused=limits.max_dispatches_per_second == 0,
    )


def of_json(queue: Mapping[str, Any]) -> QueueSettings:
    """Return the settings of a queue in `gcloud tasks queues list --format=json`."""
    limits, retries = queue.get("rateLimits", {}), queue.get("retryConfig", {})
    return QueueSettings(
        name=str(queue.get("name", "")).rpartition("/")[2],
        rate_per_s=float(limits.get("maxDispatchesPerSecond", 500)),
        burst=int(limits.get("maxBurstSize", 100)),
        max_concurrent=int(limits.get("maxConcurrentDispatches", 1000)),
        min_backoff_s=_duration_s(retries.get("minBackoff", "0.1s")),
        max_backoff_s=_duration_s(retries.get("maxBackoff", "3600s")),
        max_doublings=int(retries.get("maxDoublings", 16)),
        max_attempts=int(retries.get("maxAttempts", 100)),
        max_age_s=_duration_s(retries.get("maxRetryDuration", "0s")),
        is_paused=queue.get("state") in ("PAUSED", "DISABLED"),
    )


def _seconds(duration: Any) -> float:
    return float(duration.seconds + duration.nanos / 1e9)


def _duration_s(text: str) -> float:
    return float(text.removesuffix("s") or 0)
