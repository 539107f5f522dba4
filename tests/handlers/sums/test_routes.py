"""The pages of sums: forms act once, refuse bad input, and both sides add up."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from models.sums import sum_key
from pipelines.sums import load, sums
from rollforward.fork_join.batching.adaptive import BatchPolicy
from tests.handlers.conftest import Browser, app_with, on_cloud_run
from tests.handlers.hostile import XSS, tags
from tests.handlers.looking import look_only
from tests.infra.world import World

pytestmark = pytest.mark.parametrize("services", ["datastore"], indirect=True)

FORM, OTHER = "a" * 32, "b" * 32
LOAD = {"rate": "15", "writers": "3", "seconds": "1", "amounts": "random"}


@pytest.fixture
def visitors(browser: Browser) -> str:
    """A sum, and where its page is."""
    response = browser.post("/sums", {"name": "visitors"})
    assert response.status_code == 303, response.text
    return response.headers["Location"]


def total(world: World, name: str = "visitors") -> int:
    with world.context():
        row = sum_key(name).get()
    return row.total if row else 0


def figures(text: str) -> dict[str, str]:
    """Return the reconciliation of a page."""
    part = text.partition('class="sum-up"')[2].partition('class="verdict"')[0]
    return dict(re.findall(r'class="name">(\w+)</span> <span class="value">([^<]*)<', part))


# Reading


@pytest.mark.parametrize("path", ["/sums", "/sums/visitors", "/sums/visitors/live"])
def test_what_is_read_changes_nothing(
    world: World, browser: Browser, visitors: str, snapshot: Callable[[], Any], path: str
) -> None:
    """S19, S18: looking leaves the store as it was, and every response has its headers."""
    look_only(browser, snapshot, path)


def test_the_front_page_and_the_menu_lead_here(browser: Browser) -> None:
    """A card and an entry."""
    assert browser.get("/").text.count('href="/sums"') == 2


def test_what_is_empty_says_what_to_do(browser: Browser) -> None:
    """No sums; then a sum without a load, and nothing to reconcile."""
    assert "No sums yet" in browser.get("/sums").text

    page = browser.post("/sums", {"name": "visitors"}, follow_redirects=True).text

    assert "Press “Start the writers”" in page
    assert figures(page) == dict.fromkeys(("accepted", "folded", "waiting", "parked"), "0")
    assert "nothing was added yet" in page
    assert "Adds up" not in page


UNKNOWN = ["x", "Visitors", "-", "é", "a" * 41, "a" * 3_000, "..%2f..", "visitors%0a", "1", "a_b"]


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_sum_that_is_not_there_is_404(
    browser: Browser, visitors: str, snapshot: Callable[[], Any], name: str
) -> None:
    """S28: neither reading a sum nor adding to it creates one."""
    stored = snapshot()

    responses = [browser.get(path) for path in (f"/sums/{name}", f"/sums/{name}/live")]
    responses.append(browser.post(f"/sums/{name}/additions", {"id": FORM, "amount": "1"}))
    responses.append(browser.post(f"/sums/{name}/additions", {"id": FORM, "amount": "x"}))
    responses.append(browser.post(f"/sums/{name}/loads", {"id": FORM, **LOAD}))

    assert {response.status_code for response in responses} == {404}
    assert snapshot() == stored


# Making a sum

BAD_NAMES = [
    "",
    " ",
    "A",
    "1a",
    "-a",
    "a b",
    "a_b",
    "é",
    "ａ",
    "a" * 41,
    "a\x00",
    "a\nb",
    "x" * 200,
]


@pytest.mark.parametrize("name", [*BAD_NAMES, *XSS], ids=lambda text: repr(text[:12]))
def test_what_is_no_name_is_sent_back(
    browser: Browser, snapshot: Callable[[], Any], name: str
) -> None:
    """S15, S16: 400 with a sentence, shown as text, and nothing is made."""
    stored = snapshot()
    plain = browser.post("/sums", {"name": "0"}).text

    response = browser.post("/sums", {"name": name})

    assert response.status_code == 400
    assert 'id="name-error"' in response.text
    assert sorted(set(tags(response.text))) == sorted(set(tags(plain)))
    assert snapshot() == stored


def test_a_sum_is_made_once_and_there_are_not_too_many(
    browser: Browser, visitors: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Again: the page that there is. One too many: 409, with a sentence."""
    repeated = browser.post("/sums", {"name": " visitors "}, follow_redirects=True)
    assert "A sum of this name exists" in repeated.text

    monkeypatch.setattr(sums, "MAX_SUMS", 1)
    refused = browser.post("/sums", {"name": "b"})

    assert refused.status_code == 409
    assert "the most" in refused.text
    assert 'href="/sums/visitors"' in browser.get("/sums").text


# Adding


@pytest.mark.parametrize("amount", ["1", "-5", "+7", "0", "1000000000", "-1000000000"])
def test_an_amount_is_added_once_for_each_form(
    world: World, browser: Browser, visitors: str, amount: str
) -> None:
    """A double click counts once; both sides add up before the fold and after."""
    first = browser.post(f"{visitors}/additions", {"id": FORM, "amount": amount})
    repeated = browser.post(
        f"{visitors}/additions", {"id": FORM, "amount": amount}, follow_redirects=True
    )
    assert first.status_code == 303
    assert "was sent before" in repeated.text
    assert figures(repeated.text) | {"waiting": "1", "accepted": "1"} == figures(repeated.text)
    world.settle()

    page = browser.get(visitors).text
    assert total(world) == int(amount)
    assert figures(page) == {"accepted": "1", "folded": "1", "waiting": "0", "parked": "0"}
    assert "Adds up" in page


BAD_AMOUNTS = [
    *("", " ", "x", "1.0", "1e3", "0x10", "1_000", "NaN", "٣", "５", "−5", "1 000", "--1", "1;2"),
    *("1000000001", "-1000000001", "9" * 200, "1\x00", "💥", "<b>1</b>"),
]


@pytest.mark.parametrize("amount", BAD_AMOUNTS, ids=lambda text: repr(text[:12]))
def test_what_is_no_amount_is_sent_back(
    browser: Browser, visitors: str, snapshot: Callable[[], Any], amount: str
) -> None:
    """S15: 400, a sentence at the field, and nothing changed."""
    stored = snapshot()

    response = browser.post(f"{visitors}/additions", {"id": FORM, "amount": amount})

    assert response.status_code == 400
    assert 'id="amount-error"' in response.text
    assert snapshot() == stored


@pytest.mark.parametrize("form_id", ["", "x", "A" * 32, "a" * 31, "a" * 31 + "\n", "../../etc"])
def test_a_form_needs_an_id_of_ours(
    browser: Browser, visitors: str, snapshot: Callable[[], Any], form_id: str
) -> None:
    """S25: an id that no page of ours made is refused, and never becomes a key."""
    stored = snapshot()

    responses = [
        browser.post(f"{visitors}/additions", {"id": form_id, "amount": "1"}),
        browser.post(f"{visitors}/loads", {"id": form_id, **LOAD}),
    ]

    assert {response.status_code for response in responses} == {400}
    assert snapshot() == stored


# Loads


def test_a_load_is_shown_while_it_runs_and_adds_up_in_the_end(
    world: World, browser: Browser, visitors: str
) -> None:
    """3 writers, 15 items: the page says how many are expected, and then that all are there."""
    assert browser.post(f"{visitors}/loads", {"id": FORM, **LOAD}).status_code == 303
    early = browser.get(visitors).text
    assert "Writers running" in early
    assert 'data-moving="yes"' in early
    world.settle()

    page = browser.get(f"{visitors}/live").text

    with world.context():
        expected = load.status(world.clients, "visitors").load.expected.amount  # type: ignore[union-attr]
    assert total(world) == expected
    assert "15 of 15" in page
    assert f"adds {expected}" in page
    assert "All items are accepted" in page
    assert figures(page) == {"accepted": "15", "folded": "15", "waiting": "0", "parked": "0"}
    assert "Adds up" in page
    assert 'data-moving="no"' in page
    assert page.count('class="writer-step"') >= 3
    assert page.count('class="fold"') >= 1


@pytest.mark.parametrize("amounts", ["one", "random"])
def test_a_load_adds_ones_or_random_amounts_as_its_form_says(
    world: World, browser: Browser, visitors: str, amounts: str
) -> None:
    """15 items: 15, or the dice of this form's id."""
    browser.post(f"{visitors}/loads", {"id": FORM, **LOAD, "amounts": amounts})
    world.settle()

    assert (total(world) == 15) == (amounts == "one")


def test_what_the_queue_decides_is_explained(
    browser: Browser, visitors: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says how its next batch will be, and why; also before it has seen anything."""
    assert "the first item does not wait" in browser.get(f"{visitors}?tab=decided").text
    tuning = BatchPolicy(0.4, 100, 2, why_period="Waiting gathers about 40.")
    monkeypatch.setattr(sums.add_up, "policy", lambda clients, key: tuning)

    page = browser.get(f"{visitors}?tab=decided").text

    assert "The batch policy" in page
    for message in ("Open for 400 ms", "At most 100 items", "2 shards", "gathers about 40"):
        assert message in page


def test_the_command_on_the_page_is_one_that_the_api_takes(
    world: World, browser: Browser, visitors: str
) -> None:
    """Copied from the page: accepted."""
    command = html.unescape(browser.get(visitors).text.partition("<code>curl")[2])
    url = re.search(r"'http://[^/]+(/[^']+)'", command)
    fields = re.findall(r"-H '([^:]+): ([^']+)'", command)
    body = re.search(r"-d '([^']+)'", command)
    assert url is not None
    assert body is not None

    path = url[1].replace("wait_ms=2000", "wait_ms=0")
    response = browser.client.post(path, data=body[1], headers=dict(fields))

    assert response.status_code == 202, response.text


def test_the_command_asks_by_https_behind_a_front_end(world: World, visitors: str) -> None:
    """The front end ends TLS and asks the app by http; a POST to that is turned into a GET."""
    page = Browser(app_with(world, settings=on_cloud_run(world))).get(visitors).text

    assert "curl 'https://" in html.unescape(page)


def test_a_sum_is_under_one_load_at_a_time(
    world: World, browser: Browser, visitors: str, snapshot: Callable[[], Any]
) -> None:
    """The same form again changes nothing; another one has to wait."""
    browser.post(f"{visitors}/loads", {"id": FORM, **LOAD})
    stored = snapshot()

    repeated = browser.post(f"{visitors}/loads", {"id": FORM, **LOAD})
    other = browser.post(f"{visitors}/loads", {"id": OTHER, **LOAD})

    assert (repeated.status_code, other.status_code) == (303, 409)
    assert "load is running on this sum" in other.text
    assert snapshot() == stored


BAD_LOADS = [
    *[("rate", value) for value in ("", "0", "501", "-1", "1.5", "x", "９", "9" * 200, "1e2")],
    *[("writers", value) for value in ("", "0", "51", "-3", "NaN", "💥")],
    *[("seconds", value) for value in ("", "0", "21", "-1", "0x1", "\x00")],
]


@pytest.mark.parametrize(("field", "value"), BAD_LOADS, ids=lambda text: repr(text[:12]))
def test_what_is_no_load_is_sent_back(
    browser: Browser, visitors: str, snapshot: Callable[[], Any], field: str, value: str
) -> None:
    """S15, S27: out of its bounds: 400, a sentence at the field, and nothing starts."""
    stored = snapshot()

    response = browser.post(f"{visitors}/loads", {"id": FORM, **LOAD, field: value})

    assert response.status_code == 400
    assert f'id="{field}-error"' in response.text
    assert 'value="15"' in response.text or field == "rate"
    assert snapshot() == stored


def test_more_writers_than_items_are_not_started(
    world: World, browser: Browser, visitors: str
) -> None:
    """One item: one writer."""
    form = {"id": FORM, "rate": "1", "writers": "50", "seconds": "1", "amounts": "one"}
    browser.post(f"{visitors}/loads", form)
    world.settle()

    assert "1 writer, 1 item a second" in browser.get(visitors).text
    assert total(world) == 1


# Forms that are not ours


@pytest.mark.parametrize(
    ("path", "form"),
    [
        ("/sums", {"name": "forged"}),
        ("/sums/visitors/additions", {"id": FORM, "amount": "1"}),
        ("/sums/visitors/loads", {"id": FORM, **LOAD}),
        ("/break-it/memcached/flush", {}),
    ],
)
def test_a_form_without_our_token_does_nothing(
    browser: Browser,
    visitors: str,
    snapshot: Callable[[], Any],
    path: str,
    form: dict[str, str],
) -> None:
    """S19: no token, a wrong one, JSON, or one from elsewhere."""
    stored = snapshot()

    responses = [
        browser.client.post(path, data=form),
        browser.client.post(path, json=form),
        browser.post(path, form, token="x"),
        browser.post(path, form, headers={"Sec-Fetch-Site": "cross-site"}),
    ]

    assert [response.status_code for response in responses] == [403] * 4
    assert snapshot() == stored


# Break it


def test_memcached_is_flushed_on_a_laptop_alone(world: World, visitors: str) -> None:
    """The switch empties it and leads back; a deployed app has no such route."""
    url = world.services.cloud_tasks.control_url
    browser = Browser(app_with(world, settings=replace(world.settings, devserver_url=url)))
    world.clients.cache.set("canary", b"1", 60)
    assert "Flush memcached" in browser.get(visitors).text

    response = browser.post("/break-it/memcached/flush", {"back": visitors})

    assert response.headers["Location"] == visitors
    assert world.clients.cache.get("canary") is None
    for back in ("/sums/../x", "/sumsx", "//sums/a", "/sums/A", "https://e.example/sums/a"):
        response = browser.post("/break-it/memcached/flush", {"back": back})
        assert response.headers["Location"] == "/"


def test_a_deployed_app_breaks_nothing(world: World, visitors: str) -> None:
    """No switches on the page, and 404 for a form that tries."""
    deployed = Browser(app_with(world, settings=on_cloud_run(world)))
    secure: dict[str, Any] = {"base_url": "https://x.example"}
    page = deployed.get(visitors, **secure).text
    token = re.search(r'name="csrf_token" value="([^"]+)"', page)
    assert token is not None
    assert "Break it" not in page

    response = deployed.post(
        "/break-it/memcached/flush",
        token=token[1],
        headers={"Referer": "https://x.example/"},
        **secure,
    )

    assert response.status_code == 404


def test_the_page_says_when_something_is_missing(
    world: World, browser: Browser, visitors: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed process loses its tally, and both sides are equal; a lost item would be seen."""
    monkeypatch.setattr("pipelines.sums.tally_buffer.FLUSH_INTERVAL_S", 60)
    for path in ("/api/v1/sums/visitors",) * 3:
        assert browser.client.post(path, json={"amount": 2}).status_code == 202
    world.clients.process_state.clear()  # Killed: no last act.
    world.settle()
    page = browser.get(visitors).text
    assert "Adds up" in page

    for more, message in ((-5, "5 lost"), (9, "4 duplicated")):
        with world.context():
            row = sum_key("visitors").get()
            row.items += more
            row.put()

        assert message in browser.get(visitors).text
