"""Which posts are discussed: how many comments each has, in all and by week, and the week's most.

Two views in a row. The first counts; its rows of one week are the sources of that week's row in the
second, which ranks them: the ten most discussed of thousands are ten reads. Many comments change
one row, so both gather their changes (`fan_in`): a hot row is written once per batch.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import cast

from models.demos.blog import Comment, Post
from pipelines.materialized_views import (
    Contributions,
    Row,
    View,
    ViewGroup,
    ViewMaintenance,
    row_name,
)

ALL, WEEK = "all", "week"
COMMENTS = "comments"


class CommentsByPost(View):
    """How many comments a post has, and how many of one week."""

    source = Comment
    fan_in = True

    @staticmethod
    def contributions(comment: Comment) -> Contributions:
        if comment.is_deleted or comment.is_imported:
            return {}
        week = week_of(comment.created)
        return {(ALL, comment.post_id): {}, (WEEK, week, comment.post_id): {}}


class MostDiscussed(View):
    """The posts of a week, by their comments."""

    source = CommentsByPost
    ranked = (COMMENTS,)
    fan_in = True

    @staticmethod
    def contributions(row: Row) -> Contributions:
        span, week, *_ = cast(tuple[str, ...], row.name)
        return {(WEEK, week): {COMMENTS: row.count}} if span == WEEK else {}


BLOG = ViewGroup("blog", CommentsByPost, MostDiscussed)
BUILDS = ViewMaintenance(BLOG)


def comment_counts(posts: Sequence[Post]) -> list[int]:
    """Return how many comments each of some posts has; mostly a second late.

    One read each. The one place that says where these numbers come from.
    """
    rows = BLOG.rows(CommentsByPost, [(ALL, post.key.id()) for post in posts])
    return [
        post.imported_comments + (row.count if row else 0)
        for post, row in zip(posts, rows, strict=True)
    ]


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
