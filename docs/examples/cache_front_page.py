"""A query that everyone shares, read from Datastore once and served to all from memcached.

    .venv/bin/python -m docs.examples.cache_front_page

A hundred visitors look at a front page, a post is published, and a hundred more come. The program
starts its own services: see raise_prices.py. Without memcached each visitor reads Datastore.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from google.cloud import ndb

from docs.examples.raise_prices import ROOT, open_clients
from rollforward.datastore import transact
from rollforward.local.cloudtasks.emulator import running
from rollforward.local.services.standalone import datastore_emulator, memcached
from rollforward.query_cache import cached
from rollforward.runtime import Clients, open_cache

VISITORS = 100


# howto: from here
class Story(ndb.Model):
    number = ndb.IntegerProperty()
    title = ndb.TextProperty()


@dataclass(frozen=True)
class Headline:
    number: int
    title: str


@cached("front-page", ttl_s=60)
def front_page(clients: Clients, limit: int) -> list[Headline]:
    posts = Story.query().order(-Story.number).fetch(limit)
    return [Headline(post.number, post.title) for post in posts]


def publish(clients: Clients, number: int, title: str) -> None:
    transact(lambda: Story(id=f"post-{number:04d}", number=number, title=title).put())
    front_page.invalidate(clients)  # After the commit; earlier, old posts could be cached again.


# howto: to here


def play(clients: Clients) -> str:
    """Serve visitors, publish, serve more; return the titles they saw, and the origin."""
    with clients.context():
        for number in range(20):
            publish(clients, number, f"Post {number}")
        seen = [front_page(clients, 10)[0].title for _ in range(VISITORS)]
        publish(clients, 20, "News")
        seen += [front_page(clients, 10)[0].title for _ in range(VISITORS)]
        stats = front_page.stats(clients)
    titles = ", ".join(f"{seen.count(title)} saw {title}" for title in dict.fromkeys(seen))
    return f"{titles}; {stats.hits} from memcached, {stats.misses} from Datastore"


def main() -> None:
    """Start the services, serve the visitors, and print the result."""
    with (
        datastore_emulator() as datastore,
        memcached() as cache,
        running(queue_yaml=ROOT / "queue.yaml", dispatching=False) as queue,
    ):
        clients = replace(open_clients(datastore, queue), cache=open_cache(cache))
        print(play(clients))  # noqa: T201


if __name__ == "__main__":
    main()
