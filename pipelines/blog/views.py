"""Comment counts of posts, and the most discussed posts of a week.

The total of a post is a gathered counter: one row for each post, written once for a batch of
comments. A comment and its increment are one commit.

The ranking of a week chains two views. The first counts by post and week; its rows of one week are
the sources of that week's row in the second, which ranks them: the ten most discussed of thousands
are ten reads.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import cast

from models.blog import Comment, Post
from rollforward.counters import Counter
from rollforward.materialized_views import (
    Contributions,
    Row,
    View,
    ViewGroup,
    ViewMaintenance,
    row_name,
)
from rollforward.runtime import Clients

WEEK = "week"
COMMENTS = "comments"

COMMENT_COUNTS = Counter("blog-comments", "gathered", queue="fork-join")


class CommentsByPost(View):
    """Number of comments of a post in one week."""

    source = Comment

    @staticmethod
    def contributions(comment: Comment) -> Contributions:
        if comment.is_deleted or comment.is_imported:
            return {}
        return {(WEEK, week_of(comment.created), comment.post_id): {}}


class MostDiscussed(View):
    """The posts of a week, by their comments."""

    source = CommentsByPost
    ranked = (COMMENTS,)

    @staticmethod
    def contributions(row: Row) -> Contributions:
        _, week, _ = cast(tuple[str, ...], row.name)
        return {(WEEK, week): {COMMENTS: row.count}}


BLOG = ViewGroup("blog", CommentsByPost, MostDiscussed)
BUILDS = ViewMaintenance(BLOG)


def comment_counts(clients: Clients, posts: Sequence[Post]) -> list[int]:
    """Return how many comments each of some posts has; mostly a second late. One read each."""
    names = [str(post.key.id()) for post in posts]
    totals = COMMENT_COUNTS.totals(clients, names)
    return [totals[name].value for name in names]


def most_discussed(at: datetime.datetime, limit: int) -> list[tuple[str, int]]:
    """Return the posts with the most comments in the week of a time, by name, with their counts."""
    top = BLOG.top(MostDiscussed, (WEEK, week_of(at)), COMMENTS, limit)
    names = [cast(tuple[str, ...], row_name(key.id())) for key, _ in top]
    return [(name[-1], int(count)) for name, (_, count) in zip(names, top, strict=True)]


def week_of(at: datetime.datetime) -> str:
    """Return a week as ISO 8601 has it.

    >>> week_of(datetime.datetime(2027, 1, 1))
    '2026-W53'
    """
    year, week, _ = at.isocalendar()
    return f"{year}-W{week:02d}"
