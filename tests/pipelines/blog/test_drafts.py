"""Drafts: what is too long is refused before any work is done on it."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable

import pytest

from pipelines.blog import drafts
from pipelines.blog.drafts import (
    MAX_NAME_CHARS,
    MAX_TYPED_NAME_CHARS,
    MAX_TYPED_TAGS_CHARS,
    BadDraftError,
    comment_of,
    draft_of,
    name_of,
)

# Canonical ordering of these takes quadratic time: 200 s for 240,000 of them.
MARKS = "a" + "\u0300\u0316" * 49_999


@pytest.mark.parametrize(
    "read",
    [
        lambda: name_of(MARKS),
        lambda: draft_of("Title", "Body", MARKS),
        lambda: draft_of(MARKS, MARKS, MARKS),
        lambda: comment_of(MARKS),
    ],
    ids=["name", "tags", "post", "comment"],
)
def test_nothing_long_is_normalized(
    monkeypatch: pytest.MonkeyPatch, read: Callable[[], object]
) -> None:
    """S23: the time that a text takes grows with its length, whatever its characters are."""
    normalized: list[int] = []

    def normalize(form: str, text: str) -> str:
        normalized.append(len(text))
        return unicodedata.normalize(form, text)

    monkeypatch.setattr(drafts, "unicodedata", type("Spy", (), {"normalize": normalize}))

    with pytest.raises(BadDraftError, match="at most"):
        read()
    assert all(chars <= MAX_TYPED_TAGS_CHARS for chars in normalized)


def test_a_name_of_letters_with_marks_may_be_as_long_as_any() -> None:
    """The limit is that of the characters which are stored, however they were typed."""
    assert name_of("e\u0301" * MAX_NAME_CHARS) == "é" * MAX_NAME_CHARS
    with pytest.raises(BadDraftError, match=f"at most {MAX_NAME_CHARS} characters"):
        name_of("e\u0301" * (MAX_TYPED_NAME_CHARS // 2 + 1))
