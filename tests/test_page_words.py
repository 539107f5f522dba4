"""Words that the pages do not use, and the texts in which they are looked for.

tests/page_words.toml lists them, each with what to write in its place. The list only grows.
"""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

from tests.infra.documents import ROOT, named, text_of

pytestmark = pytest.mark.fast

TEMPLATES = [
    path
    for folder in (
        "templates",
        "rollforward/look/templates",
        "rollforward/console/templates",
        "rollforward/local/console/templates",
    )
    for path in sorted((ROOT / folder).rglob("*.html"))
]
PYTHON = [
    path
    for folder in ("handlers", "rollforward/console", "rollforward/local/console")
    for path in sorted((ROOT / folder).rglob("*.py"))
]
CODE = re.compile(r"\{#.*?#\}|\{%.*?%\}|\{\{.*?\}\}", re.DOTALL)
LITERAL = re.compile(r'"([^"]*)"|\'([^\']*)\'')
SPOKEN = re.compile(r'(?:aria-label|title|alt|placeholder|data-say)="([^"]*)"')
WORDS: dict[str, str] = tomllib.loads(text_of("tests/page_words.toml"))["instead"]
MIN_WORDS = 40


def texts_of_template(source: str) -> list[str]:
    """Return the texts of a template: between tags, in spoken attributes, in its literals."""
    code = [match for match in CODE.findall(source) if not match.startswith("{#")]
    literals = [one or other for part in code for one, other in LITERAL.findall(part)]
    plain = re.sub(r"<(script|style).*?</\1>", "", CODE.sub("…", source), flags=re.DOTALL)
    texts = [*SPOKEN.findall(plain), *re.split(r"<[^>]*>", plain)]
    return [*texts, *(text for text in literals if " " in text.strip())]


def texts_of_python(source: str) -> list[str]:
    """Return the literals of several words; docstrings and comments are for engineers."""
    nodes = list(ast.walk(ast.parse(source)))
    docstrings = {
        id(node.body[0].value)
        for node in nodes
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if node.body and isinstance(node.body[0], ast.Expr)
    }
    return [
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if " " in node.value and id(node) not in docstrings
    ]


def odd(texts: list[str]) -> list[str]:
    """Return the words of the list that some texts use, with what to write instead."""
    plain = [" ".join(text.split()) for text in texts]
    return [
        f"“{match[0]}” in “{text[:80]}”: write {instead}"
        for pattern, instead in WORDS.items()
        for text in plain
        if (match := re.search(rf"\b(?:{pattern})\b", text, re.IGNORECASE))
    ]


@pytest.mark.parametrize("path", TEMPLATES, ids=named)
def test_a_template_uses_the_words_of_the_field(path: Path) -> None:
    """The app's pages, and those of both consoles."""
    assert odd(texts_of_template(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize("path", PYTHON, ids=named)
def test_texts_of_python_use_the_words_of_the_field(path: Path) -> None:
    """Messages, labels and summaries that a page shows."""
    assert odd(texts_of_python(path.read_text(encoding="utf-8"))) == []


def test_an_odd_word_is_found_wherever_a_page_has_it() -> None:
    """Between tags, in a title, in a literal of the template; not in its code or a comment."""
    assert len(WORDS) >= MIN_WORDS
    shown = ["<p>it came again</p>", '<a title="it came again">', '{{ "it came again" }}']
    hidden = ["{# it came again #}", "{{ came.again }}", '<a class="came again">']

    assert [len(odd(texts_of_template(text))) for text in shown] == [1, 1, 1]
    assert [odd(texts_of_template(text)) for text in hidden] == [[], [], []]
    assert odd(texts_of_python('"""It came again."""\nTEXT = "it came again"')) != []
    assert odd(texts_of_python('"""It came again."""')) == []
