"""Pages of the blog that are read: lists and their addresses, threads, the feed, costs."""

from __future__ import annotations

import datetime
import html
import re
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import pytest

from models.blog import post_key
from pipelines.blog import comments
from pipelines.blog.drafts import Author
from pipelines.blog.posts import DEMO
from rollforward.testing.world import in_threads
from tests.handlers.conftest import Browser, app_with, on_cloud_run
from tests.handlers.hostile import XSS, tags
from tests.handlers.looking import look_only
from tests.infra.world import World
from tests.pipelines.blog.bloggers import ADA, BOB, said, written

pytestmark = pytest.mark.parametrize("services", ["datastore"], indirect=True)

ATOM = "{http://www.w3.org/2005/Atom}"


@pytest.fixture
def posts(world: World) -> World:
    """Five posts, three comments on the first."""
    written(world, 5)
    for text in ("one", "two", "three"):
        said(world, 1, text)
        world.clock.sleep(1)
    world.settle()
    return world


def links(text: str, rel: str) -> list[str]:
    matches = re.findall(rf'<a rel="{rel}" href="([^"#]+)', text)
    return [html.unescape(link) for link in matches]


def numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r'<h2><a href="/blog/(\d+)"', text)]


READ = ["/blog", "/blog?page_size=2", "/blog/1", "/blog/1?page_size=1", "/blog/tags/paging"]
READ += ["/blog?tab=cache", "/blog/tags/paging?tab=code"]
READ += ["/blog/feed.atom", "/blog/cost", "/blog/new", "/blog/live"]


@pytest.mark.parametrize("path", READ)
def test_what_is_read_changes_nothing(
    world: World, posts: World, browser: Browser, snapshot: Callable[[], Any], path: str
) -> None:
    """S19, S18: looking leaves the store as it was, and every response has its headers."""
    look_only(browser, snapshot, path)


def test_the_front_page_and_the_menu_lead_here(browser: Browser) -> None:
    """A card and an entry."""
    assert browser.get("/").text.count('href="/blog"') == 2


def test_an_empty_blog_says_what_to_do(browser: Browser) -> None:
    """A button that fills it, and a feed that is one without entries."""
    assert "Fill the blog" in browser.get("/blog").text
    assert "no posts yet" in browser.get("/blog/cost").text
    assert ElementTree.fromstring(browser.get("/blog/feed.atom").data).tag == f"{ATOM}feed"


def test_a_reader_walks_there_and_back(posts: World, browser: Browser) -> None:
    """I2: each post once, by the links of the pages, and the same pages backward."""
    pages = [browser.get("/blog?page_size=2").text]
    while following := links(pages[-1], "next"):
        pages.append(browser.get(following[0]).text)
    back = [pages[-1]]
    while previous := links(back[-1], "prev"):
        back.append(browser.get(previous[0]).text)

    assert [numbers(page) for page in pages] == [[5, 4], [3, 2], [1]]
    assert [numbers(page) for page in back] == [[1], [3, 2], [5, 4]]


def test_threads_are_walked_through(posts: World, browser: Browser) -> None:
    """I2: one comment a page, by the links of the page."""
    seen, address = [], "/blog/1?page_size=1"
    while True:
        page = browser.get(address).text
        seen += re.findall(r'<p class="comment-text">(\w+)</p>', page)
        following = links(page, "next")
        if not following:
            break
        address = following[0]

    assert seen == ["one", "two", "three"]


def test_a_token_of_another_list_is_refused(posts: World, browser: Browser) -> None:
    """S14: a token for another tag, another post or the comments, or a forged one: 400, no read."""
    of_all = links(browser.get("/blog?page_size=2").text, "next")[0].partition("?")[2]
    of_tag = links(browser.get("/blog/tags/paging?page_size=2").text, "next")[0].partition("?")[2]
    of_post = links(browser.get("/blog/1?page_size=1").text, "next")[0].partition("?")[2]
    wrong = [
        *(f"/blog/tags/paging?{of_all}", f"/blog/tags/python?{of_tag}", f"/blog?{of_tag}"),
        *(f"/blog/2?{of_post}", f"/blog?{of_post}", f"/blog/1?{of_all}"),
        *("/blog?page_token=x", "/blog/1?page_token=" + "A" * 2_400, "/blog?page_token=%00"),
        *("/blog?page_size=-1", "/blog?page_size=NaN", "/blog/1?page_size=%EF%BC%99"),
    ]

    assert {browser.get(address).status_code for address in wrong} == {400}
    assert browser.get(f"/blog?{of_all}").status_code == 200


def test_a_page_size_is_clamped(posts: World, browser: Browser) -> None:
    """S15: however many are asked for."""
    assert len(numbers(browser.get("/blog?page_size=1000000000").text)) == 5
    assert len(numbers(browser.get("/blog?page_size=0").text)) == 5


@pytest.mark.parametrize("path", ["/blog", "/blog/tags/paging"])
def test_a_page_whose_posts_were_deleted_leads_back(
    posts: World, browser: Browser, path: str
) -> None:
    """I2: its address was right when the reader got it."""
    following = links(browser.get(f"{path}?page_size=4").text, "next")[0]
    with posts.context():
        post_key(DEMO, 1).delete()

    page = browser.get(following)

    assert (page.status_code, numbers(page.text)) == (200, [])
    assert numbers(browser.get(links(page.text, "prev")[0]).text) == [5, 4, 3, 2]


UNKNOWN = ["9", "0", "01", "-1", "x", "９", "1" * 11, "9" * 90, "1.0", "%00", "a%0ab"]


@pytest.mark.parametrize("number", UNKNOWN, ids=lambda text: text[:8])
def test_a_post_that_is_not_there_is_404(posts: World, browser: Browser, number: str) -> None:
    """S28: for every number in the address."""
    for path in ("", "/edit", "/comments/new", "/comments/x"):
        assert browser.get(f"/blog/{number}{path}").status_code == 404
    assert browser.get(f"/blog/tags/{number * 40}").status_code == 404


def test_a_page_shows_texts_as_texts(world: World, browser: Browser) -> None:
    """S16: no name or comment adds an element or an attribute."""
    written(world, 1)
    said(world, 1, "plain", ADA)
    plain = set(tags(browser.get("/blog/1").text))
    for text in XSS:
        said(world, 1, text, Author("c" * 16, text[:40]))

    page = browser.get("/blog/1").text

    assert set(tags(page)) == plain
    for text in XSS:
        assert text in html.unescape(page)


def test_the_feed_is_atom(posts: World, browser: Browser) -> None:
    """RFC 4287: each post with its id, times, author and address; HTML as text."""
    with posts.context():
        post = post_key(DEMO, 3).get()
        post.title, post.updated = "<b>&amp; 夏", post.updated + datetime.timedelta(days=1)
        post.put()

    response = browser.get("/blog/feed.atom")

    assert response.headers["Content-Type"] == "application/atom+xml; charset=utf-8"
    feed = ElementTree.fromstring(response.data)
    entries = feed.findall(f"{ATOM}entry")
    ids = [entry.findtext(f"{ATOM}id") or "" for entry in (feed, *entries)]
    assert all(id_.startswith("urn:uuid:") for id_ in ids)
    assert len(set(ids)) == 6
    repeated = ElementTree.fromstring(browser.get("/blog/feed.atom").data)
    assert repeated.findtext(f"{ATOM}id") == ids[0]
    assert entries[2].findtext(f"{ATOM}title") == "<b>&amp; 夏"
    for entry in (feed, *entries):
        for name in ("id", "title", "updated"):
            assert entry.findtext(f"{ATOM}{name}")
    assert feed.findtext(f"{ATOM}updated") == entries[2].findtext(f"{ATOM}updated")
    assert entries[0].findtext(f"{ATOM}updated") == entries[1].findtext(f"{ATOM}updated")
    assert entries[0].findtext(f"{ATOM}summary") == "They begin beyond a row."
    assert entries[0].find(f"{ATOM}link").get("href") == "/blog/5"


def test_the_feed_repeats_no_name_that_a_caller_sends(posts: World) -> None:
    """S19: nor a scheme that only the front end knows: addresses are relative to the feed's own."""
    app = app_with(posts, settings=on_cloud_run(posts))

    text = Browser(app).get("/blog/feed.atom", headers={"Host": "elsewhere.example"}).text

    assert 'rel="self" type="application/atom+xml" href="/blog/feed.atom"' in text
    assert "elsewhere" not in text
    assert "real-project" not in text
    assert text.count("http://") == text.count('xmlns="http://') == 1


def test_a_page_says_what_it_cost(posts: World, browser: Browser) -> None:
    """As the meter counts it; by offset the last page costs more."""
    page = browser.get("/blog?page_size=2").text
    assert re.search(r"This page</dt><dd>\d+ reads</dd><dd class=\"each\">\d+ round trips", page)
    assert "for this request" in page
    assert "<b>5 reads</b>" in browser.get("/blog/cost").text


def test_what_pages_cost_is_measured_once_for_all_and_not_without_end(
    posts: World, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By offset a measurement reads skipped rows, too: up to a page, and cached for a while."""
    monkeypatch.setattr("pipelines.blog.cost.PAGE_SIZE", 2)
    monkeypatch.setattr("pipelines.blog.cost.MAX_PAGE", 2)

    first = browser.get("/blog/cost").text
    cost_before = posts.clients.meter.cost()
    repeated = browser.get("/blog/cost").text

    assert "Page 2" in first
    assert "Page 3" not in first
    assert (posts.clients.meter.cost() - cost_before).reads == 0
    assert "Page 2" in repeated


def test_what_is_new_is_shown_to_whoever_asks(posts: World, browser: Browser) -> None:
    """I3, S14: since the page was read, with the page's own token and no other."""
    page = browser.get("/blog/1").text
    address = html.unescape(re.findall(r'data-arrivals="([^"]+)"', page)[0])
    assert "No new comments" in browser.get(address).text

    said(posts, 1, "four", BOB)
    posts.clock.sleep(1)
    said(posts, 1, "five", ADA)

    text = browser.get(address).text
    assert "2 new comments" in text
    assert re.findall(r'<p class="comment-text">(\w+)</p>', text) == ["four", "five"]
    following = html.unescape(re.findall(r'data-next="([^"]+)"', text)[0])
    assert "No new comments" in browser.get(following).text
    said(posts, 1, "six", BOB)
    assert re.findall(r'<p class="comment-text">(\w+)</p>', browser.get(following).text) == ["six"]
    token = address.partition("=")[2]
    for wrong in ("", "x", token[:-1], "A" * 3_900, "%00"):
        assert browser.get(f"/blog/1/comments/new?since={wrong}").status_code == 400
    assert browser.get(f"/blog/2/comments/new?since={token}").status_code == 400


def test_a_comment_that_comes_while_a_page_is_made_is_new(
    posts: World, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I3: it is not on the page, so the page must not take it for one that was there."""
    sound = comments.threads_page

    def threads_page(*args: Any, **options: Any) -> Any:
        page = sound(*args, **options)
        in_threads(lambda: said(posts, 1, "meanwhile", BOB))
        return page

    monkeypatch.setattr(comments, "threads_page", threads_page)
    page = browser.get("/blog/1").text
    monkeypatch.undo()

    [address] = re.findall(r'data-arrivals="([^"]+)"', page)
    assert "meanwhile" not in page
    assert "meanwhile" in browser.get(html.unescape(address)).text
