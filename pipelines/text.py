"""Check of typed texts: the characters that a line of a page can show."""

from __future__ import annotations

import unicodedata

# Control characters, surrogates, and separators of lines and paragraphs.
HIDDEN = ("Cc", "Cs", "Zl", "Zp")
# XML, and so a feed, may not hold them.
NO_CHARACTERS = "\ufffe\uffff"


def can_be_shown(text: str) -> bool:
    """Return whether a text is without line breaks and control characters.

    Wide blanks and joiners are letters' everyday company in Japanese and in emoji, although
    `str.isprintable` turns them down.

    >>> [can_be_shown(text) for text in ("庭の　パーティー", "a\\u2028b", "a\\x00b", "a\\ufffe")]
    [True, False, False, False]
    """
    return all(
        unicodedata.category(char) not in HIDDEN and char not in NO_CHARACTERS for char in text
    )
