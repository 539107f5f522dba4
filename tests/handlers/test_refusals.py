"""Refused forms: each refusal is a 400 that names its field, and changes nothing."""

from __future__ import annotations

import html
import io
from collections.abc import Callable
from typing import Any

import pytest

from tests.handlers.conftest import Browser
from tests.handlers.invitations.party import ID

pytestmark = pytest.mark.parametrize("services", ["datastore"], indirect=True)

LOAD = {"rate": "5", "writers": "2", "seconds": "1", "amounts": "one"}
CLICKS = {"rate": "5", "seconds": "1", "ways": "all"}
ORDERS = {"orders": "3", "stock": "3", "courier": "two-thirds", "patience": "15", "pace": "fast"}
QUILT = {"size": "8", "palette": "indigo", "pattern": "log-cabin", "pace": "fast"}
FLOOD = {"flood": "9", "behind": "1", "tasks": "1", "chosen": "B", "rule": "none", "pace": "fast"}
TENANTS = {**FLOOD, "dead": "0", "way": "lanes"}
PARTY = {"title": "T", "when": "2030-01-01T10:00", "place": "P", "host": "H"}
POST = {"title": "T", "body": "B", "tags": "", "name": "N"}
STUDENT = {"name": "N", "grade": "3", "points": "5"}
# Of each form: where it is sent, a good one, a field of it that is spoilt, and its label.
SPOILT = [
    ("/sums/visitors/loads", LOAD, "rate", "Items a second"),
    ("/sums/visitors/loads", LOAD, "writers", "Writers"),
    ("/sums/visitors/loads", LOAD, "amounts", "Amounts"),
    ("/sums/visitors/additions", {"amount": "1"}, "amount", "Amount"),
    ("/sums", {"name": "visitors"}, "name", "Name"),
    ("/counters/loads", CLICKS, "rate", "Clicks a second"),
    ("/counters/loads", CLICKS, "ways", "Count them"),
    ("/counters/clicks", {"amount": "1"}, "amount", "Amount"),
    ("/counters/shards", {"shards": "3", "how": "by-hand"}, "shards", "Shards"),
    ("/orders", ORDERS, "orders", "Orders"),
    ("/orders", ORDERS, "pace", "The bank takes"),
    ("/tenants", TENANTS, "flood", "Tasks of A"),
    ("/tenants", TENANTS, "rule", "The rule"),
    ("/quilt", QUILT, "size", "Size"),
    ("/streams/weblog/logs", {"sample": "yes", "pace": "watch"}, "pace", "Read it at"),
    ("/invitations", PARTY, "when", "When"),
    ("/grades/students", STUDENT, "grade", "Grade"),
    ("/grades/students", STUDENT, "points", "Points"),
    ("/blog/posts", POST, "tags", "Tags"),
]
BAD = {"tags": "#" * 300, "name": "!"}


@pytest.mark.parametrize(("path", "form", "field", "label"), SPOILT)
def test_a_refused_form_names_the_field_in_its_summary(
    browser: Browser,
    snapshot: Callable[[], Any],
    path: str,
    form: dict[str, str],
    field: str,
    label: str,
) -> None:
    """With a link to it, and nothing is stored."""
    if path.startswith("/sums/"):
        browser.post("/sums", {"name": "visitors"})
    stored = snapshot()

    response = browser.post(path, {"id": ID, **form, field: BAD.get(field, "abc")})

    assert response.status_code == 400
    summary = html.unescape(response.text.partition('role="alert"')[2].partition("</div>")[0])
    assert f'<a href="#{field}">' in summary
    assert label.lower() in summary.lower()
    assert snapshot() == stored


@pytest.mark.parametrize(
    ("path", "form", "said"),
    [
        ("send", {"pace": "abc"}, "pace must be one of watch, fast."),
        ("sample-guests", {"count": "7"}, "count must be one of 10, 100, 1000, 10000."),
        (
            "/counters/shards",
            {"how": "abc", "shards": "3"},
            "how must be one of by-hand, adaptive.",
        ),
        ("/zeitgeist/playbacks", {"speed": "abc", "sample": "yes"}, "speed must be one of "),
    ],
)
def test_a_choice_that_no_list_offers_is_refused(
    browser: Browser, snapshot: Callable[[], Any], party: str, path: str, form: dict[str, str],
    said: str,
) -> None:  # fmt: skip
    """A button's or a list's value can only be wrong if it was not sent by the page."""
    stored = snapshot()

    address = path if path.startswith("/") else f"{party}/{path}"
    response = browser.post(address, {"id": ID, **form})

    assert response.status_code == 400
    assert said in response.text
    assert snapshot() == stored


@pytest.mark.parametrize(
    ("path", "field", "problem", "example"),
    [
        ("guests", "file", "no column for mail addresses", "hanako@example.com"),
        ("/grades/lists", "file", "name the columns", "7, 92"),
        ("/zeitgeist/playbacks", "files", "line 1", "2026-01-05 00:05,12"),
        ("/streams/weblog/logs", "file", "this is no access log", "GET / HTTP/1.1"),
    ],
)
def test_a_refused_file_is_named_as_it_was_called_and_its_refusal_says_what_to_write(
    browser: Browser, party: str, path: str, field: str, problem: str, example: str
) -> None:
    """Not with a capital letter, nor without its ending."""
    address = path if path.startswith("/") else f"{party}/{path}"
    form = {"id": "e" * 32, "speed": "30000", field: (io.BytesIO(b"hello\n"), "bad list.csv")}

    response = browser.client.post(address, data={"csrf_token": browser.token(), **form})

    text = html.unescape(response.text)
    assert response.status_code == 400
    assert f"“bad list.csv”: {problem}" in text
    assert example in text
