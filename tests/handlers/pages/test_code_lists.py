"""The lists "The code that ran": what a page names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TEMPLATES = sorted(ROOT.glob("templates/**/*.html"))
FOLDERS = "handlers|demos|pipelines|models|devserver"
# A file, and behind a colon perhaps a function, a class or a method of it.
NAMED = re.compile(rf"\b((?:{FOLDERS})/[\w/]+\.py)(?::([\w.]+))?")


def names_in(path: Path) -> set[str]:
    """Return what a file defines: functions, classes, and methods as Class.method."""
    names: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = [each for each in node.body if isinstance(each, ast.FunctionDef)]
            names |= {f"{node.name}.{method.name}" for method in methods}
    return names


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: str(path.relative_to(ROOT)))
def test_all_code_that_a_page_names_exists(template: Path) -> None:
    """A file that was renamed, or a function that has gone, is renamed on its page, too."""
    text = template.read_text(encoding="utf-8")
    for path, name in NAMED.findall(text):
        assert (ROOT / path).is_file(), f"{path} does not exist"
        assert not name or name in names_in(ROOT / path), f"{path} has no {name}"
    listed = text.partition("{{ code([")[2].partition("]) }}")[0]
    assert len(NAMED.findall(listed)) == listed.count('("')


def test_every_demo_lists_its_code() -> None:
    """The page of each demo has such a list, and names a function in it."""
    lists = [path for path in TEMPLATES if "{{ code([" in path.read_text(encoding="utf-8")]
    assert {path.parent.name for path in lists} == {"blog", "grades", "invitations", "sums"}
    assert all(
        any(name for _, name in NAMED.findall(path.read_text(encoding="utf-8"))) for path in lists
    )
