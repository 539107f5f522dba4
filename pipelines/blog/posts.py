"""Posts: each takes the blog's next number in the transaction that writes it.

The number is the post's key, its address and its place in the list. Numbers have no gaps but those
of deleted posts, and never come back.

A form makes its post once: its receipt, the index and the post commit together.

Lost on failure: nothing. Cost of a post: 2 reads, 3 writes; of a page of them: a read for each
post, and one.
Source: B. Slatkin, "Building scalable web apps with Google App Engine", 2008, "Building a blog".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from google.cloud import ndb

from models.blog import (
    BlogIndex,
    Comment,
    Post,
    PostReceipt,
    all_posts,
    comments_of,
    index_key,
    places_of,
    post_id,
    post_key,
    posts_tagged,
    receipt_key,
)
from pipelines.blog.drafts import Author, Draft
from pipelines.blog.markdown import excerpt_of
from pipelines.blog.views import BLOG, COMMENT_COUNTS
from rollforward import outbox
from rollforward.continuations import EntitySource, job, start
from rollforward.datastore import transact
from rollforward.paging import Listing, Page, PageTokens, QueryRange
from rollforward.runtime import Clients, naive_utc
from rollforward.tasks import hashed_name, task

DEMO = "demo"
# A comment that found its post is committed by then: no request takes longer.
LATE_S = 900.0
NEWEST_POSTS = Listing("blog-posts", page_size=20, max_page_size=50, descending=True)


class UnknownPostError(LookupError):
    """There is no post of this number, or another author wrote it."""


def create_post(clients: Clients, blog: str, form_id: str, author: Author, draft: Draft) -> int:
    """Publish a post, once for each form; return its number."""
    written_at = naive_utc(clients.clock.now())

    def body() -> int:
        receipt, index = ndb.get_multi([receipt_key(form_id), index_key(blog)])
        if receipt is not None:  # The guard: this form has made its post.
            return int(receipt.number)
        index = index or BlogIndex(key=index_key(blog))
        index.last_number += 1
        number: int = index.last_number
        post = new_post(blog, number, author, draft, written_at)
        ndb.put_multi([index, post, PostReceipt(key=receipt_key(form_id), number=number)])
        return number

    return transact(body)


def new_post(blog: str, number: int, author: Author, draft: Draft, created: Any) -> Post:
    """Return a post that has taken its number."""
    return Post(
        key=post_key(blog, number),
        author_id=author.id,
        author=author.name,
        created=created,
        **_written(blog, number, draft, created),
    )


def change_post(clients: Clients, blog: str, number: int, author: Author, draft: Draft) -> None:
    """Save an author's changes to a post; a repeated call changes nothing.

    Raises:
        UnknownPostError: there is none of this number, or another author wrote it.
    """
    written_at = naive_utc(clients.clock.now())

    def body() -> None:
        post = own_post(blog, number, author)
        if Draft(post.title, post.body, tuple(post.tags)) != draft:
            post.populate(**_written(blog, number, draft, written_at))
            post.put()

    transact(body)


def delete_post(clients: Clients, blog: str, number: int, author: Author) -> None:
    """Delete a post; a job deletes its comments.

    Raises:
        UnknownPostError: there is none of this number, or another author wrote it.
    """

    def body() -> None:
        own_post(blog, number, author).key.delete()
        post = post_id(blog, number)
        outbox.enqueue(clients, begin_deletion, PostArgs(post))
        outbox.enqueue(clients, begin_deletion, PostArgs(post, is_late=True), delay_s=LATE_S)

    transact(body)


def own_post(blog: str, number: int, author: Author | None) -> Post:
    """Return a post that this author wrote.

    Raises:
        UnknownPostError: there is none of this number, or another author wrote it.
    """
    post = post_of(blog, number)
    if author is None or post.author_id != author.id:
        raise UnknownPostError(f"{author} did not write post {number}")
    return post


def author_id_of(blog: str, number: int) -> str:
    """Return the id of a post's author; "": the post is gone."""
    post = post_key(blog, number).get()
    return post.author_id if post is not None else ""


def post_of(blog: str, number: int) -> Post:
    """Return a post, by its key.

    Raises:
        UnknownPostError: there is none of this number.
    """
    post = post_key(blog, number).get()
    if post is None:
        raise UnknownPostError(f"there is no post {number}")
    return post  # type: ignore[no-any-return]


def posts_page(
    tokens: PageTokens,
    blog: str,
    *,
    tag: str = "",
    page_token: str | None = None,
    page_size: int | str | None = None,
) -> Page[Post]:
    """Return a page of posts, newest first; those with a tag, if one is given.

    Raises:
        BadPageTokenError: the token belongs to another list.
        BadPageSizeError: the size is not a number.
    """
    prefix = posts_tagged(blog, tag) if tag else all_posts(blog)
    rows = QueryRange(Post.query(), Post.places, prefix=prefix)
    filters = {"blog": blog, "tag": tag}
    return NEWEST_POSTS.page(
        tokens, rows, page_token=page_token, page_size=page_size, filters=filters
    )


def _written(blog: str, number: int, draft: Draft, updated: Any) -> dict[str, Any]:
    return {
        "title": draft.title,
        "body": draft.body,
        "excerpt": excerpt_of(draft.body),
        "tags": list(draft.tags),
        "places": places_of(blog, number, list(draft.tags)),
        "updated": updated,
    }


# Comments of a deleted post


@dataclass(frozen=True)
class PostArgs:
    """A post, by its name; `is_late`: the run for comments in flight when it was deleted."""

    post: str
    is_late: bool = False


@task("/tasks/blog/delete-comments")
def begin_deletion(clients: Clients, args: PostArgs) -> None:
    """Start to delete the comments on a post that is gone, once."""
    run_id = hashed_name("delete-comments", args.post, args.is_late)[:32]
    start(clients, delete_comments, args, run_id=run_id, chains=1)


@job(
    "delete-comments",
    queue="imports",
    source=lambda args: EntitySource(Comment, key_range=comments_of(args.post)),
)
def delete_comments(clients: Clients, args: PostArgs, comments: Sequence[Comment]) -> None:
    """Delete some comments and their counts, in the commit that holds their receipts."""
    # Read again: its author may have deleted one since, who has counted that.
    stored: list[Comment | None] = ndb.get_multi([comment.key for comment in comments])
    existing = [comment for comment in stored if comment is not None]
    BLOG.delete_in_transaction(clients, *(comment.key for comment in existing))
    if counted := sum(not comment.is_deleted for comment in existing):
        COMMENT_COUNTS.increment_in_transaction(clients, {args.post: -counted})
