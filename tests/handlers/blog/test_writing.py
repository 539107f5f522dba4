"""Pages of the blog for writers: forms act once, know their author, refuse bad input."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors

from models.blog import Comment, Post, post_id, post_key
from pipelines.blog import posts, samples
from pipelines.blog.comments import comment_by_order
from pipelines.blog.posts import DEMO
from tests.handlers.conftest import Browser, app_with, on_cloud_run
from tests.handlers.hostile import XSS, tags
from tests.infra.world import World
from tests.pipelines.blog.bloggers import said, threads, written

pytestmark = pytest.mark.parametrize("services", ["datastore"], indirect=True)

FORM, OTHER = "a" * 32, "b" * 32
POST = {"title": "On pages", "body": "They *begin* beyond a row.", "tags": "paging", "name": "Ada"}


def publish(browser: Browser, form_id: str = FORM, **fields: str) -> str:
    """Publish a post; return where it is."""
    response = browser.post("/blog/posts", {"id": form_id, **POST, **fields})
    browser.known_token = ""  # Signing in begins another session.
    assert response.status_code == 303, response.text
    return str(response.headers["Location"])


def say(browser: Browser, where: str, text: str, form_id: str = FORM, **fields: str) -> Any:
    form = {"id": form_id, "text": text, "name": "Ada", **fields}
    response = browser.post(f"{where}/comments", form)
    browser.known_token = ""
    return response


def test_a_post_is_published_once_shown_and_found(world: World, browser: Browser) -> None:
    """The form sent twice leads to the same post; tags and the feed know it."""
    assert publish(browser) == publish(browser) == "/blog/1"

    page = browser.get("/blog/1").text
    assert "<em>begin</em>" in page
    assert 'href="/blog/tags/paging"' in page
    assert "On pages" in browser.get("/blog/tags/paging").text
    assert "On pages" in browser.get("/blog/feed.atom").text
    with world.context():
        assert len(Post.query().fetch(keys_only=True)) == 1


@pytest.mark.parametrize("act", ["create_post", "change_post", "delete_post"])
def test_a_change_whose_commit_is_not_answered_leaves_no_old_front_page(
    browser: Browser, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    """J2: it may have been made all the same."""
    where = publish(browser)
    assert "On pages" in browser.get("/blog").text
    really = getattr(posts, act)

    def unanswered(*args: Any) -> None:
        really(*args)
        raise rpc_errors.ServiceUnavailable("the reply is lost")

    monkeypatch.setattr(posts, act, unanswered)
    path = {
        "create_post": "/blog/posts", "change_post": f"{where}/edit",
        "delete_post": f"{where}/delete",
    }[act]  # fmt: skip
    response = browser.post(path, {**POST, "id": "b" * 32, "title": "On other things"})
    front = browser.get("/blog").text

    assert response.status_code == 503
    assert ("On pages" in front) == (act == "create_post")
    assert ("On other things" in front) == (act != "delete_post")


def test_a_form_sent_again_before_its_cookie_came_counts_once(
    world: World, browser: Browser
) -> None:
    """A first comment whose response was lost: its form names the author."""
    where = publish(browser)
    first, other = Browser(world.app), Browser(world.app)

    addresses = {
        say(response, where, "Hello", OTHER).headers["Location"] for response in (first, other)
    }

    assert len(addresses) == 1
    assert [comment.text for comment in threads(world, 1)] == ["Hello"]


def test_a_preview_saves_nothing(browser: Browser, snapshot: Callable[[], Any]) -> None:
    """It previews the post, and keeps the input."""
    stored = snapshot()

    page = browser.post("/blog/posts", {"id": FORM, **POST, "preview": "1"}).text

    assert "nothing is saved yet" in page
    assert "<em>begin</em>" in page
    assert 'value="On pages"' in page
    assert f'name="id" value="{FORM}"' in page
    assert snapshot() == stored


def test_a_comment_is_said_replied_to_and_deleted(world: World, browser: Browser) -> None:
    """The response leads to the comment; replies are below it; a deleted one keeps its place."""
    where = publish(browser)
    link = say(browser, where, "Hello <3", OTHER).headers["Location"]
    page = browser.get(browser.get(link).headers["Location"].partition("#")[0]).text
    assert "Hello &lt;3" in page
    name = html.unescape(re.findall(r'name="comment" value="([^"]+)"', page)[0])

    shown = browser.get(f"/blog/1?reply_to={name}").text
    assert "Reply to Ada" in shown
    say(browser, where, "Hi", "c" * 32, reply_to=name)
    browser.post(f"{where}/comments/delete", {"comment": name})

    assert [(comment.text, comment.depth) for comment in threads(world, 1)] == [("", 0), ("Hi", 1)]
    assert "was deleted by its author" in browser.get(where).text


def test_nobody_changes_what_somebody_else_wrote(
    world: World, browser: Browser, snapshot: Callable[[], Any]
) -> None:
    """S28: edit, delete, another author's comment: 404, as for a missing one."""
    where = publish(browser)
    say(browser, where, "Mine", OTHER)
    with world.context():
        name = Comment.query().get().key.id()
    eve, nobody = Browser(world.app), Browser(world.app)
    publish(eve, "e" * 32, name="Ada")
    stored = snapshot()

    for stranger in (eve, nobody):
        for there in ("/blog/1", "/blog/9"):
            assert stranger.get(f"{there}/edit").status_code == 404
            assert stranger.post(f"{there}/edit", POST).status_code == 404
            assert stranger.post(f"{there}/delete").status_code == 404
        assert stranger.post("/blog/1/comments/delete", {"comment": name}).status_code == 404
        assert "Edit" not in stranger.get("/blog/1").text.partition("<article>")[2]

    assert snapshot() == stored


def test_nobody_becomes_an_author_by_a_form_id(
    world: World, browser: Browser, snapshot: Callable[[], Any]
) -> None:
    """S28: ids of authors are public; a form id that is made of one makes another author."""
    where = publish(browser)
    sample = samples.authors()[0]
    written(world, 1, author=sample)
    said(world, 1, "Sample", sample)
    say(browser, where, "Mine", OTHER)
    with world.context():
        authors = {row.author_id for row in [*Post.query().fetch(), *Comment.query().fetch()]}
        names = [comment.key.id() for comment in Comment.query().fetch()]
    assert len(authors) == len(names) == 2

    for author_id in authors:
        eve = Browser(world.app)
        copy = publish(eve, author_id + "0" * 16, title="By Eve")
        assert eve.get(f"{copy}/edit").status_code == 200
        stored = snapshot()
        for path in ("/blog/1", "/blog/2"):
            assert eve.post(f"{path}/edit", {**POST, "title": "Taken"}).status_code == 404
            assert eve.post(f"{path}/delete").status_code == 404
        for name in names:
            assert eve.post("/blog/1/comments/delete", {"comment": name}).status_code == 404
        assert snapshot() == stored


def test_nobody_becomes_the_author_of_a_form_that_was_sent_signed_in(
    world: World, browser: Browser
) -> None:
    """S28: another sender of the form is led to the post, and signed in as another author."""
    publish(browser)
    where = publish(browser, OTHER)
    eve = Browser(world.app)

    assert publish(eve, OTHER, name="Eve") == where

    assert eve.get(f"{where}/edit").status_code == 404
    assert eve.post(f"{where}/delete").status_code == 404
    assert browser.get(f"{where}/edit").status_code == 200


def test_an_author_edits_and_deletes_a_post(world: World, browser: Browser) -> None:
    """Edited in place; deleted, it is 404 and out of the list."""
    where = publish(browser)
    assert 'value="On pages"' in browser.get(f"{where}/edit").text

    assert browser.post(f"{where}/edit", {**POST, "title": "On other things"}).status_code == 303
    assert all("On other things" in browser.get(path).text for path in (where, "/blog"))
    assert browser.post(f"{where}/delete").status_code == 303

    front = browser.get("/blog").text
    assert "The post was deleted" in front
    assert "On other things" not in front
    assert browser.get(where).status_code == 404
    with world.context():
        assert post_key(DEMO, 1).get() is None


BAD_POSTS: list[dict[str, str]] = [
    {"title": ""},
    {"title": "x" * 200},
    {"title": "a\x00b"},
    {"body": ""},
    {"body": "x" * 50_000},
    {"tags": "a|b"},
    {"name": ""},
    {"name": "x" * 50},
    {"name": "a\nb"},
]


@pytest.mark.parametrize("fields", BAD_POSTS, ids=lambda fields: repr(fields)[:16])
def test_what_is_no_post_is_sent_back(
    browser: Browser, snapshot: Callable[[], Any], fields: dict[str, str]
) -> None:
    """S15, S16: 400 with a sentence at the field, the input kept, nothing stored."""
    stored = snapshot()

    response = browser.post("/blog/posts", {"id": FORM, **POST, **fields})

    assert response.status_code == 400
    assert 'role="alert"' in response.text
    assert f'id="{next(iter(fields))}-error"' in response.text
    assert snapshot() == stored


@pytest.mark.parametrize("text", ["", " ", "x" * 5000, "a\x00"], ids=lambda text: repr(text[:5]))
def test_what_is_no_comment_is_sent_back(
    browser: Browser, snapshot: Callable[[], Any], text: str
) -> None:
    """The post's page with a sentence at the field; nothing is stored."""
    where = publish(browser)
    stored = snapshot()

    response = browser.post(f"{where}/comments", {"id": OTHER, "text": text})

    assert response.status_code == 400
    assert 'id="text-error"' in response.text
    assert snapshot() == stored


def test_a_comment_with_no_place_is_404(browser: Browser, snapshot: Callable[[], Any]) -> None:
    """S28: on no post, or in reply to nothing, to another post's or to something made up."""
    where = publish(browser)
    stored = snapshot()

    statuses = [browser.post("/blog/9/comments", {"id": OTHER, "text": "x"}).status_code]
    for name in ("x", "demo|0000000002|0|x!y!z", "demo|0000000001|0|" + "9" * 150, "é"):
        form = {"id": OTHER, "text": "x", "reply_to": name}
        statuses.append(browser.post(f"{where}/comments", form).status_code)
    statuses += [browser.get(f"{where}/comments/{name}").status_code for name in ("x", "a!b!c")]
    statuses += [browser.post(f"{where}/comments/delete", {}).status_code]

    assert set(statuses) == {404}
    assert snapshot() == stored


def test_what_strangers_type_is_shown_as_text(browser: Browser) -> None:
    """S16: titles, texts, names and tags: no new element or attribute on any page."""
    publish(browser)
    pages = ("/blog", "/blog/1", "/blog/1/edit")
    plain = {page: set(tags(browser.get(page).text)) for page in pages}
    # A link is an element that Markdown may make.
    for text in XSS:
        form = {**POST, "title": text, "body": f"    {text}"}
        assert browser.post("/blog/1/edit", form).status_code == 303
        for page in pages:
            page_text = browser.get(page).text
            assert set(tags(page_text)) - plain[page] <= {("pre", ""), ("code", "")}
            assert text.partition("\n")[0] in html.unescape(page_text)


FORMS: dict[str, dict[str, str]] = {
    "/blog/posts": {"id": OTHER, **POST},
    "/blog/1/edit": {**POST, "title": "Forged"},
    "/blog/1/delete": {},
    "/blog/1/comments": {"id": OTHER, "text": "Forged"},
    "/blog/1/comments/delete": {},
    "/blog/sign-out": {},
    "/blog/samples": {},
}


@pytest.mark.parametrize("path", FORMS)
def test_a_form_without_our_token_does_nothing(
    world: World, browser: Browser, snapshot: Callable[[], Any], path: str
) -> None:
    """S19: no token, a stranger's, JSON, or a page from elsewhere."""
    publish(browser)
    stranger = Browser(world.app).token()
    stored = snapshot()

    responses = [
        browser.client.post(path, data=FORMS[path]),
        browser.client.post(path, json={"csrf_token": browser.token(), **FORMS[path]}),
        browser.post(path, FORMS[path], token=stranger),
        browser.post(path, FORMS[path], headers={"Sec-Fetch-Site": "cross-site"}),
        browser.post(path, FORMS[path], headers={"Origin": "https://example.com"}),
    ]

    assert [response.status_code for response in responses] == [403] * 5
    assert snapshot() == stored


def test_a_form_sent_again_after_a_key_was_replaced_counts_once(
    world: World, browser: Browser
) -> None:
    """S22: the sender is the author of its post, and may change it."""
    where = publish(browser)
    name = say(Browser(world.app), where, "Hello", OTHER).headers["Location"]
    keys = ("another-key-of-some-length-9876543210-zxy", *world.settings.secret_keys)
    later = app_with(world, settings=replace(world.settings, secret_keys=keys))
    author, commenter = Browser(later), Browser(later)

    assert publish(author) == where
    assert say(commenter, where, "Hello", OTHER).headers["Location"] == name

    assert author.get(f"{where}/edit").status_code == 200
    order = name.rpartition("/")[2]
    with world.context():
        comment = comment_by_order(post_id(DEMO, 1), order)
    deleted = commenter.post(f"{where}/comments/delete", {"comment": comment.key.id()})
    assert deleted.status_code == 303
    stranger = Browser(later)
    say(stranger, where, "Hi", "e" * 32)
    assert stranger.get(f"{where}/edit").status_code == 404


def test_a_name_begins_another_session(world: World, browser: Browser) -> None:
    """S21: the token of the session before is refused; the cookie holds a name and no secret."""
    old_token = browser.token()
    publish(browser)

    assert (
        browser.post("/blog/1/comments", {"id": OTHER, "text": "x"}, token=old_token).status_code
        == 403
    )
    assert "You are writing as <b>Ada</b>" in browser.get("/blog/1").text
    browser.post("/blog/sign-out")
    assert "Your name" in browser.get("/blog/1").text


def test_a_name_in_a_cookie_cannot_be_made_up(world: World, browser: Browser) -> None:
    """S21, S22: changed by a letter or signed by another key, the cookie is none."""
    publish(browser)
    cookie = browser.client.get_cookie("session")
    assert cookie is not None
    for value in (cookie.value[:-2] + "xx", "e30." + cookie.value.partition(".")[2], "x"):
        eve = Browser(world.app)
        eve.client.set_cookie("session", value)
        assert eve.get("/blog/1/edit").status_code == 404


def test_a_deployed_blog_keeps_its_cookie_to_itself(world: World) -> None:
    """S21: Secure, HttpOnly, SameSite, `__Host-`; an answer by cookie says so."""
    visitor = Browser(app_with(world, settings=on_cloud_run(world)))

    response = visitor.get("/blog/new", base_url="https://rollforward.example")

    cookie = response.headers["Set-Cookie"]
    assert cookie.startswith("__Host-session=")
    assert all(part in cookie for part in ("Secure", "HttpOnly", "SameSite=Lax"))
    assert response.headers["Vary"] == "Cookie"


def test_an_empty_blog_is_filled_by_a_button(world: World, browser: Browser) -> None:
    """Pressed twice, one run; a blog with posts says that it needs no samples."""
    for _ in range(2):
        assert browser.post("/blog/samples").status_code == 303
    assert 'data-total="10500"' in browser.get("/blog").text
    assert 'data-moving="yes"' in browser.get("/blog/live").text


def test_a_blog_with_posts_is_not_filled(browser: Browser) -> None:
    """It says why."""
    publish(browser)

    page = browser.post("/blog/samples", follow_redirects=True).text

    assert "samples are for an empty one" in page


def test_the_front_page_is_read_once_for_all_and_follows_what_is_published(
    world: World, browser: Browser
) -> None:
    """Served from memcached until the next post; a button refreshes it."""
    publish(browser, title="First")
    assert "Read from Datastore" in browser.get("/blog").text
    served = browser.get("/blog").text
    assert "From memcached" in served
    assert "First" in served

    publish(browser, OTHER, title="Second")
    assert "Second" in browser.get("/blog").text

    response = browser.post("/blog/kept/empty", {})
    assert response.status_code == 303
    assert "Read from Datastore" in browser.get("/blog").text
    assert world.app.test_client().post("/blog/kept/empty").status_code == 403


def test_pages_of_a_blog_whose_posts_are_gone(browser: Browser) -> None:
    """The page of costs works all the same."""
    publish(browser)
    browser.post("/blog/1/delete", {})

    assert browser.get("/blog/cost").status_code == 200


@pytest.mark.parametrize("field", ["title", "body", "tags", "name"])
def test_what_no_feed_can_hold_is_refused(browser: Browser, field: str) -> None:
    """XML forbids two code points: one post with one of them would end the feed for everybody."""
    response = browser.post("/blog/posts", {"id": FORM, **POST, field: "a\ufffeb"})

    assert response.status_code == 400
