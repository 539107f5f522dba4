"""Comments: concurrent writes to one post, without a lock between authors.

A comment's key is its bucket, its time, its author and its number among the author's comments. The
number comes from a row of the author's own, so comments of two authors commit in parallel; it
makes the key unique even if a clock jumps (I4). Readers merge the buckets of a post.

The same comments have two orders: by thread, a reply below its parent, for reading; and by time,
for new arrivals. A comment that commits late, or by a clock that is behind, still arrives:
`arrivals_after` looks back over CLOCK_SKEW, and `Arrivals` names the comments of that time that the
reader has seen.

Lost on failure: nothing. Cost of a comment: 5 reads and 6 writes, in one transaction, and the
updates of its views; of a page: about one read for each comment (rollforward/paging), and none for
new arrivals.
Source: B. Slatkin, "Building scalable web apps with Google App Engine", 2008, "Comments".
"""

from __future__ import annotations

import datetime
import hashlib
from dataclasses import dataclass
from typing import Any

from google.cloud import ndb

from models.blog import (
    BUCKETS,
    REPLY,
    Comment,
    Commenter,
    CommentReceipt,
    bucket,
    comment_key,
    comment_receipt_key,
    commenter_key,
    thread_of,
)
from pipelines.blog.drafts import Author
from pipelines.blog.posts import UnknownPostError
from pipelines.blog.views import BLOG, COMMENT_COUNTS
from rollforward.datastore import transact
from rollforward.paging import (
    Listing,
    Merged,
    Page,
    PageTokens,
    QueryRange,
    order_key,
)
from rollforward.runtime import Clients, naive_utc

THREADS = Listing("blog-comments", page_size=30, max_page_size=100)
# Replies to deeper ones are listed at the same depth.
MAX_DEPTH = 5
# How far the clocks of two workers may be apart, and how long a commit may take. Under a load that
# leaves too many comments there: less.
CLOCK_SKEW = datetime.timedelta(seconds=60)
LOOK_BACK_S = (60, 10, 2, 0)
MAX_NEW = 100
MAX_NAME_BYTES = 200
MAX_ORDER_CHARS = 100


class UnknownCommentError(LookupError):
    """This post has no comment of this name, or another author wrote it."""


def add_comment(
    clients: Clients, post_key: Any, form_id: str, author: Author, text: str, *, reply_to: str = ""
) -> str:
    """Add a comment, once for each form; return its name.

    Args:
        reply_to: The name of the comment it replies to; "": it begins a thread.

    Raises:
        UnknownPostError: the post is gone.
        UnknownCommentError: there is no comment on this post to reply to.
    """
    post = post_key.id()
    # Not in the transaction: the Datastore emulator lets two that read one row collide.
    if post_key.get() is None:
        raise UnknownPostError(f"there is no {post}")
    above = _path_of(post, reply_to) if reply_to else ""
    created_at = naive_utc(clients.clock.now())

    def body() -> str:
        key = commenter_key(post.partition("|")[0], author.id)
        commenter, receipt = ndb.get_multi([key, comment_receipt_key(form_id)])
        if receipt is not None:  # The guard: this form has made its comment.
            return str(receipt.comment)
        commenter = commenter or Commenter(key=key)
        comment = _next_comment(commenter, post, author, text, above, created_at)
        new_receipt = CommentReceipt(key=comment_receipt_key(form_id), comment=comment.key.id())
        ndb.put_multi([commenter, new_receipt])
        BLOG.save_in_transaction(clients, comment)
        COMMENT_COUNTS.increment_in_transaction(clients, {post: 1})
        return str(comment.key.id())

    return transact(body)


def _next_comment(
    commenter: Commenter,
    post: str,
    author: Author,
    text: str,
    above: str,
    created_at: datetime.datetime,
) -> Comment:
    """Return an author's next comment; an author's comments keep their order if a clock jumps."""
    newest_at = commenter.last_at
    at = (
        newest_at
        if newest_at is not None and created_at < newest_at <= created_at + CLOCK_SKEW
        else created_at
    )
    commenter.last_number += 1
    commenter.last_at = at
    return new_comment(post, author, commenter.last_number, at, text, above)


def new_comment(
    post: str, author: Author, number: int, at: datetime.datetime, text: str, above: str = ""
) -> Comment:
    """Return a comment that has taken its number.

    Args:
        above: The order keys of the comments it replies to.
    """
    order = order_key(at, author.id, number)
    path = f"{above}{REPLY}{order}" if above else order
    return Comment(
        key=comment_key(post, order, author.id),
        text=text,
        author_id=author.id,
        author=author.name,
        created=at,
        thread=thread_of(post, path),
    )


def delete_comment(clients: Clients, post: str, name: str, author: Author) -> None:
    """Delete an author's own comment: its place stays, for the replies, and its text goes.

    Raises:
        UnknownCommentError: there is none of this name, or another author wrote it.
    """

    def body() -> None:
        comment = comment_of_post(post, name)
        if comment.author_id != author.id:
            raise UnknownCommentError(name)
        if not comment.is_deleted:
            comment.populate(is_deleted=True, text="")
            BLOG.save_in_transaction(clients, comment)
            COMMENT_COUNTS.increment_in_transaction(clients, {post: -1})

    transact(body)


def comment_of_post(post: str, name: str) -> Comment:
    """Return a comment on a post, by its name.

    Raises:
        UnknownCommentError: there is none.
    """
    is_named_so = name.startswith(f"{post}|") and len(name.encode()) <= MAX_NAME_BYTES
    comment = ndb.Key(Comment, name).get() if is_named_so else None
    if comment is None:
        raise UnknownCommentError(f"there is no comment {name!r:.80} on {post}")
    return comment  # type: ignore[no-any-return]


def comment_by_order(post: str, order: str) -> Comment:
    """Return a comment on a post, by its order key, as addresses have it.

    Raises:
        UnknownCommentError: there is none.
    """
    parts = order.split("!")
    if len(parts) != 3 or len(order) > MAX_ORDER_CHARS:
        raise UnknownCommentError(f"{order!r:.80} is no comment")
    return comment_of_post(post, comment_key(post, order, parts[1]).id())


def _path_of(post: str, name: str) -> str:
    """Return the path that a reply to a comment begins with."""
    path = comment_of_post(post, name).path
    return path if path.count(REPLY) < MAX_DEPTH else path.rpartition(REPLY)[0]


# Reading


def threads_page(
    tokens: PageTokens,
    post: str,
    *,
    page_token: str | None = None,
    page_size: int | str | None = None,
) -> Page[Comment]:
    """Return a page of the comments on a post: oldest first, replies below their parents.

    Raises:
        BadPageTokenError: the token belongs to another list.
        BadPageSizeError: the size is not a number.
    """
    return THREADS.page(
        tokens, _threads(post), page_token=page_token, page_size=page_size, filters={"post": post}
    )


def token_of(tokens: PageTokens, comment: Comment) -> str:
    """Return the token of the page of comments that begins with this one."""
    number = int(comment.thread.split("|", 3)[2])
    position = Merged.position(number, comment.path)
    post = comment.post_id
    return THREADS.token_at(tokens, _threads(post), position, filters={"post": post})


def _threads(post: str) -> Merged[Comment]:
    ranges = (
        QueryRange(Comment.query(), Comment.thread, prefix=bucket(post, number))
        for number in range(BUCKETS)
    )
    return Merged(*ranges)


@dataclass(frozen=True)
class Arrivals:
    """A reader's position in a post: comments since a time are new, except the known ones."""

    since: datetime.datetime
    known: frozenset[str] = frozenset()


def arrivals_from(clients: Clients, post: str) -> Arrivals:
    """Return the position of a page read now, for a later `arrivals_after`."""
    read_at = naive_utc(clients.clock.now())
    for window_s in LOOK_BACK_S:
        since = read_at - datetime.timedelta(seconds=window_s)
        names = _names_since(post, since)
        if len(names) < MAX_NEW:  # Else too many to name: look back less far.
            break
    return Arrivals(since, frozenset(map(_digest, names[:MAX_NEW])))


def arrivals_after(
    clients: Clients, post: str, arrivals: Arrivals
) -> tuple[list[Comment], Arrivals]:
    """Return at most MAX_NEW comments committed since, oldest first, and the next position."""
    names = _names_since(post, arrivals.since)
    seen_before = [name for name in names if _digest(name) in arrivals.known]
    arrived = [name for name in names if _digest(name) not in arrivals.known][:MAX_NEW]
    stored = ndb.get_multi([ndb.Key(Comment, name) for name in arrived])
    comments = [comment for comment in stored if comment is not None]
    # The next call returns more, after the last of these.
    is_cut = len(arrived) == MAX_NEW and comments
    read_at = comments[-1].created if is_cut else naive_utc(clients.clock.now())
    for window_s in LOOK_BACK_S:
        since = max(arrivals.since, read_at - datetime.timedelta(seconds=window_s))
        seen = [
            _digest(name) for name in (*seen_before, *arrived) if _order(name) >= order_key(since)
        ]
        if len(seen) < MAX_NEW:
            break
    return comments, Arrivals(since, frozenset(seen[-MAX_NEW:]))


def _names_since(post: str, at: datetime.datetime) -> list[str]:
    """Return the names of the comments on a post from a time on, oldest first.

    Names alone, because a page asks for hundreds of them and shows none.
    """
    prefixes = [bucket(post, number) for number in range(BUCKETS)]
    waiting = [_query(prefix, at).fetch_async(2 * MAX_NEW, keys_only=True) for prefix in prefixes]
    names: list[str] = [key.id() for keys in waiting for key in keys.result()]
    return sorted(names, key=_order)


def _query(prefix: str, at: datetime.datetime) -> Any:
    begin, beyond = (ndb.Key(Comment, f"{prefix}{end}") for end in (order_key(at), "}"))
    return Comment.query(Comment._key >= begin, Comment._key < beyond).order(Comment._key)


def _order(name: str) -> str:
    """Return the order key in the name of a comment."""
    return name.split("|", 3)[3]


def author_id_of(name: str) -> str:
    """Return the id of a comment's author, from its name."""
    return _order(name).split("!")[1]


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:8]
