"""Validation of typed posts, comments, names and tags."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass

from pipelines.blog import markdown
from pipelines.text import can_be_shown

MAX_TITLE_CHARS = 160
MAX_BODY_CHARS = 40_000
MAX_TAGS = 6
MAX_TAG_CHARS = 30
MAX_COMMENT_CHARS = 4_000
MAX_NAME_CHARS = 40
# Limits before normalization (quadratic in combining marks), which may shorten a text.
MAX_TYPED_TAGS_CHARS = 400
MAX_TYPED_NAME_CHARS = 4 * MAX_NAME_CHARS
# Line breaks; every other control character is refused.
_LINE_BREAKS = re.compile(r"\r\n?")
_TAG = re.compile(r"[\w][\w.+-]*")


class BadDraftError(ValueError):
    """These texts cannot be published; `errors` has the reason by field."""

    def __init__(self, errors: Mapping[str, str]) -> None:
        super().__init__("; ".join(errors.values()))
        self.errors = errors


@dataclass(frozen=True)
class Author:
    """Author of a post or comment: a random id, and the display name."""

    id: str
    name: str


@dataclass(frozen=True)
class Draft:
    """A post as its author writes it."""

    title: str
    body: str
    tags: tuple[str, ...] = ()


def draft_of(title: str, body: str, tags: str) -> Draft:
    """Return the draft of a post from the typed texts.

    Raises:
        BadDraftError: a field is invalid.

    >>> draft_of(" 庭の夏 ", "*Hi*", "Garden, 夏  garden")
    Draft(title='庭の夏', body='*Hi*', tags=('garden', '夏'))
    """
    title, body = title.strip(), _LINE_BREAKS.sub("\n", body).strip()
    errors = {
        "title": _line_problem("a title", title, MAX_TITLE_CHARS),
        "body": _text_problem("a post", body, MAX_BODY_CHARS) or markdown.problem_of(body),
        "tags": _tags_problem(tags),
    }
    _raise_if_any(errors)
    return Draft(title, body, tags_of(tags))


def tags_of(text: str) -> tuple[str, ...]:
    """Return the tags in a short text, each once; separated by commas or blanks."""
    words = unicodedata.normalize("NFKC", text).casefold().replace("、", ",")
    return tuple(dict.fromkeys(word.lstrip("#") for word in re.split(r"[\s,]+", words) if word))


def is_tag(text: str) -> bool:
    """Return whether this can be a tag.

    >>> [is_tag(text) for text in ("python", "c++", "夏", "a b", "#x", "|", "")]
    [True, True, True, False, False, False, False]
    """
    return len(text) <= MAX_TAG_CHARS and _TAG.fullmatch(text) is not None


def comment_of(text: str) -> str:
    """Return the normalized text of a typed comment.

    Raises:
        BadDraftError: it is invalid.
    """
    text = _LINE_BREAKS.sub("\n", text).strip()
    _raise_if_any({"text": _text_problem("a comment", text, MAX_COMMENT_CHARS)})
    return text


def name_of(text: str) -> str:
    """Return the normalized display name from a typed text.

    Raises:
        BadDraftError: it is invalid.
    """
    if len(text) > MAX_TYPED_NAME_CHARS:
        raise BadDraftError({"name": _length_problem("a name", text, MAX_NAME_CHARS)})
    name = unicodedata.normalize("NFC", text).strip()
    _raise_if_any({"name": _line_problem("a name", name, MAX_NAME_CHARS)})
    return name


def _raise_if_any(errors: Mapping[str, str]) -> None:
    if problems := {field: error for field, error in errors.items() if error}:
        raise BadDraftError(problems)


def _line_problem(field: str, text: str, limit: int) -> str:
    if problem := _length_problem(field, text, limit):
        return problem
    return "" if can_be_shown(text) else f"{field} must be one line, without control characters"


def _text_problem(field: str, text: str, limit: int) -> str:
    if problem := _length_problem(field, text, limit):
        return problem
    lines = text.replace("\t", " ").split("\n")
    return "" if all(map(can_be_shown, lines)) else f"{field} must have no control characters"


def _length_problem(field: str, text: str, limit: int) -> str:
    if not text:
        return f"{field} must have some text"
    if len(text) > limit:
        return f"{field} must have at most {limit:,} characters, got {len(text):,}"
    return ""


def _tags_problem(text: str) -> str:
    tags = tags_of(text) if len(text) <= MAX_TYPED_TAGS_CHARS else ()
    if len(text) > MAX_TYPED_TAGS_CHARS or len(tags) > MAX_TAGS:
        return f"a post must have at most {MAX_TAGS} tags"
    if not all(map(is_tag, tags)):
        return f"a tag must be a word of at most {MAX_TAG_CHARS} letters, digits or . + -"
    return ""
