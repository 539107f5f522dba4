"""Checks for every page that a visitor only reads."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from rollforward.flask.guards.security import CONTENT_SECURITY_POLICY
from tests.handlers.conftest import Browser


def look_only(browser: Browser, snapshot: Callable[[], Any], path: str) -> None:
    """Look at a page in each safe way: nothing is stored, and no response lacks its headers."""
    stored = snapshot()

    responses = [browser.client.open(path, method=method) for method in ("GET", "HEAD", "OPTIONS")]

    assert snapshot() == stored
    assert [response.status_code for response in responses] == [200, 200, 200]
    for response in responses:
        assert response.headers["Content-Security-Policy"] == CONTENT_SECURITY_POLICY
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son[a-z]+=", responses[0].text)
