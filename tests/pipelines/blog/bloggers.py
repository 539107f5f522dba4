"""Who writes in the tests of the blog, and what."""

from __future__ import annotations

from typing import Any

from models.blog import Comment, Post, post_id, post_key
from pipelines.blog import comments, posts
from pipelines.blog.drafts import Author, Draft
from pipelines.blog.posts import DEMO
from pipelines.blog.views import comment_counts
from rollforward.paging import PageTokens
from rollforward.testing.services import SECRET
from tests.infra.world import World

ADA, BOB = Author("a" * 16, "Ada"), Author("b" * 16, "Bob")
TOKENS = PageTokens([SECRET])
DRAFT = Draft("On pages", "They *begin* beyond a row.", ("paging", "python"))


def form(number: int, prefix: str = "f") -> str:
    """Return the id of a form."""
    return f"{prefix}{number}".rjust(32, "0")


def written(world: World, count: int, *, author: Author = ADA, blog: str = DEMO) -> list[int]:
    """Write some posts; return their numbers."""
    with world.context():
        return [
            posts.create_post(world.clients, blog, form(number, blog), author, DRAFT)
            for number in range(count)
        ]


def said(world: World, number: int, text: str, author: Author = ADA, **how: Any) -> str:
    """Write a comment on a post; return its name."""
    form_id = how.pop("form_id", world.clients.new_id())
    with world.clients.context():
        return comments.add_comment(
            world.clients, post_key(DEMO, number), form_id, author, text, **how
        )


def listed(world: World, **how: Any) -> list[int]:
    """Return the numbers of all posts as a reader pages through them."""
    with world.context():
        return [post.number for post in walk(lambda **page: posts.posts_page(**page), **how)]


def walk(read: Any, **how: Any) -> list[Any]:
    page = read(tokens=TOKENS, blog=DEMO, **how)
    seen = [*page.items]
    while token := page.next_page_token:
        page = read(tokens=TOKENS, blog=DEMO, page_token=token, **how)
        seen += page.items
    return seen


def threads(world: World, number: int, page_size: int = 3) -> list[Comment]:
    """Return all comments on a post as a reader pages through them."""
    with world.context():
        return walk(
            lambda tokens, blog, **page: comments.threads_page(
                tokens, post_id(blog, number), **page
            ),
            page_size=page_size,
        )


def counted(world: World, number: int) -> int:
    """Return how many comments a post is said to have, when all has settled."""
    world.settle()
    with world.context():
        post = post_key(DEMO, number).get() or Post(key=post_key(DEMO, number))
        return comment_counts(world.clients, [post])[0]
