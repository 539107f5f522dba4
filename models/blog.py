"""A blog: its index, its posts, and the comments on them.

BlogIndex
    Key: the blog's name. The number of its last post: every new post takes the next one in its
    transaction. Posts are written by hand, far below the one write a second of a row.
    Queries: none. Growth: one row per blog.

Post
    Key: "<blog>|<number>", fixed width.
    Queries: ranges of `places`: "<blog>|<number>", and "<blog>#<tag>|<number>" for each tag. So
    one property lists all posts, and the posts of each tag, both ways, without a composite index.
    Growth: one row per post.

PostReceipt
    Key: the id of the form that made a post: it makes one, however often it is sent.
    Queries: none. Growth: one row per post.

Commenter
    Key: "<blog>|<user>". The number of a user's last comment: an entity group of their own, so
    comments of two users never wait for each other.
    Queries: none. Growth: one row per user who has commented.

CommentReceipt
    Key: the id of the form that made a comment: it makes one, however often it is sent.
    Queries: none. Growth: one row per comment.

Comment
    Key: "<post>|<bucket>|<order key of time, user and number within the user>". Every part is of
    fixed width or escaped, so that the order of keys is the order of times. The bucket comes from a
    hash of the user: one post's comments are spread over BUCKETS ranges, each of which takes some
    500 writes a second.
    Queries: ascending ranges of keys, for new comments; ranges of `thread`, both ways, for reading:
    "<post>|<bucket of its thread>|<order keys of all comments it is a reply to, and its own>", so
    replies follow their comment. Single-property index.
    Growth: one row per comment. The comments of a deleted post are deleted by a job.
"""

from __future__ import annotations

import zlib
from typing import Any

from google.cloud import ndb

# For good: it is part of keys. Readers merge so many ranges.
BUCKETS = 4
# Between the order keys of a thread: sorts before everything that they are made of.
REPLY = " "


class BlogIndex(ndb.Model):
    """The counter of a blog's posts, and whether it was filled with samples."""

    last_number = ndb.IntegerProperty(indexed=False, default=0)
    has_samples = ndb.BooleanProperty(indexed=False, default=False)


class Post(ndb.Model):
    """A post, as its author wrote it: Markdown, which is rendered when it is shown."""

    title = ndb.TextProperty(required=True)
    body = ndb.TextProperty(required=True)
    excerpt = ndb.TextProperty(default="")
    tags = ndb.TextProperty(repeated=True)
    author_id = ndb.TextProperty(required=True)
    author = ndb.TextProperty(required=True)
    created = ndb.DateTimeProperty(indexed=False, required=True)
    updated = ndb.DateTimeProperty(indexed=False, required=True)
    places = ndb.StringProperty(repeated=True)

    @property
    def blog(self) -> str:
        return str(self.key.id().partition("|")[0])

    @property
    def number(self) -> int:
        return int(self.key.id().partition("|")[2])


class PostReceipt(ndb.Model):
    """The post that a form has made."""

    number = ndb.IntegerProperty(indexed=False, required=True)


class Commenter(ndb.Model):
    """The counter of a user's comments."""

    last_number = ndb.IntegerProperty(indexed=False, default=0)
    last_at = ndb.DateTimeProperty(indexed=False)


class CommentReceipt(ndb.Model):
    """The comment that a form has made."""

    comment = ndb.TextProperty(required=True)


class Comment(ndb.Model):
    """A comment, as plain text; a deleted one keeps its place, without its text."""

    text = ndb.TextProperty(required=True)
    author_id = ndb.TextProperty(required=True)
    author = ndb.TextProperty(required=True)
    created = ndb.DateTimeProperty(indexed=False, required=True)
    is_deleted = ndb.BooleanProperty(indexed=False, default=False)
    is_imported = ndb.BooleanProperty(indexed=False, default=False)  # Of no week that is ranked.
    thread = ndb.StringProperty(required=True)

    @property
    def post_id(self) -> str:
        return "|".join(self.key.id().split("|", 2)[:2])

    @property
    def path(self) -> str:
        """Return the order keys of the comments it replies to, and its own."""
        return str(self.thread.split("|", 3)[3])

    @property
    def depth(self) -> int:
        return self.path.count(REPLY)


def index_key(blog: str) -> Any:
    """Return the key of a blog's index."""
    return ndb.Key(BlogIndex, blog)


def post_id(blog: str, number: int) -> str:
    """Return the name of a post.

    >>> post_id("demo", 7)
    'demo|0000000007'
    """
    return f"{blog}|{number:010d}"


def post_key(blog: str, number: int) -> Any:
    """Return the key of a post."""
    return ndb.Key(Post, post_id(blog, number))


def receipt_key(form_id: str) -> Any:
    """Return the key of the receipt of a form that makes a post."""
    return ndb.Key(PostReceipt, form_id)


def comment_receipt_key(form_id: str) -> Any:
    """Return the key of the receipt of a form that makes a comment."""
    return ndb.Key(CommentReceipt, form_id)


def commenter_key(blog: str, user_id: str) -> Any:
    """Return the key of a user's own counter."""
    return ndb.Key(Commenter, f"{blog}|{user_id}")


def places_of(blog: str, number: int, tags: list[str]) -> list[str]:
    """Return a post's places: in the list of all, and in the list of each of its tags."""
    lists = [all_posts(blog), *(posts_tagged(blog, tag) for tag in tags)]
    return [f"{prefix}{number:010d}" for prefix in lists]


def all_posts(blog: str) -> str:
    """Return the prefix of the places of all posts of a blog."""
    return f"{blog}|"


def posts_tagged(blog: str, tag: str) -> str:
    """Return the prefix of the places of a blog's posts with a tag."""
    return f"{blog}#{tag}|"


def comment_key(post: str, order: str, user_id: str) -> Any:
    """Return the key of a comment on a post, from its order key."""
    return ndb.Key(Comment, f"{bucket(post, _bucket_of(user_id))}{order}")


def bucket(post: str, number: int) -> str:
    """Return the prefix of the keys, or the threads, of one bucket of a post's comments."""
    return f"{post}|{number}|"


def thread_of(post: str, path: str) -> str:
    """Return a comment's place among the threads of a post."""
    return f"{bucket(post, _bucket_of(path.partition(REPLY)[0]))}{path}"


def comments_of(post: str) -> tuple[Any, Any]:
    """Return two keys that enclose the comments on a post."""
    return ndb.Key(Comment, f"{post}|"), ndb.Key(Comment, f"{post}}}")


def _bucket_of(text: str) -> int:
    return zlib.crc32(text.encode()) % BUCKETS
