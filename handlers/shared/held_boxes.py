"""Boxes of a picture that a script holds already, so that an answer has the others only.

The script names a run and the boxes of it that change no more, by chain and number. So what it
holds decides what it is sent, whichever process answers, and after a reload it is sent all.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flask import abort, request

from rollforward.continuations.progress import PageDots

MAX_HELD_CHARS = 4_000
_CHAIN = r"\d{1,4}:\d{1,8}(?:-\d{1,8})?(?:,\d{1,8}(?:-\d{1,8})?)*"
_FORM = re.compile(rf"([^!]{{1,500}})!({_CHAIN}(?:;{_CHAIN})*)", re.ASCII)


@dataclass(frozen=True)
class HeldBoxes:
    """The run of a picture, and the ranges of boxes that a script holds, by chain, in order."""

    run_id: str
    ranges: Mapping[int, Sequence[tuple[int, int]]]

    def __contains__(self, page: PageDots) -> bool:
        ranges = self.ranges.get(page.chain, ())
        place = bisect.bisect_right(ranges, page.number, key=lambda ends: ends[0])
        return place > 0 and page.number <= ranges[place - 1][1]


def held_boxes() -> HeldBoxes | None:
    """Return what the request's script holds, by its field "has"; None: nothing.

    Answers with 400 what is no such list.
    """
    text = request.args.get("has", "")
    if not text:
        return None
    match = _FORM.fullmatch(text)
    if match is None:
        abort(400, "has must be a run and its boxes, like run!0:0-57,60;1:0-3")
    chains = (chain.split(":") for chain in match[2].split(";"))
    return HeldBoxes(match[1], {int(chain): _ranges(listed) for chain, listed in chains})


def _ranges(listed: str) -> list[tuple[int, int]]:
    ends = [text.split("-") for text in listed.split(",")]
    return sorted((int(pair[0]), int(pair[-1])) for pair in ends)
