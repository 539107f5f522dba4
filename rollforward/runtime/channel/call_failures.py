"""The remote calls of a process that have failed, by service, method and status code."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from typing import NamedTuple

SERVICES = {
    "google.datastore.v1.Datastore": "Datastore",
    "google.cloud.tasks.v2.CloudTasks": "Cloud Tasks",
}
# A service that answers so is not well, or refuses the app. Other codes answer one request: a race
# is lost, a name is taken, a row is too large.
SICK = frozenset(
    {
        *("UNAVAILABLE", "DEADLINE_EXCEEDED", "INTERNAL", "UNKNOWN", "RESOURCE_EXHAUSTED"),
        *("PERMISSION_DENIED", "UNAUTHENTICATED"),
    }
)
RECENT_S = 60.0
# Of one method and code; more are shown as so many.
MAX_RECENT = 1_000


class CallFailure(NamedTuple):
    """The failure of a call: "Datastore", "Commit", "UNAVAILABLE"."""

    service: str
    method: str
    code: str


def _ignore(failure: CallFailure) -> None:
    """Tell nobody of a failure."""


class CallFailures:
    """The failed calls of a process."""

    def __init__(self, elapsed_s: Callable[[], float] = time.monotonic) -> None:
        """Begin without failures.

        Args:
            elapsed_s: A clock that never goes back.
        """
        self.on_failure: Callable[[CallFailure], None] = _ignore
        self._elapsed_s = elapsed_s
        self._lock = threading.Lock()
        self._times: dict[CallFailure, deque[float]] = defaultdict(lambda: deque(maxlen=MAX_RECENT))

    def note(self, service: str, method: str, code: str) -> None:
        """Count a failed call.

        Args:
            service: Its full name: "google.datastore.v1.Datastore".
        """
        name = SERVICES.get(service, service.rpartition(".")[2])
        failure = CallFailure(name, method, code)
        if code in SICK:
            with self._lock:
                self._times[failure].append(self._elapsed_s())
        self.on_failure(failure)

    def recent(self) -> list[tuple[CallFailure, int]]:
        """Return the failures of the last minute that tell of a sick service, the most first."""
        since_s = self._elapsed_s() - RECENT_S
        with self._lock:
            counts = Counter(
                {
                    failure: sum(at_s >= since_s for at_s in times)
                    for failure, times in self._times.items()
                }
            )
        return [(failure, count) for failure, count in counts.most_common() if count]
