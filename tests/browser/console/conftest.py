"""A stack that has worked, for tests that look at its console."""

from __future__ import annotations

import re

import pytest
import requests

from tests.infra.stack import Stack, until

# Pages of one thing, which are there when the app has worked: where they are linked, and how.
OTHER_PAGES = (
    ("/tasks?state=done&queue=imports", '/tasks/imports/[^"]+'),
    ("/data/kind/ContinuationPage", '/data/entity[^"]+'),
)


@pytest.fixture(scope="package")
def busy(stack: Stack) -> Stack:
    """A stack that has worked: a run with its tasks, mails and lines."""
    page = stack.visitor.get(f"{stack.app}/invitations", timeout=30).text
    csrf, form_id = (
        re.search(rf'name="{n}" value="([^"]+)"', page)[1] for n in ("csrf_token", "id")
    )  # type: ignore[index]
    party = {"title": "T", "host": "H", "place": "P", "when": "2030-05-01T19:30", "note": ""}
    stack.visitor.post(
        f"{stack.app}/invitations", data={"csrf_token": csrf, "id": form_id, **party}, timeout=30
    )
    url = f"{stack.app}/invitations/{form_id}"
    stack.post(f"{url}/guests", page=url, pasted="name,email\nAda,ada@example.com\nNo,nothing")
    until(lambda: all(links(stack, path, pattern) for path, pattern in OTHER_PAGES), 60)
    return stack


def links(stack: Stack, path: str, pattern: str) -> list[str]:
    """Return the links of a page, once it has its list."""

    def has_list() -> bool:
        nonlocal text
        text = requests.get(stack.console + path, timeout=30).text
        return "Reading. " not in text

    text = ""
    until(has_list, 60)
    return [link.replace("&amp;", "&") for link in re.findall(rf'href="({pattern})"', text)]
