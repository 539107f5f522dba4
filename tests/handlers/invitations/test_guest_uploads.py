"""Lists of guests that visitors upload, paste or have made up."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest

from tests.handlers.conftest import Browser
from tests.handlers.hostile import TOO_LARGE
from tests.handlers.invitations.party import GUESTS, ID, PAGE, upload
from tests.infra.world import World

pytestmark = pytest.mark.parametrize("services", ["datastore"], indirect=True)


JUNK = {
    "nothing": (b"", "empty"),
    "a zip": (b"PK\x03\x04" + bytes(range(256)) * 50, "UTF-8"),
    "a picture": (b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 50, "UTF-8"),
    "UTF-16": ("name,email\nAnn,ann@example.com".encode("utf-16"), "UTF-8"),
    "noise": (bytes(range(1, 256)) * 50, "no column for mail addresses"),
    "a letter": (b"Dear all, please come.", "no column for mail addresses"),
    "too large": (b"Ann,ann@example.com\n" * (10 * 2**20 // 20 + 1), "larger than 10 MiB"),
}


@pytest.mark.parametrize(("content", "message"), JUNK.values(), ids=JUNK)
def test_a_file_that_is_no_list_is_refused_with_a_sentence(
    browser: Browser, snapshot: Callable[[], Any], content: bytes, message: str
) -> None:
    """S23: 400, the reason, and nothing stored."""
    browser.create_party(ID)
    stored = snapshot()

    response = browser.post(f"{PAGE}/guests", upload(content))

    assert response.status_code == 400
    assert message.casefold() in response.text.casefold()
    assert snapshot() == stored


def test_rows_can_be_pasted(world: World, browser: Browser) -> None:
    """The same import reads a file and pasted text."""
    browser.create_party(ID)

    response = browser.post(f"{PAGE}/guests", {"id": "b" * 32, "pasted": "花子, h@example.com\r\n"})
    world.settle()

    assert response.status_code == 303
    assert "h@example.com" in browser.get(f"{PAGE}?tab=guests").text


def test_a_second_file_at_a_time_is_told_to_wait(browser: Browser, bare_party: str) -> None:
    """409: nothing is lost, the next press works when the first file has been read."""
    assert browser.post(f"{PAGE}/guests", upload(GUESTS, form_id="1" * 32)).status_code == 303

    repeated = browser.post(f"{PAGE}/guests", upload(GUESTS, form_id="2" * 32))
    sample = browser.post(f"{PAGE}/sample-guests", {"id": "3" * 32, "count": "10"})

    assert (repeated.status_code, sample.status_code) == (409, 409)
    assert "is being read" in repeated.text


def test_a_form_of_another_party_is_refused(browser: Browser, party: str) -> None:
    """S28: an import's id belongs to one party."""
    browser.create_party("c" * 32)

    response = browser.post(f"/invitations/{'c' * 32}/guests", upload("Eve,eve@example.com"))

    assert response.status_code == 400


@pytest.mark.parametrize("count", ["", "0", "-1", "11", "1e9", "NaN", "10 or 1", "9" * 200])
def test_a_number_of_guests_that_is_not_offered_is_400(
    browser: Browser, bare_party: str, snapshot: Callable[[], Any], count: str
) -> None:
    """S15: one of four numbers, or nothing at all."""
    stored = snapshot()

    response = browser.post(f"{PAGE}/sample-guests", {"id": "3" * 32, "count": count})

    assert response.status_code == 400
    assert snapshot() == stored


@pytest.mark.parametrize("form", TOO_LARGE.values(), ids=TOO_LARGE)
def test_a_form_that_is_too_large_is_413(
    browser: Browser, bare_party: str, snapshot: Callable[[], Any], form: dict[str, Any]
) -> None:
    """S23: refused before it is read to its end."""
    stored = snapshot()
    files = {
        name: (io.BytesIO(b"x" * value[0]), value[1]) if isinstance(value, tuple) else value
        for name, value in form.items()
    }

    response = browser.post(f"{PAGE}/guests", files)

    assert response.status_code == 413
    assert "too large" in response.text
    assert snapshot() == stored


def test_a_million_fields_are_refused_unread(browser: Browser, bare_party: str) -> None:
    """S23, M14: what costs seconds to take apart is not taken apart."""
    body = b"a=1&" * 1_000_000
    kind = "application/x-www-form-urlencoded"

    assert browser.client.post(f"{PAGE}/send", data=body, content_type=kind).status_code == 413
