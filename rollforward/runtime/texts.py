"""Texts from outside, like errors, in a form that a row can store."""

from __future__ import annotations

import json
import traceback

_LEFT_OUT = "\n  … (left out) …\n"


def has_unpaired_surrogate(text: str) -> bool:
    r"""Return whether a text has half of a surrogate pair in it, which UTF-8 cannot encode.

    >>> has_unpaired_surrogate("guest \ud83d"), has_unpaired_surrogate("guest \U0001f600")
    (True, False)
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def plain_text(text: object) -> str:
    """Return a text as JSON has it: Python prints a member of an enumeration by its name."""
    return str.__str__(text) if isinstance(text, str) else str(text)


def storable(text: str, max_chars: int) -> str:
    r"""Return the beginning of a text, with unpaired surrogates spelled out.

    >>> storable("no guest called \ud83d", 100)
    'no guest called \\ud83d'
    """
    return _spelled_out(text[:max_chars])[:max_chars]


def both_ends(text: str, max_chars: int) -> str:
    r"""Return a storable text, if it is long without its middle: a traceback ends with the error.

    >>> both_ends("abcdefghijklmnopqrstuvwxyz", 22)
    'ab\n  … (left out) …\nyz'
    """
    text = _spelled_out(text)
    if len(text) <= max_chars:
        return text
    half = (max_chars - len(_LEFT_OUT)) // 2
    return text[:half] + _LEFT_OUT + text[-half:]


def _spelled_out(text: str) -> str:
    """Return a text with its unpaired surrogates as escapes, which UTF-8 can encode."""
    return text.encode(errors="backslashreplace").decode()


def describe_error(error: BaseException) -> str:
    """Return the class of an error and its text; the class alone if that text fails.

    >>> describe_error(KeyError("guest"))
    "KeyError: 'guest'"
    """
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # Code of the app writes it: `__str__`.
        return type(error).__name__


def error_with_stack(error: BaseException) -> str:
    """Return an error as `describe_error` does, and its traceback below: lists show one line."""
    return f"{describe_error(error)}\n{''.join(traceback.format_exception(error))}"


def within_json(text: str, max_bytes: int) -> str:
    r"""Return the beginning of a text that fits into a number of bytes of JSON.

    An emoji takes twelve.

    >>> within_json("ab\U0001f600c", 14), within_json("ab\U0001f600c", 13)
    ('ab😀', 'ab')
    """
    size = 0
    for i, letter in enumerate(text):
        size += len(json.dumps(letter)) - 2
        if size > max_bytes:
            return text[:i]
    return text
