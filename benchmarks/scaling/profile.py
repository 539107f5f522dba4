"""Latencies in the simulation of streams: a profile's, and others that it lacks.

The profile of the cloud (rollforward/cloud_profile/cloud.toml) has the latency of each call, and
the rate at which one row may be written. This module adds two more. The processor time was measured
on the machine of docs/performance/streams.md (`python -m benchmarks.streams_cost`: 20 to 50 µs a
record). The time for each further row of a query is a guess.
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
FOUND_MS = 0.02  # For each row that a query returns.
CALL_MS, RECORD_MS = 0.3, 0.03  # Processor time of a call, and of a record in or out of an inbox.


class ContendedError(Exception):
    """A commit would have to wait for too long before it may write a row."""


@dataclass
class Latencies:
    """Random latencies from a profile, and the pace of writes to one row.

    Attributes:
        is_limited: Whether the profile's rate limits the writes of a row; otherwise its commits are
            only serialized.
    """

    profile: Profile = field(default_factory=lambda: load(BUNDLED))
    is_limited: bool = True
    _tickets: dict[Key, tuple[int, int]] = field(default_factory=dict)

    def draw(self, call: str, chance: random.Random, items: int = 1, returned: int = 0) -> float:
        """Return the milliseconds of a call, by the rows or tasks that it names and returns."""
        return 1000 * self.profile.draw(CALLS[call], chance, items) + FOUND_MS * returned

    def wait_for(self, key: Key, now_ms: float) -> float:
        """Return the milliseconds that a commit has to wait before it may write a row.

        The rule is the one for an app with a cloud profile
        (rollforward/runtime/channel/write_limit.py).

        Raises:
            ContendedError: the wait would be too long.
        """
        if not self.is_limited:
            return 0.0
        per_s = self.profile["entity_writes.per_s"]
        window, elapsed_s = divmod(now_ms / 1000, self.profile["entity_writes.window_s"])
        counted_window, count = self._tickets.get(key, (0, 0))
        count = count + 1 if counted_window == window else 1
        wait_s = (count - 1) / per_s - elapsed_s
        if wait_s > self.profile["entity_writes.max_wait_s"]:
            raise ContendedError
        self._tickets[key] = int(window), count
        return max(0.0, 1000 * wait_s)

    @property
    def abort_ms(self) -> float:
        return 1000 * self.profile["entity_writes.abort_after_s"]
