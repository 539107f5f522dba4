"""The blog under faults: each form counts once, whatever happens after the press."""

from __future__ import annotations

import pytest

from models.blog import Comment, Post, comments_of, index_key, post_id, post_key
from pipelines.blog import comments, posts
from pipelines.blog.views import comment_counts
from rollforward.testing.injection import KINDS, REPLY_LOST
from tests.infra.faults.explorer import Explorer
from tests.infra.world import World
from tests.pipelines.blog.bloggers import ADA, BOB, DRAFT, TOKENS, form

SAID = ((ADA, "one"), (BOB, "two"), (ADA, "three"))


class BlogScenario:
    """Two posts, and three comments on the first one by two authors; a blog for each play."""

    def __init__(self, world: World) -> None:
        self.world = world

    def begin(self, tag: str) -> None:
        clients = self.world.clients
        for number in range(2):
            posts.create_post(clients, tag, form(number, tag), ADA, DRAFT)
        for number, (author, text) in enumerate(SAID):
            form_id = form(number, f"{tag}c")
            comments.add_comment(clients, post_key(tag, 1), form_id, author, text)

    def is_done(self, tag: str) -> bool:
        return comment_counts(self.world.clients, [self._first(tag)]) == [len(SAID)]

    def check(self, tag: str, fault: str) -> None:
        page = posts.posts_page(TOKENS, tag)
        assert [post.number for post in page.items] == [2, 1], fault
        assert index_key(tag).get().last_number == 2, fault
        low, high = comments_of(post_id(tag, 1))
        stored = Comment.query(Comment._key > low, Comment._key < high).fetch()
        assert sorted(each.text for each in stored) == sorted(text for _, text in SAID), fault
        threads = comments.threads_page(TOKENS, post_id(tag, 1)).items
        assert {each.key for each in threads} == {each.key for each in stored}, fault

    def _first(self, tag: str) -> Post:
        return post_key(tag, 1).get() or Post(key=post_key(tag, 1))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", KINDS)
def test_each_form_counts_once_with_a_fault_at_any_call(world: World, kind: str) -> None:
    """I1: one fault at each remote call: numbers without gaps, each comment once, counts exact."""
    Explorer(world, BlogScenario(world)).explore([kind])


def test_each_form_counts_once_with_all_deliveries_doubled(world: World) -> None:
    """I1: every task twice over: not one comment counts twice."""
    world.doubles = True

    Explorer(world, BlogScenario(world)).play()


def test_the_faults_bite(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the receipt of its form a post whose reply was lost is made twice."""
    made = posts.receipt_key
    monkeypatch.setattr(
        posts, "receipt_key", lambda form_id: made(form_id + world.clients.new_id())
    )
    explorer = Explorer(world, BlogScenario(world))
    first_commit = explorer.play().index("Commit")

    with pytest.raises(AssertionError):
        explorer.play((first_commit, REPLY_LOST))
