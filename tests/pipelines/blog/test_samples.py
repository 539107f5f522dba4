"""Samples: the same each time, made by tasks in bulk, counted and ranked like any others."""

from __future__ import annotations

import pytest

from models.blog import Comment, Post, index_key
from pipelines.blog import samples
from pipelines.blog.front import front_page
from pipelines.blog.posts import DEMO
from pipelines.blog.samples import BlogNotEmptyError, SampleArgs
from tests.infra.memory_datastore import offline
from tests.infra.world import World
from tests.pipelines.blog.bloggers import ADA, TOKENS, counted, form, listed, said, threads, written

ARGS = SampleArgs(DEMO, 500, 10_000, 1_900_000_000_000)
POSTS, COMMENTS = 40, 400
THURSDAY = 3


@pytest.fixture
def filled(world: World) -> World:
    """A blog that is filled on a Thursday: on a Monday nothing is discussed this week."""
    days = (THURSDAY - world.clock.now().weekday()) % 7
    world.clock.sleep(days * 24 * 3600)
    with world.context():
        samples.fill(world.clients, DEMO, posts=POSTS, comments=COMMENTS)
    return world


def test_samples_are_the_same_each_time() -> None:
    """I1: 500 posts, 10,000 comments with keys and places of their own, some of it in Japanese."""
    with offline():
        comments = [samples.sample_comment(ARGS, number) for number in range(1, 10_001)]
        posts = [samples.sample_post(ARGS, number) for number in range(1, 501)]
        again = [samples.sample_comment(ARGS, number) for number in (1, 4321, 10_000)]

    assert [comments[0], comments[4320], comments[-1]] == again
    assert len({each.key for each in comments}) == len({each.thread for each in comments}) == 10_000
    assert {each.post_id for each in comments} == {each.key.id() for each in posts}
    assert all(each.created <= ARGS.now for each in (*comments, *posts))
    assert 50 < sum(not each.title.isascii() and "の" in each.body for each in posts) < 250
    recent = sum(not each.is_imported for each in comments)
    assert sum(samples.comments_on(ARGS, number) for number in range(1, 501)) == 10_000
    assert 200 < recent < 1500


def test_replies_stand_on_the_post_that_they_are_on() -> None:
    """I1: what a sample comment replies to is a comment on the same post, before it."""
    with offline():
        comments = [samples.sample_comment(ARGS, number) for number in range(1, 2001)]
    paths = {(each.post_id, each.path) for each in comments}

    replies = [each for each in comments if each.depth]
    assert len(replies) > 400
    for each in replies:
        assert (each.post_id, each.path.rpartition(" ")[0]) in paths


def test_a_full_page_of_sample_comments_is_one_commit(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """With the rows that the views of recent ones add; it need not be halved."""
    with world.context():
        samples.fill(world.clients, DEMO, posts=POSTS, comments=2 * samples.COMMENTS_A_PAGE)
    world.settle()

    with world.context():
        status = samples.status(world.clients, DEMO)
    assert status is not None
    assert status.done == POSTS + 2 * samples.COMMENTS_A_PAGE
    assert "could not apply" not in caplog.text


def test_an_empty_blog_is_filled_once(filled: World) -> None:
    """Asked for twice, and each task delivered twice: all posts and comments, counted."""
    filled.doubles = True
    with filled.context():
        samples.fill(filled.clients, DEMO, posts=POSTS, comments=COMMENTS)
        before = samples.status(filled.clients, DEMO)
    filled.settle()

    with filled.context():
        after = samples.status(filled.clients, DEMO)
        keys = Comment.query().fetch(keys_only=True)
        front = front_page(filled.clients, TOKENS, DEMO)
    assert before is not None
    assert after is not None
    assert (before.is_running, before.done, before.total) == (True, 0, POSTS + COMMENTS)
    assert (after.is_running, after.done) == (False, POSTS + COMMENTS)
    assert len(keys) == COMMENTS
    assert listed(filled) == list(range(POSTS, 0, -1))
    assert sum(counted(filled, number) for number in range(1, POSTS + 1)) == COMMENTS
    assert front.discussed
    ranked = [each.comments for each in front.discussed]
    assert ranked == sorted(ranked, reverse=True)


def test_what_people_write_meanwhile_comes_after_the_samples(filled: World) -> None:
    """I1: numbers of posts, and of comments by an author of that name, are not given out twice."""
    assert written(filled, 1) == [POSTS + 1]
    someone = samples.authors()[0]
    said(filled, POSTS + 1, "Hello", someone)
    filled.settle()

    assert listed(filled)[:2] == [POSTS + 1, POSTS]
    assert [each.text for each in threads(filled, POSTS + 1)] == ["Hello"]


def test_samples_of_a_post_are_counted_with_it_once(filled: World) -> None:
    """E1: a body that runs again after a lost reply doubles no count; later comments add to it."""
    filled.doubles = True
    filled.settle()
    said(filled, 1, "Hello")
    with filled.context():
        args = SampleArgs(DEMO, POSTS, COMMENTS, 0)
        expected = [samples.comments_on(args, number) for number in range(1, POSTS + 1)]
        assert not samples.can_fill(DEMO)
        assert samples.can_fill("another")

    assert counted(filled, 1) == expected[0] + 1
    assert [counted(filled, number) for number in (2, 7, POSTS)] == [
        expected[number - 1] for number in (2, 7, POSTS)
    ]


def test_a_blog_with_posts_is_left_alone(world: World) -> None:
    """Samples are for an empty one."""
    written(world, 1)
    with world.context(), pytest.raises(BlogNotEmptyError):
        samples.fill(world.clients, DEMO)
    with world.context():
        assert samples.status(world.clients, DEMO) is None
        assert not samples.can_fill(DEMO)
        assert index_key(DEMO).get().last_number == 1
        assert len(Post.query().fetch(keys_only=True)) == 1
        assert form(1) != ADA.id
