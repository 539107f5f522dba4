"""Comments: keys of their own, nobody waits for another, threads in order, and what is new."""

from __future__ import annotations

import contextlib
import datetime
import random
from dataclasses import replace
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from models.blog import REPLY, Comment, commenter_key, post_id, post_key
from pipelines.blog import comments
from pipelines.blog.comments import UnknownCommentError, arrivals_after, arrivals_from
from pipelines.blog.drafts import Author, BadDraftError, comment_of, name_of
from pipelines.blog.posts import DEMO, UnknownPostError
from pipelines.blog.views import BUILDS, CommentsByPost, MostDiscussed, most_discussed
from rollforward.paging import order_key
from rollforward.runtime import naive_utc
from rollforward.testing.injection import REPLY_LOST
from rollforward.testing.world import in_threads
from tests.infra.world import World
from tests.pipelines.blog.bloggers import ADA, BOB, TOKENS, counted, said, threads, written

pytestmark = pytest.mark.fast

POST = post_id(DEMO, 1)


@pytest.fixture
def world(world: World) -> World:
    """One with a post."""
    written(world, 1)
    return world


def test_a_comment_is_keyed_by_time_author_and_number(world: World) -> None:
    """I1: fixed width each, so the order of keys is the order of times."""
    name = said(world, 1, "Hello")

    with world.context():
        comment = comments.comment_of_post(POST, name)
        now = world.clients.clock.now()
    post, bucket, order = name.rsplit("|", 2)
    assert (post, int(bucket) in range(4)) == (POST, True)
    assert order == order_key(now, ADA.id, 1)
    assert (comment.text, comment.author, comment.path) == ("Hello", "Ada", order)


def test_a_clock_that_jumps_back_makes_no_equal_keys(world: World) -> None:
    """I4, I1: an hour back and forth, many comments in one microsecond: each has a key."""
    chance = random.Random(4)
    names = []
    with world.context():
        for number in range(40):
            jump = datetime.timedelta(seconds=chance.choice((0, 0, -3600, 3600, -1)))
            clients = OffClock.beside(world, jump)
            author = chance.choice((ADA, BOB))
            names.append(
                comments.add_comment(
                    clients, post_key(DEMO, 1), f"{number:032d}", author, str(number)
                )
            )

    assert len(set(names)) == 40
    assert sorted(int(each.text) for each in threads(world, 1)) == list(range(40))
    with world.context():
        assert commenter_key(DEMO, ADA.id).get().last_number == sum(ADA.id in n for n in names)


class OffClock:
    """A worker's clock that is off."""

    def __init__(self, clock: Any, by: datetime.timedelta) -> None:
        self.clock, self.by = clock, by

    def now(self) -> datetime.datetime:
        return self.clock.now() + self.by  # type: ignore[no-any-return]

    def sleep(self, seconds: float) -> None:
        self.clock.sleep(seconds)

    @staticmethod
    def beside(world: World, by: datetime.timedelta) -> Any:
        return replace(world.clients, clock=OffClock(world.clock, by))


def test_an_author_s_own_comments_keep_their_order_over_a_small_jump(world: World) -> None:
    """I4: a clock that is a second behind the last one puts nothing before what was said."""
    with world.context():
        for number, jump in enumerate((0, 5, -5, 1)):
            clients = OffClock.beside(world, datetime.timedelta(seconds=jump))
            comments.add_comment(clients, post_key(DEMO, 1), f"{number:032d}", ADA, str(number))

    assert [each.text for each in threads(world, 1)] == ["0", "1", "2", "3"]


def bodies_run(world: World, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let Bob write in the middle of Ada's transaction; return whose bodies ran."""
    ran: list[str] = []
    make = comments._next_comment

    def with_company(commenter: Any, post: str, author: Author, *rest: Any) -> Any:
        ran.append(author.name)
        comment = make(commenter, post, author, *rest)
        if ran == ["Ada"]:
            in_threads(lambda: said_or_lost(world, "Bob's", BOB))
        return comment

    monkeypatch.setattr(comments, "_next_comment", with_company)
    said_or_lost(world, "Ada's", ADA)
    return ran


def said_or_lost(world: World, text: str, author: Author) -> None:
    with contextlib.suppress(rpc_errors.GoogleAPICallError):
        said(world, 1, text, author)


def test_comments_of_two_authors_do_not_wait_for_each_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One commits in the middle of the other's transaction, and both bodies run once."""
    assert bodies_run(world, monkeypatch) == ["Ada", "Bob"]
    assert {each.text for each in threads(world, 1)} == {"Ada's", "Bob's"}


def test_with_one_counter_for_all_they_would(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail: authors who share a counter run a body again."""
    monkeypatch.setattr(comments, "commenter_key", lambda blog, user: commenter_key(blog, "all"))

    assert len(bodies_run(world, monkeypatch)) > 2


def test_a_form_makes_its_comment_once(world: World) -> None:
    """Sent twice, sent again after others, and with a reply lost at each call."""
    first = said(world, 1, "Hello", form_id="1" * 32)
    said(world, 1, "Other", form_id="2" * 32)
    assert said(world, 1, "Hello", form_id="1" * 32) == first

    fired = []
    for at in range(7):
        world.plan.calls, world.plan.kind, world.plan.at = [], REPLY_LOST, at
        with world.plan.watched(), contextlib.suppress(rpc_errors.ServiceUnavailable):
            said(world, 1, f"lost {at}", BOB, form_id=f"{at:032d}")
        said(world, 1, f"lost {at}", BOB, form_id=f"{at:032d}")
        fired.append(world.plan.fired)
        world.plan.at = None

    assert any("Commit" in each for each in fired)
    texts = sorted(each.text for each in threads(world, 1))
    assert texts == ["Hello", "Other", *(f"lost {at}" for at in range(7))]
    world.clock.sleep(60)
    world.sweep()
    assert counted(world, 1) == 9


def test_a_form_is_known_after_any_number_of_others(world: World) -> None:
    """And whoever sends it: a browser that restores its windows sends it days later."""
    first = said(world, 1, "Hello", form_id="1" * 32)
    for number in range(30):
        said(world, 1, str(number))

    assert said(world, 1, "Hello", form_id="1" * 32) == first
    assert said(world, 1, "Hello", BOB, form_id="1" * 32) == first
    assert counted(world, 1) == 31


def test_a_comment_on_a_post_that_is_gone_is_refused(world: World) -> None:
    """Nothing is stored; nor is a reply to nothing."""
    with pytest.raises(UnknownPostError):
        said(world, 2, "Hello")
    with pytest.raises(UnknownCommentError):
        said(world, 1, "Hello", reply_to="demo|0000000001|0|x")
    with world.context():
        assert Comment.query().fetch(keys_only=True) == []


def test_a_comment_costs_the_same_however_many_there_are(world: World) -> None:
    """Its post, author's counter, receipt, marker and the catalog are read; no other comment is."""
    said(world, 1, "First")
    costs = []
    for number in range(12):
        before = world.clients.meter.cost()
        said(world, 1, str(number))
        cost = world.clients.meter.cost() - before
        costs.append((cost.reads, cost.writes))

    assert set(costs) == {(5, 6)}


# Threads


@pytest.mark.parametrize("size", [1, 3, 50])
def test_replies_stand_below_what_they_reply_to(world: World, size: int) -> None:
    """I2: whatever the size of a page, and however late they come."""
    one = said(world, 1, "1")
    world.clock.sleep(1)
    two = said(world, 1, "2", BOB)
    world.clock.sleep(1)
    deep = said(world, 1, "1.1", BOB, reply_to=one)
    world.clock.sleep(1)
    said(world, 1, "2.1", reply_to=two)
    said(world, 1, "1.2", reply_to=one)
    said(world, 1, "1.1.1", reply_to=deep)

    found = threads(world, 1, size)

    assert [each.text for each in found] == ["1", "1.1", "1.1.1", "1.2", "2", "2.1"]
    assert [each.depth for each in found] == [0, 1, 2, 1, 0, 1]


def test_a_thread_grows_no_deeper_than_it_may(world: World) -> None:
    """A reply to the deepest comment stands beside it, below the same one."""
    name = said(world, 1, "0")
    for number in range(1, 9):
        world.clock.sleep(1)
        name = said(world, 1, str(number), reply_to=name)

    found = threads(world, 1)

    assert [each.text for each in found] == [str(number) for number in range(9)]
    assert max(each.depth for each in found) == comments.MAX_DEPTH
    assert max(len(each.thread) for each in found) < 1500


def test_a_comment_belongs_to_its_post(world: World) -> None:
    """On another one it can neither be answered nor deleted: that post would count one less."""
    written(world, 2)
    elsewhere = said(world, 2, "there")
    said(world, 1, "here")

    with pytest.raises(UnknownCommentError):
        said(world, 1, "an answer", reply_to=elsewhere)
    with world.context(), pytest.raises(UnknownCommentError):
        comments.delete_comment(world.clients, POST, elsewhere, ADA)

    assert [each.text for each in threads(world, 2)] == ["there"]
    assert (counted(world, 1), counted(world, 2)) == (1, 1)


def test_a_clock_that_was_days_ahead_dates_one_comment_alone(world: World) -> None:
    """I1: an author's comments keep their order over a small step of the clock, not over that."""
    ahead = OffClock.beside(world, datetime.timedelta(days=2))
    with world.context():
        comments.add_comment(ahead, post_key(DEMO, 1), "7" * 32, ADA, "ahead")
        now = naive_utc(world.clients.clock.now())
    said(world, 1, "right again")

    created = {each.text: each.created for each in threads(world, 1)}
    assert created["ahead"] > now + datetime.timedelta(days=1)
    assert created["right again"] < now + datetime.timedelta(minutes=1)


def test_a_deleted_comment_keeps_its_place_for_its_replies(world: World) -> None:
    """Its text goes and it counts no more; somebody else's cannot be deleted (S28)."""
    one = said(world, 1, "1")
    said(world, 1, "1.1", BOB, reply_to=one)
    with world.context():
        with pytest.raises(UnknownCommentError):
            comments.delete_comment(world.clients, POST, one, BOB)
        for _ in range(2):
            comments.delete_comment(world.clients, POST, one, ADA)

    assert [(each.text, each.is_deleted) for each in threads(world, 1)] == [
        ("", True),
        ("1.1", False),
    ]
    assert counted(world, 1) == 1


def test_the_address_of_a_comment_is_the_page_that_begins_with_it(world: World) -> None:
    """A link to one comment of many shows it first, and leads on both ways."""
    names = []
    for number in range(6):
        names.append(said(world, 1, str(number), ADA if number % 2 else BOB))
        world.clock.sleep(1)
    with world.context():
        comment = comments.comment_by_order(POST, names[3].rpartition("|")[2])
        token = comments.token_of(TOKENS, comment)
        page = comments.threads_page(TOKENS, POST, page_token=token, page_size=2)
        before = comments.threads_page(
            TOKENS, POST, page_token=page.previous_page_token, page_size=2
        )

    assert [each.text for each in page.items] == ["3", "4"]
    assert [each.text for each in before.items] == ["1", "2"]
    assert page.next_page_token


def test_a_page_of_threads_reads_little_more_than_it_shows(world: World) -> None:
    """I2: the first page and the last full one, though each is merged of four ranges."""
    for number in range(48):
        said(world, 1, str(number), Author(f"{number % 8:016d}", "x"))
        world.clock.sleep(0.5)
    costs, token = [], None
    with world.context():
        while True:
            before = world.clients.meter.cost()
            page = comments.threads_page(TOKENS, POST, page_token=token, page_size=12)
            costs.append((world.clients.meter.cost() - before).reads)
            token = page.next_page_token
            if token is None:
                break

    assert len(costs) == 4
    assert max(costs) <= 13 + 4 * 5


# What is new


def test_what_is_new_is_what_came_after_the_page_was_read(world: World) -> None:
    """I3: a reply, a comment of a clock that is 30 s behind, and nothing that was there."""
    old = said(world, 1, "old")
    with world.context():
        arrivals = arrivals_from(world.clients, POST)
        assert arrivals_after(world.clients, POST, arrivals)[0] == []
        behind = OffClock.beside(world, datetime.timedelta(seconds=-30))
        comments.add_comment(behind, post_key(DEMO, 1), "7" * 32, BOB, "late")
    said(world, 1, "reply", BOB, reply_to=old)
    said(world, 1, "new")

    with world.context():
        assert {each.text for each in arrivals_after(world.clients, POST, arrivals)[0]} == {
            "late",
            "reply",
            "new",
        }
        before = world.clients.meter.cost()
        assert arrivals_after(world.clients, POST, arrivals_from(world.clients, POST))[0] == []
        assert (world.clients.meter.cost() - before).reads == 0


def test_a_rush_is_not_new_later(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """I3: a page that could not name all of it looks back less far, and so does the next look."""
    monkeypatch.setattr(comments, "MAX_NEW", 3)
    for number in range(5):
        said(world, 1, str(number))
        world.clock.sleep(3)

    with world.context():
        arrivals = arrivals_from(world.clients, POST)
        for _ in range(3):
            arrived, arrivals = arrivals_after(world.clients, POST, arrivals)
            assert arrived == []


def test_what_is_new_comes_by_and_by_if_it_is_much(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I3: a reader who was away for long gets each comment once, some at a time."""
    monkeypatch.setattr(comments, "MAX_NEW", 3)
    with world.context():
        arrivals = arrivals_from(world.clients, POST)
    for number in range(8):
        said(world, 1, str(number), ADA if number % 2 else BOB)
        world.clock.sleep(2 * comments.LOOK_BACK_S[0])

    rounds = list[list[str]]()
    with world.context():
        for _ in range(4):
            arrived, arrivals = arrivals_after(world.clients, POST, arrivals)
            rounds.append([each.text for each in arrived])

    assert rounds == [["0", "1", "2"], ["3", "4", "5"], ["6", "7"], []]


def test_what_is_new_among_very_many_is_bounded(world: World) -> None:
    """A token names at most a hundred comments; a busy minute makes it look back less far."""
    with world.context():
        now = naive_utc(world.clients.clock.now())
        many = [
            comments.new_comment(POST, Author(f"{n % 16:016d}", "x"), n, now, "x")
            for n in range(130)
        ]
        ndb.put_multi(many)
        before = world.clients.meter.cost()
        arrivals = arrivals_from(world.clients, POST)
        assert (world.clients.meter.cost() - before).reads == 0
        assert len(arrivals.known) <= comments.MAX_NEW
        assert len(arrivals_after(world.clients, POST, arrivals)[0]) <= comments.MAX_NEW


# Counts


def test_comments_are_counted_and_ranked_by_week(world: World) -> None:
    """C1: the posts of this week by their comments; last week's have their own row.

    A comment that was deleted counts no more.
    """
    written(world, 3)  # The first form's post is there already.
    for number, times in ((1, 2), (2, 3)):
        for _ in range(times):
            said(world, number, "x")
    deleted = said(world, 1, "x")
    world.settle()
    with world.context():
        comments.delete_comment(world.clients, POST, deleted, ADA)
    world.settle()
    with world.context():
        now = world.clients.clock.now()
        assert most_discussed(now, 5) == [(post_id(DEMO, 2), 3), (POST, 2)]
        assert most_discussed(now, 1) == [(post_id(DEMO, 2), 3)]
        assert most_discussed(now - datetime.timedelta(days=8), 5) == []
    assert (counted(world, 1), counted(world, 2), counted(world, 3)) == (2, 3, 0)


def test_rebuilt_counts_are_the_same(world: World) -> None:
    """C5: built again from the comments, both views read as before."""
    for _ in range(3):
        said(world, 1, "x")
    assert counted(world, 1) == 3
    for view in (CommentsByPost, MostDiscussed):
        with world.context():
            BUILDS.rebuild(world.clients, view)
        for _ in range(4):
            world.settle()
            world.clock.sleep(60)
            world.sweep()

    assert counted(world, 1) == 3
    with world.context():
        assert most_discussed(world.clients.clock.now(), 5) == [(POST, 3)]


@pytest.mark.parametrize("text", ["", " \n ", "x" * 4001, "a\x00b", "\x1b[31m", "\ud800"])
def test_what_is_no_comment_is_refused(text: str) -> None:
    """Nothing, too much, or what no page can show."""
    with pytest.raises(BadDraftError):
        comment_of(text)


@pytest.mark.parametrize("name", ["", " ", "x" * 41, "a\nb", "\x00", "\u2028"])
def test_what_is_no_name_is_refused(name: str) -> None:
    """A name is one line that a page can show."""
    with pytest.raises(BadDraftError):
        name_of(name)


def test_line_breaks_are_those_of_a_text() -> None:
    """As browsers send them, and as old files have them."""
    assert comment_of(" a\r\nb\rc\td ") == "a\nb\nc\td"
    assert REPLY < "!"
