"""Posts: numbers without doubles or gaps, forms that count once, lists by place and by tag."""

from __future__ import annotations

from typing import Any

import pytest

from models.blog import Comment, index_key, post_id, post_key
from pipelines.blog import comments, cost, posts
from pipelines.blog.comments import comment_of_post
from pipelines.blog.drafts import BadDraftError, Draft, draft_of
from pipelines.blog.posts import DEMO, UnknownPostError
from rollforward.datastore.transactions import transact
from rollforward.testing.injection import REPLY_LOST
from rollforward.testing.short_answers import whole
from rollforward.testing.world import in_threads
from tests.infra.world import World
from tests.pipelines.blog.bloggers import (
    ADA,
    BOB,
    DRAFT,
    TOKENS,
    counted,
    form,
    listed,
    said,
    written,
)

pytestmark = pytest.mark.fast


def test_posts_take_the_next_number_and_are_read_by_it(world: World) -> None:
    """One after the other, per blog; the number is the key."""
    assert written(world, 3) == [1, 2, 3]
    assert written(world, 2, blog="other") == [1, 2]

    with world.context():
        post = posts.post_of(DEMO, 2)
        assert (post.title, post.number, post.blog, post.author) == ("On pages", 2, DEMO, "Ada")
        assert post.excerpt == "They begin beyond a row."
        with pytest.raises(UnknownPostError):
            posts.post_of(DEMO, 4)


def test_posts_written_at_the_same_moment_have_numbers_of_their_own(world: World) -> None:
    """I1: authors who meet at the index take one number after the other."""

    def write(number: int) -> None:
        with world.clients.context():
            for _ in range(20):
                try:
                    posts.create_post(world.clients, DEMO, form(number), ADA, DRAFT)
                except Exception as error:  # Lost its races; a visitor would press again.
                    last = error
                else:
                    return
            raise last

    in_threads(*[lambda number=number: write(number) for number in range(3)])

    assert listed(world) == [3, 2, 1]


def test_a_form_makes_its_post_once(world: World) -> None:
    """Sent again, also after others; and with a reply lost at each call."""
    assert written(world, 2) == written(world, 2) == [1, 2]

    for at in range(4):
        world.plan.calls, world.plan.kind, world.plan.at = [], REPLY_LOST, at
        with world.clients.context(), world.plan.watched():
            number = posts.create_post(world.clients, DEMO, form(at, "lost"), ADA, DRAFT)
        assert number == 3 + at
    world.plan.at = None

    assert listed(world) == [6, 5, 4, 3, 2, 1]


def test_an_author_changes_and_deletes_posts_and_nobody_else_does(world: World) -> None:
    """S28: somebody else's post is as good as none; a deleted number does not come back."""
    written(world, 2)
    other = Draft("On counters", "One row.", ("counters",))
    with world.context():
        for act in (
            lambda: posts.change_post(world.clients, DEMO, 2, BOB, other),
            lambda: posts.delete_post(world.clients, DEMO, 2, BOB),
            lambda: posts.change_post(world.clients, DEMO, 9, ADA, other),
        ):
            with pytest.raises(UnknownPostError):
                act()
        posts.change_post(world.clients, DEMO, 1, ADA, other)
        posts.delete_post(world.clients, DEMO, 2, ADA)

    assert listed(world) == listed(world, tag="counters") == [1]
    assert listed(world, tag="paging") == []
    assert posts_after(world) == [3, 1]


def posts_after(world: World) -> list[int]:
    with world.context():
        posts.create_post(world.clients, DEMO, form(7), ADA, DRAFT)
    return listed(world)


def test_a_comment_that_its_author_deletes_meanwhile_counts_no_less_than_nothing(
    world: World,
) -> None:
    """The job that deletes a post's comments has read it before; its author has counted that."""
    written(world, 1)
    first, second = said(world, 1, "x"), said(world, 1, "y")
    with world.context():
        read = [comment_of_post(post_id(DEMO, 1), name) for name in (first, second)]
        comments.delete_comment(world.clients, post_id(DEMO, 1), first, ADA)
        second_key = read[1].key

        def body() -> None:
            posts.delete_comments.apply(world.clients, posts.PostArgs(post_id(DEMO, 1)), read)

        transact(body)
        transact(body)  # The rows are gone.

        assert second_key.get() is None
    assert counted(world, 1) == 0


def test_a_deleted_post_takes_its_comments_along(world: World) -> None:
    """All of them, its neighbours' stay, and none counts any more."""
    written(world, 2)
    for number in (1, 2, 1, 1):
        said(world, number, "Hello")
    assert (counted(world, 1), counted(world, 2)) == (3, 1)

    with world.context():
        posts.delete_post(world.clients, DEMO, 1, ADA)
    world.settle()

    assert (counted(world, 1), counted(world, 2)) == (0, 1)
    with world.context():
        assert [comment.post_id for comment in Comment.query()] == ["demo|0000000002"]


def test_a_comment_that_was_on_its_way_goes_with_its_post(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It found its post, which is deleted before it commits: nothing of it is left."""
    written(world, 1)
    make = comments._next_comment

    def late(*given: Any) -> Any:
        monkeypatch.setattr(comments, "_next_comment", make)
        in_threads(lambda: delete_first(world))
        return make(*given)

    monkeypatch.setattr(comments, "_next_comment", late)
    said(world, 1, "Late")
    with world.context():
        assert len(Comment.query().fetch(keys_only=True)) == 1

    world.settle()

    assert counted(world, 1) == 0
    with world.context():
        assert Comment.query().fetch(keys_only=True) == []


def delete_first(world: World) -> None:
    """Delete the post, and let the job go through the comments that there are."""
    with world.clients.context():
        posts.delete_post(world.clients, DEMO, 1, ADA)
    world.deliver_due()


@pytest.mark.parametrize("size", [1, 2, 4, 5, 6])
def test_every_page_size_shows_each_post_once(world: World, size: int) -> None:
    """I2: of all posts, and of those with a tag, newest first."""
    with world.context():
        for number in range(5):
            tags = ("odd",) if number % 2 == 0 else ("even", "odder")
            draft = Draft("x", "y", tags)
            posts.create_post(world.clients, DEMO, form(number), ADA, draft)

    assert listed(world, page_size=size) == [5, 4, 3, 2, 1]
    assert listed(world, page_size=size, tag="odd") == [5, 3, 1]
    assert listed(world, page_size=size, tag="odde") == []


def test_the_last_page_of_posts_costs_what_the_first_one_costs(world: World) -> None:
    """I2: by place the same reads on each page; by offset all that it skips."""
    with world.context():
        index = index_key(DEMO).get() or posts.BlogIndex(key=index_key(DEMO))
        index.last_number = 400
        index.put()
        now = posts.naive_utc(world.clients.clock.now())
        many = [posts.new_post(DEMO, n, ADA, DRAFT, now) for n in range(1, 401)]
        for at in range(0, 400, 200):
            posts.ndb.put_multi(many[at : at + 200])

        with whole(world):
            found = cost.costs(world.clients, DEMO)
            before = world.clients.meter.cost()
            posts.posts_page(TOKENS, DEMO, page_size=20)
        first = world.clients.meter.cost() - before

    assert [each.page for each in found] == [1, 10, 20]
    assert [each.by_place.reads for each in found] == [21, 21, 20]
    assert [each.by_place.round_trips for each in found] == [1, 1, 1]
    assert [each.by_offset.reads for each in found] == [21, 201, 400]
    assert {each.by_place.posts for each in found} == {20}
    assert (first.reads, first.round_trips, first.writes) == (21, 1, 0)


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"title": " "}, {"title"}),
        ({"title": "x" * 161}, {"title"}),
        ({"title": "a\nb"}, {"title"}),
        ({"title": "a\x00"}, {"title"}),
        ({"body": ""}, {"body"}),
        ({"body": "x" * 40_001}, {"body"}),
        ({"body": "a\x07"}, {"body"}),
        ({"tags": "a b c d e f g"}, {"tags"}),
        ({"tags": "x" * 31}, {"tags"}),
        ({"tags": "a|b"}, {"tags"}),
        ({"tags": "<b>", "title": ""}, {"tags", "title"}),
    ],
)
def test_what_is_no_post_is_refused(fields: dict[str, str], wrong: set[str]) -> None:
    """Each field says what is wrong with it."""
    with pytest.raises(BadDraftError) as caught:
        draft_of(**{"title": "x", "body": "y", "tags": "", **fields})

    assert set(caught.value.errors) == wrong


def test_a_post_that_changes_keeps_its_place_and_its_time(world: World) -> None:
    """Saved again as it was, it does not change."""
    written(world, 1)
    with world.context():
        before = post_key(DEMO, 1).get()
        world.clock.sleep(60)
        posts.change_post(world.clients, DEMO, 1, ADA, DRAFT)
        assert post_key(DEMO, 1).get() == before
        posts.change_post(world.clients, DEMO, 1, ADA, Draft("New", "text", ("paging",)))
        after = post_key(DEMO, 1).get()

    assert (after.created, after.number) == (before.created, 1)
    assert after.updated > before.updated
