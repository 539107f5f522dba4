"""Excerpts of the code that ran: each equals its file at its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from handlers.blog import routes as blog
from handlers.counters import routes as counters
from handlers.grades import routes as grades
from handlers.invitations import routes as invitations
from handlers.numbers import routes as numbers
from handlers.shared.source_excerpts import ROOT, Excerpt, excerpt
from handlers.sums import routes as sums

PAGES = (blog, counters, grades, invitations, numbers, sums)
EXCERPTS = [shown for page in PAGES for shown in page._code()]
MAX_LINES = 34


@pytest.mark.parametrize("shown", EXCERPTS, ids=lambda shown: shown.place)
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
    assert excerpt("handlers.shared.source_excerpts", "ROOT", "").code.startswith("ROOT = ")
    assert excerpt("handlers.shared.source_excerpts", "Excerpt.place", "").code.splitlines() == [
        "@property",
        "def place(self) -> str:",
        '    return f"{self.path}:{self.line}"',
    ]
    for name in ("nothing", "Excerpt.nothing"):
        with pytest.raises(LookupError):
            excerpt("handlers.shared.source_excerpts", name, "")
