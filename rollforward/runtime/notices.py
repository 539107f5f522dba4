"""Notices of changes to the watchers of topics, at most about 40 a second for a topic.

A page fetches again after a notice, whatever the number of changes, so changes that come together
share one. The first change of a topic is published at once; those of the 50 ms after it share the
next notice. A notice costs a round trip to memcached, a tenth of an insert over HTTP.

Lost on failure: the last notice of a killed process. Watchers poll, too (rollforward/runtime/
topics.py).
"""

from __future__ import annotations

import threading

from rollforward.runtime.clients import Clients
from rollforward.runtime.flusher import PeriodicFlusher

PERIOD_S = 0.05
OWNER = "notices"


class Notices:
    """The topics that this process has published within the last 50 ms."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._lock = threading.Lock()
        # By topic, whether it has changed since its notice.
        self._has_changed: dict[str, bool] = {}
        self._flusher = PeriodicFlusher(clients, OWNER, self, PERIOD_S)

    def publish(self, topic: str) -> None:
        """Notify the watchers of a topic, after the commit that changed its subject."""
        with self._lock:
            is_repeated = topic in self._has_changed
            self._has_changed[topic] = is_repeated
        if not is_repeated:
            self._clients.publish(topic)
        self._flusher.wake()  # Each time: no thread may have been free to start before.

    def is_empty(self) -> bool:
        """Return whether no topic waits for its notice or for the end of its 50 ms."""
        return not self._has_changed

    def store(self) -> None:
        """Publish the topics that have changed since their notices."""
        with self._lock:
            # Emptied before the notices: a change that comes meanwhile has a notice of its own.
            topics, self._has_changed = self._has_changed, {}
        for topic, has_changed in topics.items():
            if has_changed:
                self._clients.publish(topic)


def notices(clients: Clients) -> Notices:
    """Return this process's notices."""
    return clients.process_state.get_or_create(OWNER, lambda: Notices(clients))
