"""Pictures of a run for browsers without a script, and its table: a bar for each page.

With a script a canvas shows a dot for each item (static/picture.js).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flask import Flask

from rollforward.continuations.entities import DONE, FAILED, RETRYING, SKIPPED, WAITING

STATE_OF = {
    WAITING: "waiting",
    DONE: "done",
    RETRYING: "retrying",
    SKIPPED: "skipped",
    FAILED: "failed",
}
# From the end of a bar that fills first.
BAR_ORDER = ("done", "skipped", "failed", "retrying")
# More bars than this are too many to send; they are there to be seen, the table has them all.
MAX_BARS = 400
_RUN = re.compile(r"(\d+)(.)")


@dataclass(frozen=True)
class Segment:
    """A part of a bar: a state, and where it starts and how long it is, in percent."""

    state: str
    start: float
    length: float


@dataclass(frozen=True)
class PageBar:
    """A page of a run: how many of its items are in each state, and how often it was hit."""

    chain: int
    number: int
    counts: Counter[str]
    hits: int
    is_read: bool = True

    @property
    def segments(self) -> list[Segment]:
        return segments(self.counts)


def register(app: Flask) -> None:
    """Add the charts to the templates."""
    app.add_template_filter(segments)


def page_bars(picture: dict[str, Any] | None) -> list[PageBar]:
    """Return a bar for each page of a canvas, and for each page that is not read yet."""
    if picture is None:
        return []
    hits = picture["hits"]
    bars = [
        PageBar(chain, number, counted(packed), hits.get(f"{chain}:{number}", 0))
        for chain, number, packed, _ in picture["boxes"]
    ]
    size = max(1, picture["size"])
    unread = [
        PageBar(0, 0, Counter(waiting=min(size, picture["waiting"] - start)), 0, is_read=False)
        for start in range(0, picture["waiting"], size)
    ]
    return (bars + unread)[:MAX_BARS]


def counted(packed: str) -> Counter[str]:
    """Return how many items are in each state, of letters with their counts.

    >>> sorted(counted("3d2.1r").items())
    [('done', 3), ('retrying', 1), ('waiting', 2)]
    """
    counts: Counter[str] = Counter()
    for count, letter in _RUN.findall(packed):
        counts[STATE_OF[letter]] += int(count)
    return counts


def segments(counts: dict[str, int], order: Sequence[str] = BAR_ORDER) -> list[Segment]:
    """Return the filled parts of a bar; what is waiting stays empty.

    >>> [(s.state, s.start, s.length) for s in segments({"done": 3, "failed": 1, "waiting": 4})]
    [('done', 0.0, 37.5), ('failed', 37.5, 12.5)]
    """
    total = sum(counts.values())
    parts: list[Segment] = []
    start = 0.0
    for state in order:
        if count := counts.get(state, 0):
            length = 100 * count / total
            parts.append(Segment(state, round(start, 3), round(length, 3)))
            start += length
    return parts
