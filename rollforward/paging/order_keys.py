"""Texts that sort as the tuples they are made of, byte by byte."""

from __future__ import annotations

import datetime
from typing import Final

EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
MICROSECOND: Final = datetime.timedelta(microseconds=1)
MAX_NUMBER: Final = 10**16 - 1
# As wide as the microseconds since 1970 are until the year 2286.
WIDTH: Final = 16
# Ends a part: it sorts before everything that an escaped text may hold.
END: Final = "!"
ESCAPE: Final = '"'


def order_key(*parts: datetime.datetime | int | str) -> str:
    """Return a text for a key or an indexed property; texts sort as their parts do.

    Args:
        parts: Times (naive ones are in UTC) from 1970 on, whole numbers from 0 to 10**16 - 1, and
            texts of any length. In all keys of one list the same place has the same type.

    Raises:
        ValueError: a part lies outside of what can be written so.

    >>> order_key(datetime.datetime(2030, 5, 1), "ada", 7)
    '1903824000000000!ada!0000000000000007'
    >>> order_key(9) < order_key(10), order_key("a", 2) < order_key("a!", 1)
    (True, True)
    """
    return END.join(map(_part, parts))


def number_key(number: int) -> str:
    """Return a text for a 64-bit number, negative ones too; texts sort as their numbers do.

    >>> number_key(-1) < number_key(0) < number_key(7)
    True
    """
    return f"{number + 2**63:020d}"


def number_of(key: str) -> int:
    """Return the number that `number_key` was given.

    >>> number_of(number_key(-5))
    -5
    """
    return int(key) - 2**63


def microseconds(at: datetime.datetime) -> int:
    """Return a time as microseconds since 1970; a naive one is in UTC."""
    aware = at if at.tzinfo else at.replace(tzinfo=datetime.UTC)
    return (aware - EPOCH) // MICROSECOND


def _part(part: datetime.datetime | int | str) -> str:
    if isinstance(part, str):
        return _escaped(part)
    number = microseconds(part) if isinstance(part, datetime.datetime) else part
    if not 0 <= number <= MAX_NUMBER:
        raise ValueError(f"a number in an order key must be 0 to {MAX_NUMBER}, got {part}")
    return f"{number:0{WIDTH}d}"


def _escaped(text: str) -> str:
    """Return a text without `END` or anything that sorts before it; the order stays.

    Datastore sorts texts by their bytes in UTF-8, which is the order of their characters.
    """
    text.encode()  # Half a character has no bytes: UnicodeEncodeError is a ValueError.
    return "".join(c if c > ESCAPE else ESCAPE + chr(ord(c) + ord("0")) for c in text)
