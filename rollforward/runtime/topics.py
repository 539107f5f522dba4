"""Topics: what somebody watches, a page for one. Whoever changes it publishes a new version.

A version is a random id in memcached: two that differ say that something may have changed, and
nothing else. A change that was committed and not published, as by a crash in between, is seen by
those who look at the thing itself now and then, as every watcher has to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollforward.runtime.clients import Clients

# A topic that nobody publishes for so long has no version any more, which is another one.
KEPT_FOR_S = 6 * 3600
ID_CHARS = 16


def publish(clients: Clients, topic: str) -> None:
    """Give a topic a new version; without memcached nothing happens."""
    clients.cache.set(_key(topic), clients.new_id()[:ID_CHARS].encode(), KEPT_FOR_S)


def version(clients: Clients, topic: str) -> str:
    """Return a topic's version; "" where nobody has published it, or memcached has lost it."""
    return (clients.cache.get(_key(topic)) or b"").decode(errors="replace")


def _key(topic: str) -> str:
    return f"topic:{topic}"
