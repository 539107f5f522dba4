"""The measured app: a front page of 500 posts, cached and uncached.

bare    queries the ten newest posts, reads each author's entity, and renders the page
cached  the same, with the result of its reads cached in memcached for two seconds
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flask import Flask, render_template_string
from google.cloud import ndb

from benchmarks.harness.testbed import app_for
from rollforward.query_cache import cached
from rollforward.registry import Registry
from rollforward.runtime import Clients

POSTS, AUTHORS, SHOWN = 500, 20, 10
# Short, so that a measurement has many expiries; the lease is longer than any refresh.
TTL_S, STALE_S = 2, 10
PAGE = """<!doctype html><title>Front page</title>
{% for each in headlines %}<article><h2>{{ each.title }}</h2><p>{{ each.teaser }}</p>
<p>{{ each.author }}</p></article>{% endfor %}"""


class BenchPost(ndb.Model):
    """A post."""

    number = ndb.IntegerProperty()
    title = ndb.TextProperty()
    body = ndb.TextProperty()
    author = ndb.TextProperty()


class BenchAuthor(ndb.Model):
    """The author of a post."""

    name = ndb.TextProperty()


@dataclass(frozen=True)
class Headline:
    title: str
    teaser: str
    author: str


def posts() -> list[ndb.Model]:
    """Return the posts and authors of the front page, as entities not stored yet."""
    authors: list[ndb.Model] = [BenchAuthor(id=f"a{i}", name=f"Author {i}") for i in range(AUTHORS)]
    body = "A post of some length, as posts are. " * 60
    return authors + [
        BenchPost(id=f"p{i:04d}", number=i, title=f"Post {i}", body=body, author=f"a{i % AUTHORS}")
        for i in range(POSTS)
    ]


def headlines() -> list[Headline]:
    """Return the posts that the front page shows."""
    newest = BenchPost.query().order(-BenchPost.number).fetch(SHOWN)
    authors = ndb.get_multi([ndb.Key(BenchAuthor, post.author) for post in newest])
    return [
        Headline(post.title, post.body[:200], author.name)
        for post, author in zip(newest, authors, strict=True)
    ]


class Refreshes:
    """The computations of this process, total and most concurrent ones, written to a file."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._path = Path(os.environ["BENCH_COSTS"]) / f"{os.getpid()}.refreshes"
        self._now = self._most = self._all = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        with self._lock:
            self._now, self._all = self._now + 1, self._all + 1
            self._most = max(self._most, self._now)
            self._path.write_text(f"{self._most} {self._all}")
        try:
            yield
        finally:
            with self._lock:
                self._now -= 1


def serve() -> Flask:
    """Return the app."""
    app, clients = app_for(Registry())
    refreshes = Refreshes()

    @cached("bench-front", ttl_s=TTL_S, stale_s=STALE_S)
    def front(clients: Clients) -> list[Headline]:
        with refreshes.counted():
            return headlines()

    @app.get("/bench/<design>")
    def bench(design: str) -> Any:
        shown = front(clients) if design == "cached" else headlines()
        render_template_string(PAGE, headlines=shown)
        return "", 204

    return app
