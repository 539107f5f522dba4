"""Topics: what a page or another watcher follows. Each change publishes a new version.

A version is a random id in memcached. Two that differ say that something may have changed, and no
more. A change that was committed and not published, as by a crash in between, is seen by watchers
that also poll now and then, as each of them must.
"""

from __future__ import annotations

from rollforward.runtime.cache import Cache
from rollforward.runtime.texts import plain_text

# A topic's version expires after six hours, which watchers see as a change.
TTL_S = 6 * 3600
ID_CHARS = 16


def publish(cache: Cache, topic: str, new_id: str) -> None:
    """Give a topic a new version; without memcached nothing happens."""
    cache.set(_key(topic), new_id[:ID_CHARS].encode(), TTL_S)


def version(cache: Cache, topic: str) -> str:
    """Return a topic's version; "" if it has none, or memcached has lost it."""
    return (cache.get(_key(topic)) or b"").decode(errors="replace")


def _key(topic: str) -> str:
    return f"topic:{plain_text(topic)}"
