"""Latencies in the simulation of streams: those of a profile, and others that it lacks.

The profile of the cloud (rollforward/cloud_profile/cloud.toml) has the latency of each call, and
how often one row may be written. The rest is said here: the processor's time is measured on the
machine of docs/performance/streams.md (`python -m benchmarks.streams_cost`: 20 to 50 µs a
record), the time that each further row of a query takes is a guess.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from rollforward.cloud_profile import BUNDLED, Profile, load
from rollforward.streams.storage.remote_calls import Key

CALLS = {
    "read": "lookup",
    "snapshot": "lookup",
    "scankeys": "query",
    "scan": "query",
    "commit": "commit",
    "createtasks": "create_named_task",
    "dispatch": "dispatch",
}
FOUND_MS = 0.02  # Each row that a query returns.
CALL_MS, RECORD_MS = 0.3, 0.03  # Of the processor: a call; a record that an inbox gets, or gives.


class ContendedError(Exception):
    """A commit would have to wait for too long until it may write a row."""


@dataclass
class Latencies:
    """Latencies that are drawn from a profile, and the pace at which one row is written.

    Attributes:
        is_limited: Whether a row is written at the profile's rate at most; else its commits only
            follow each other.
    """

    profile: Profile = field(default_factory=lambda: load(BUNDLED))
    is_limited: bool = True
    _tickets: dict[Key, tuple[int, int]] = field(default_factory=dict)

    def draw(self, call: str, chance: random.Random, items: int = 1, found: int = 0) -> float:
        """Return how many milliseconds a call takes, about so many rows or tasks."""
        return 1000 * self.profile.draw(CALLS[call], chance, items) + FOUND_MS * found

    def wait_for(self, key: Key, now_ms: float) -> float:
        """Return how long a commit has to wait until it may write a row.

        By the rule for an app as slow as the cloud (rollforward/runtime/channel/write_limit.py).

        Raises:
            ContendedError: it would be too long.
        """
        if not self.is_limited:
            return 0.0
        per_s = self.profile["entity_writes.per_s"]
        window, elapsed_s = divmod(now_ms / 1000, self.profile["entity_writes.window_s"])
        before, count = self._tickets.get(key, (0, 0))
        count = count + 1 if before == window else 1
        wait_s = (count - 1) / per_s - elapsed_s
        if wait_s > self.profile["entity_writes.max_wait_s"]:
            raise ContendedError
        self._tickets[key] = int(window), count
        return max(0.0, 1000 * wait_s)

    @property
    def abort_ms(self) -> float:
        return 1000 * self.profile["entity_writes.abort_after_s"]
