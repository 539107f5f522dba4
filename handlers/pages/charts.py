"""Pictures of a run: a dot for each item, or a bar for each page. Drawn here, not in the browser.

A state has a shape of its own, so that a reader need not tell colours apart: done is a full
dot, waiting a small one, retrying an open circle, skipped a dash and failed a cross.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flask import Flask

from models.continuations import DONE, FAILED, RETRYING, SKIPPED, WAITING
from pipelines.continuations.progress import Progress

# More dots than this are too small to see and too many to send twice a second.
MAX_DOTS = 1000
# With more pages than this, some neighbours share a sheet.
MAX_SHEETS = 200
PITCH = 10
# What a pen draws from an item's place, one path for all items of a state.
PENS = {
    "waiting": (WAITING, "h0"),
    "done": (DONE, "h0"),
    "retrying": (RETRYING, "m-3 0a3 3 0 1 0 3-3"),
    "skipped": (SKIPPED, "m-2.5 0h5"),
    "failed": (FAILED, "m-2.5-2.5l5 5m0-5l-5 5"),
}
# From the end of a bar that fills first.
BAR_ORDER = ("done", "skipped", "failed", "retrying")


@dataclass(frozen=True)
class Segment:
    """A part of a bar: a state, and where it starts and how long it is, in percent."""

    state: str
    start: float
    length: float


@dataclass(frozen=True)
class Sheet:
    """A page of a run: a letter for each item. A page not read yet has only waiting ones.

    Of a run of very many pages it is `pages` of them, one after another.
    """

    letters: str
    is_read: bool = True
    pages: int = 1

    def count(self, state: str) -> int:
        return self.letters.count(PENS[state][0])

    @property
    def segments(self) -> list[Segment]:
        return segments({state: self.count(state) for state in PENS})

    @property
    def strokes(self) -> Iterator[tuple[str, str]]:
        """Yield a state and the path of all its dots, ten in a row."""
        for state, (letter, pen) in PENS.items():
            places = [i for i, found in enumerate(self.letters) if found == letter]
            if places:
                yield state, "".join(_move(i) + pen for i in places)

    @property
    def height(self) -> int:
        return -(-len(self.letters) // 10) * PITCH


def _move(place: int) -> str:
    row, column = divmod(place, 10)
    return f"M{column * PITCH + PITCH // 2} {row * PITCH + PITCH // 2}"


def register(app: Flask) -> None:
    """Add the charts to the templates."""
    app.add_template_filter(sheets)
    app.add_template_filter(unread_sheets)
    app.add_template_filter(segments)
    app.add_template_test(has_dots)


def sheets(run: Progress, page_size: int) -> list[Sheet]:
    """Return a run's pages, and as many unread ones as its waiting items will fill."""
    read = [Sheet(letters) for letters in run.dots if letters]
    size = max([len(sheet.letters) for sheet in read], default=page_size)
    return _bundled(read + _unread(run.expected - run.totals.known, size))


def unread_sheets(count: int, page_size: int) -> list[Sheet]:
    """Return the pages that so many items will fill.

    >>> [len(sheet.letters) for sheet in unread_sheets(250, 100)]
    [100, 100, 50]
    >>> [sheet.pages for sheet in unread_sheets(500, 1)][-2:]
    [3, 2]
    """
    return _bundled(_unread(count, page_size))


def _unread(count: int, size: int) -> list[Sheet]:
    starts = range(0, count, size)
    return [Sheet(WAITING * min(size, count - start), is_read=False) for start in starts]


def _bundled(pages: list[Sheet]) -> list[Sheet]:
    pages_a_sheet = -(-len(pages) // MAX_SHEETS)
    if pages_a_sheet <= 1:
        return pages
    starts = range(0, len(pages), pages_a_sheet)
    return [_joined(pages[start : start + pages_a_sheet]) for start in starts]


def _joined(pages: list[Sheet]) -> Sheet:
    letters = "".join(page.letters for page in pages)
    return Sheet(letters, any(page.is_read for page in pages), len(pages))


def has_dots(run: Progress) -> bool:
    """Return whether a run is small enough for a dot each."""
    return run.expected <= MAX_DOTS


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
