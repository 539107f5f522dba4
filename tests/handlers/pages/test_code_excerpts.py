"""The code that ran: what a page shows stands in its file, at its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from handlers.pages import blog, counters, grades, invitations, numbers, sums
from handlers.pages.code import ROOT, Excerpt, excerpt

PAGES = (blog, counters, grades, invitations, numbers, sums)
EXCERPTS = [each for page in PAGES for each in page._code()]
MAX_LINES = 34


@pytest.mark.parametrize("shown", EXCERPTS, ids=lambda each: each.place)
def test_an_excerpt_is_the_code_at_its_place(shown: Excerpt) -> None:
    """Line for line, but for the docstring, and short enough to be read."""
    lines = Path(ROOT / shown.path).read_text(encoding="utf-8").splitlines()
    code = shown.code.splitlines()

    assert 4 <= len(code) <= MAX_LINES
    assert code[0] == lines[shown.line - 1].strip()
    rest = iter(line.strip() for line in lines[shown.line - 1 :])
    assert all(line.strip() in rest for line in code)
    assert '"""' not in shown.code


def test_a_constant_and_a_method_are_found_and_nothing_else_is() -> None:
    """By name, and by Class.method; what was renamed is an error and no empty box."""
    assert excerpt("handlers.pages.code", "ROOT", "").code.startswith("ROOT = ")
    assert excerpt("handlers.pages.code", "Excerpt.place", "").code.splitlines() == [
        "@property",
        "def place(self) -> str:",
        '    return f"{self.path}:{self.line}"',
    ]
    for name in ("nothing", "Excerpt.nothing"):
        with pytest.raises(LookupError):
            excerpt("handlers.pages.code", name, "")
