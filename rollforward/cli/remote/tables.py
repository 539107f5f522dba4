"""Rows for people: columns of text whose control characters cannot reach the terminal."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence

MAX_CELL = 60


def printable(text: str) -> str:
    """Return a text on one line, in which nothing moves a cursor or sets a colour.

    >>> printable("a\\x1b[31mb\\nc")
    'a?[31mb c'
    """
    return "".join(char if char.isprintable() else "?" for char in " ".join(text.splitlines()))


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table with a head; a long cell ends with an ellipsis, but the last column's.

    >>> print(table(["ID", "STATE"], [["a", "done"], ["bcd", None]]))
    ID   STATE
    a    done
    bcd
    """
    lines = [list(head), *([_format(value) for value in row] for row in rows)]
    shown = [[*(_truncate(cell) for cell in line[:-1]), line[-1]] for line in lines]
    widths = [max(len(line[column]) for line in shown) for column in range(len(head))]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in shown
    )


def format_time(value: object) -> str:
    """Return a time, in seconds since 1970 or as ISO 8601, to the second in UTC.

    >>> format_time(0), format_time("2030-05-01T14:00:00.25+02:00"), format_time(None)
    ('1970-01-01 00:00:00Z', '2030-05-01 12:00:00Z', '')
    """
    try:
        if isinstance(value, int | float):
            at = datetime.datetime.fromtimestamp(value, datetime.UTC)
        else:
            at = datetime.datetime.fromisoformat(str(value)).astimezone(datetime.UTC)
    except (ValueError, OverflowError, OSError):
        return ""
    return f"{at:%Y-%m-%d %H:%M:%S}Z"


def _format(value: object) -> str:
    return "" if value is None else printable(str(value))


def _truncate(cell: str) -> str:
    return cell if len(cell) <= MAX_CELL else cell[: MAX_CELL - 1] + "…"
