"""The front page of the blog, cached for all visitors.

`front_page` reads it. Its result consists of texts and numbers only, so `newest` can cache the
first page in memcached. Publishing, changing or deleting a post invalidates that entry. A new
comment does not, so its count there may be a minute old.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from google.cloud import ndb

from models.blog import Post
from pipelines.blog.posts import posts_page
from pipelines.blog.views import comment_counts, most_discussed
from rollforward.paging import PageTokens
from rollforward.query_cache import CachedQuery
from rollforward.runtime import Clients

DISCUSSED_SHOWN = 5
NEWEST = "blog-newest"
KEPT_S = 60


@dataclass(frozen=True)
class Summary:
    """A post in a list; times are in UTC, as ISO 8601 has them."""

    number: int
    title: str
    excerpt: str
    author: str
    created: str
    tags: list[str]
    comments: int


@dataclass(frozen=True)
class Discussed:
    """A post with its comments of this week."""

    number: int
    title: str
    comments: int


@dataclass(frozen=True)
class Front:
    """A page of posts, and the posts that are discussed most this week."""

    posts: list[Summary]
    previous_page_token: str | None
    next_page_token: str | None
    discussed: list[Discussed]


def front_page(
    clients: Clients,
    tokens: PageTokens,
    blog: str,
    *,
    tag: str = "",
    page_token: str | None = None,
    page_size: int | str | None = None,
) -> Front:
    """Return a page of the blog, newest posts first.

    Raises:
        BadPageTokenError: the token belongs to another list.
        BadPageSizeError: the size is not a number.
    """
    page = posts_page(tokens, blog, tag=tag, page_token=page_token, page_size=page_size)
    return Front(
        summaries(clients, page.items),
        page.previous_page_token,
        page.next_page_token,
        discussed_this_week(clients),
    )


def newest(tokens: PageTokens) -> CachedQuery[[str], Front]:
    """Return the cached query of a blog's first page; an entry lives for a minute.

    Args:
        tokens: Signs the page tokens in the addresses.
    """

    def first_page(clients: Clients, blog: str) -> Front:
        return front_page(clients, tokens, blog)

    return CachedQuery(first_page, NEWEST, returns=Front, ttl_s=KEPT_S)


def summaries(clients: Clients, posts: Sequence[Post]) -> list[Summary]:
    """Return posts as a list shows them, with their comments counted."""
    counts = comment_counts(clients, posts)
    return [
        Summary(
            post.number,
            post.title,
            post.excerpt,
            post.author,
            post.created.isoformat(),
            list(post.tags),
            count,
        )
        for post, count in zip(posts, counts, strict=True)
    ]


def discussed_this_week(clients: Clients) -> list[Discussed]:
    """Return the posts with the most comments this week, without deleted ones."""
    ranked = most_discussed(clients.clock.now(), DISCUSSED_SHOWN)
    posts = ndb.get_multi([ndb.Key(Post, name) for name, _ in ranked])
    return [
        Discussed(post.number, post.title, count)
        for post, (_, count) in zip(posts, ranked, strict=True)
        if post is not None
    ]
