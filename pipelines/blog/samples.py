"""Sample posts and comments: the same each time, some of them in Japanese.

Two parallel continuations fill a new blog: 500 posts and 10,000 comments, 400 in each commit. The
blog's index gives out the numbers of all sample posts at once, so a post that a visitor writes
meanwhile gets a later number.

Comments are written as an import would write them: a post's counter begins with how many it comes
with, in the commit that makes the post. Those of the last days go through the views, like any other
comment: the week's most discussed posts are among them.

Lost on failure: nothing. A run resumes at its position; each sample is a function of its number.
"""

from __future__ import annotations

import bisect
import datetime
import hashlib
import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from google.cloud import ndb

from models.blog import REPLY, BlogIndex, Comment, Commenter, Post, commenter_key, index_key
from pipelines.blog.comments import new_comment
from pipelines.blog.drafts import Author, Draft
from pipelines.blog.posts import new_post
from pipelines.blog.sample_texts import COMMENTS, COMMENTS_JA, NAMES, POSTS, POSTS_JA, TOPICS
from pipelines.blog.views import BLOG, COMMENT_COUNTS
from pipelines.times import now_ms
from rollforward.continuations import Job, job, runs
from rollforward.continuations.entities import RUNNING
from rollforward.continuations.progress import RunProgress, progress
from rollforward.continuations.sources import NumberSource
from rollforward.datastore import transact
from rollforward.runtime import Clients, naive_utc
from rollforward.tasks import hashed_name

SAMPLE_POSTS = 500
SAMPLE_COMMENTS = 10_000
POSTS_A_PAGE = 125
# A commit takes 500 entities: these, their page, and what some of them change in views.
COMMENTS_A_PAGE = 400
# More chains would wait for each other: a commit of 500 keeps Datastore and ndb busy.
CHAINS = 2
YEARS = 2
# Every tenth post is discussed again in the last days.
LAST_DAYS = datetime.timedelta(days=4)
MAX_REPLIES = 3


class BlogNotEmptyError(Exception):
    """The blog has posts: samples are for a new one."""


@dataclass(frozen=True)
class SampleArgs:
    """Blog to fill, numbers of samples, and the time of the request, in ms since 1970."""

    blog: str
    posts: int
    comments: int
    now_ms: int

    @property
    def now(self) -> datetime.datetime:
        return naive_utc(datetime.datetime.fromtimestamp(self.now_ms / 1000, datetime.UTC))


@dataclass(frozen=True)
class SampleStatus:
    """Progress of the two runs."""

    posts: RunProgress
    comments: RunProgress

    @property
    def is_running(self) -> bool:
        return RUNNING in (self.posts.state, self.comments.state)

    @property
    def done(self) -> int:
        return self.posts.totals.done + self.comments.totals.done

    @property
    def total(self) -> int:
        return (self.posts.expected or 0) + (self.comments.expected or 0)


def fill(
    clients: Clients, blog: str, *, posts: int = SAMPLE_POSTS, comments: int = SAMPLE_COMMENTS
) -> None:
    """Start to fill a new blog, once.

    Raises:
        BlogNotEmptyError: it has a post already.
    """
    args = SampleArgs(blog, posts, comments, now_ms(clients))
    jobs: dict[str, tuple[Job[SampleArgs, Any], int, int]] = {
        _posts_run(blog): (add_posts, posts, 1),
        _comments_run(blog): (add_comments, comments, CHAINS),
    }
    drafts = [
        runs.new_run(clients, sample, args, run_id=run_id, expected=expected, chains=chains)
        for run_id, (sample, expected, chains) in jobs.items()
    ]

    def reserve() -> None:
        index = index_key(blog).get() or BlogIndex(key=index_key(blog))
        if index.has_samples:
            return  # The guard: its numbers are given out, and its runs are there.
        if index.last_number:
            raise BlogNotEmptyError(blog)
        index.populate(last_number=posts, has_samples=True)
        ndb.put_multi([index, *_commenters(blog, comments), *drafts])

    transact(reserve)
    for run_id, (sample, _, _) in jobs.items():
        runs.launch(clients, sample, run_id)


def can_fill(blog: str) -> bool:
    """Return whether a blog has neither posts nor samples."""
    index = index_key(blog).get()
    return index is None or not (index.last_number or index.has_samples)


def status(clients: Clients, blog: str) -> SampleStatus | None:
    """Return the progress of a blog's samples; None: none were requested."""
    index = index_key(blog).get()
    if index is None or not index.has_samples:
        return None
    read_at = clients.clock.now()
    return SampleStatus(
        progress(_posts_run(blog), now=read_at, dots=False, clients=clients),
        progress(_comments_run(blog), now=read_at, dots=False, clients=clients),
    )


def _posts_run(blog: str) -> str:
    return hashed_name("sample-posts", blog)[:32]


def _comments_run(blog: str) -> str:
    return hashed_name("sample-comments", blog)[:32]


def _commenters(blog: str, comments: int) -> list[Commenter]:
    """Return the counters of the sample authors, as their comments will leave them."""
    return [
        Commenter(key=commenter_key(blog, author.id), last_number=-(-(comments - i) // len(NAMES)))
        for i, author in enumerate(authors())
        if i < comments
    ]


# The samples


@cache
def authors() -> tuple[Author, ...]:
    """Return the sample authors."""
    return tuple(Author(hashlib.sha256(name.encode()).hexdigest()[:16], name) for name in NAMES)


def sample_post(args: SampleArgs, number: int) -> Post:
    """Return a sample post; later ones are newer, and one in four is in Japanese."""
    dice = random.Random(f"post {number}")
    topics = POSTS_JA if dice.random() < 0.25 else POSTS
    title, opening = dice.choice(topics)
    body = "\n\n".join([opening, *dice.sample(TOPICS[topics is POSTS_JA], 4)])
    tags = tuple(dice.sample(_words(topics is POSTS_JA), dice.randint(1, 3)))
    draft = Draft(f"{title} · {number}", body, tags)
    return new_post(args.blog, number, dice.choice(authors()), draft, posted_at(args, number))


def comments_on(args: SampleArgs, number: int) -> int:
    """Return how many sample comments there are on a sample post."""
    firsts = first_comments(args.posts, args.comments)
    return firsts[number] - firsts[number - 1]


def _words(is_japanese: bool) -> tuple[str, ...]:
    words = ("datastore", "queues", "caching", "testing", "patterns", "latency", "python")
    return ("入門", "設計", "性能", *words[:3]) if is_japanese else words


def posted_at(args: SampleArgs, number: int) -> datetime.datetime:
    """Return when a sample post was written: evenly, over two years up to now."""
    step = datetime.timedelta(days=365 * YEARS) / args.posts
    return (args.now - step * (args.posts - number + 1)).replace(microsecond=0)


@cache
def first_comments(posts: int, comments: int) -> tuple[int, ...]:
    """Return, for each sample post, the number of the first comment on it, and the end.

    Few posts have many: the weights fall as one over the rank, and ranks are spread.
    """
    weights = [1 / (12 + (number * 37) % posts) + 2 / posts for number in range(1, posts + 1)]
    total = sum(weights)
    ends = itertools.accumulate(weight / total * comments for weight in weights)
    return (1, *(round(end) + 1 for end in ends))


def sample_comment(args: SampleArgs, number: int) -> Comment:
    """Return a sample comment; the comments on a post follow each other."""
    firsts = first_comments(args.posts, args.comments)
    post_number = bisect.bisect_right(firsts, number)
    first_number = firsts[post_number - 1]
    dice = random.Random(f"comment {number}")
    text = dice.choice(COMMENTS_JA if dice.random() < 0.25 else COMMENTS)
    post = f"{args.blog}|{post_number:010d}"
    above = _above(args, number, first_number)
    comment = new_comment(post, *_identity(args, number), text, above)
    comment.is_imported = is_imported(args, number)
    return comment


def _above(args: SampleArgs, number: int, first_number: int) -> str:
    """Return the path of the comment that one replies to, "" if it begins a thread."""
    dice = random.Random(f"reply {number}")
    if number == first_number or dice.random() < 0.55:
        return ""
    other = dice.randrange(max(first_number, number - 12), number)
    path = sample_comment(args, other).path
    return path if path.count(REPLY) < MAX_REPLIES else ""


def _identity(args: SampleArgs, number: int) -> tuple[Author, int, datetime.datetime]:
    """Return the author of a sample comment, its number among theirs, and its time."""
    i = (number - 1) % len(NAMES)
    return authors()[i], (number - 1) // len(NAMES) + 1, commented_at(args, number)


def is_imported(args: SampleArgs, number: int) -> bool:
    """Return whether a sample comment is older than the last days."""
    return commented_at(args, number) < args.now - LAST_DAYS


def commented_at(args: SampleArgs, number: int) -> datetime.datetime:
    """Return when a sample comment was written: in the weeks after the post, or these days."""
    firsts = first_comments(args.posts, args.comments)
    post_number = bisect.bisect_right(firsts, number)
    first_number, beyond = firsts[post_number - 1], firsts[post_number]
    part = (number - first_number + 1) / (beyond - first_number + 1)
    begins = posted_at(args, post_number)
    is_hot = post_number % 10 == 0 and part > 0.6
    if is_hot:
        begins, part = max(begins, args.now - LAST_DAYS), (part - 0.6) / 0.4
    span = min(args.now - begins, datetime.timedelta(days=21))
    return (begins + part * span).replace(microsecond=0)


# The jobs


@job(
    "add-sample-posts",
    queue="imports",
    source=lambda args: NumberSource(args.posts),
    page_size=POSTS_A_PAGE,
)
def add_posts(args: SampleArgs, numbers: Sequence[int]) -> None:
    """Save some sample posts, inside the transaction that holds their receipts."""
    posts = {number: sample_post(args, number) for number in numbers}
    ndb.put_multi(list(posts.values()))
    counts = {str(post.key.id()): comments_on(args, number) for number, post in posts.items()}
    COMMENT_COUNTS.begin_in_transaction(counts)


@job(
    "add-sample-comments",
    queue="imports",
    source=lambda args: NumberSource(args.comments),
    page_size=COMMENTS_A_PAGE,
)
def add_comments(clients: Clients, args: SampleArgs, numbers: Sequence[int]) -> None:
    """Save some sample comments, inside the transaction that holds their receipts."""
    comments = [sample_comment(args, number) for number in numbers]
    ndb.put_multi([comment for comment in comments if comment.is_imported])
    BLOG.save_in_transaction(clients, *(comment for comment in comments if not comment.is_imported))
