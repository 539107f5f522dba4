"""Boxes that a script holds already: it is sent the others, whichever process answers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from flask import Flask
from werkzeug.exceptions import BadRequest

from handlers.invitations.stage import canvas_of
from handlers.shared.held_boxes import held_boxes
from rollforward.continuations.progress import PageDots, RunProgress, RunTotals
from rollforward.runtime import Cost

pytestmark = pytest.mark.fast


def run_of(*pages: PageDots) -> RunProgress:
    totals = RunTotals(0, 0, 0, 0, 0, 0, len(pages), Cost())
    return RunProgress("run", "running", 100, totals, 1.0, (), pages=pages, chains=2)


PAGES = [PageDots(chain, number, "dd", number < 3) for chain in (0, 1) for number in range(4)]


def canvas(has: str) -> dict[str, Any]:
    """Return the canvas for a script that says so."""
    with Flask(__name__).test_request_context(query_string={"has": has}):
        return canvas_of(run_of(*PAGES), [], held_boxes())


@pytest.mark.parametrize(
    ("has", "sent"),
    [
        ("", [(c, n) for c in (0, 1) for n in range(4)]),
        ("run!0:0-2;1:0-2", [(0, 3), (1, 3)]),
        ("run!0:1", [(0, 0), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3)]),
        ("run!1:0,2", [(0, 0), (0, 1), (0, 2), (0, 3), (1, 1), (1, 3)]),
        ("run!0:2,0-1;1:0-99999999", [(0, 3), (1, 3)]),
        ("other!0:0-2;1:0-2", [(c, n) for c in (0, 1) for n in range(4)]),
    ],
)
def test_what_is_held_and_done_is_not_sent_again(has: str, sent: list[tuple[int, int]]) -> None:
    """A box that is not done is always sent; boxes of another run hold nothing back."""
    picture = canvas(has)
    assert [(box[0], box[1]) for box in picture["boxes"]] == sent
    assert picture["is_partial"] == has.startswith("run!")
    assert (picture["expected"], picture["waiting"]) == (100, 100 - 16)
    json.dumps(picture)


@pytest.mark.parametrize(
    "has", ["x", "run!", "!0:1", "run!0", "run!0:", "run!0:1-", "run!0:x", "run!0:1;", "run!-1:0"]
)
def test_what_is_no_list_of_boxes_is_refused(has: str) -> None:
    """With 400, and the form it has."""
    with pytest.raises(BadRequest, match="0:0-57"):
        canvas(has)
