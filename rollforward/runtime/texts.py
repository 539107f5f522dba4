"""Texts that others wrote, such as errors, in a form in which a row takes them."""

from __future__ import annotations

import json


def storable(text: str, max_chars: int) -> str:
    r"""Return the beginning of a text, without halves of characters: no row and no page takes one.

    >>> storable("no guest called \ud83d", 100)
    'no guest called \\ud83d'
    """
    return text[:max_chars].encode(errors="backslashreplace").decode()[:max_chars]


def within_json(text: str, max_bytes: int) -> str:
    r"""Return as much of a text as takes so many bytes in JSON, where an emoji takes twelve.

    >>> within_json("ab\U0001f600c", 14), within_json("ab\U0001f600c", 13)
    ('ab😀', 'ab')
    """
    size = 0
    for i, letter in enumerate(text):
        size += len(json.dumps(letter)) - 2
        if size > max_bytes:
            return text[:i]
    return text
