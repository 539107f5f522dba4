"""Docstrings as Markdown: their sections as lists, their indented blocks as code."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator

SECTIONS = ("Args", "Attributes", "Raises", "Returns", "Yields")
_SECTION = re.compile(rf"^({'|'.join(SECTIONS)}):$")
_ITEM = re.compile(r"^(?P<name>\*{0,2}[\w.]+(?:, \*{0,2}[\w.]+)*): (?P<text>.*)$", flags=re.DOTALL)


def markdown(doc: str) -> str:
    """Return a docstring as Markdown.

    >>> print(markdown("Do it.\\n\\nArgs:\\n    name: A *name*\\n        of it."))
    Do it.
    <BLANKLINE>
    **Args**
    <BLANKLINE>
    - `name`: A \\*name\\*
      of it.
    """
    return "\n\n".join(_parts(doc.strip().splitlines()))


def _parts(lines: list[str]) -> Iterator[str]:
    for block in _blocks(lines):
        section = _SECTION.match(block[0])
        if section:
            yield f"**{section[1]}**"
            yield _items(textwrap.dedent("\n".join(block[1:])).strip("\n"))
        elif block[0].startswith(" "):
            yield _code(textwrap.dedent("\n".join(block)))
        else:
            yield escaped("\n".join(block))


def _blocks(lines: list[str]) -> Iterator[list[str]]:
    """Yield paragraphs, indented blocks with their blank lines, and whole sections."""
    block: list[str] = []
    for line in lines:
        is_indented = line.startswith(" ")
        begins_section = bool(_SECTION.match(line))
        in_section = bool(block) and bool(_SECTION.match(block[0]))
        in_code = bool(block) and block[0].startswith(" ")
        goes_on = is_indented if in_section or in_code else bool(line) and not is_indented
        if block and not begins_section and (goes_on or (not line and (in_section or in_code))):
            block.append(line)
            continue
        if block:
            yield block
        block = [line] if line else []
    if block:
        yield block


def _items(text: str) -> str:
    """Return the entries of a section as a list; a text without entries as it is."""
    entries = re.split(r"\n(?=\S)", text)
    items = []
    for entry in entries:
        item = _ITEM.match(entry)
        if not item:
            return escaped(textwrap.dedent(text))
        words = "\n".join(line.strip() for line in item["text"].splitlines())
        items.append(f"- `{item['name']}`: {textwrap.indent(escaped(words), '  ').strip()}")
    return "\n".join(items)


def _code(text: str) -> str:
    """Return an indented block as a fence, of Python if it is some."""
    text = text.strip("\n")
    try:
        ast.parse(text)
        language = "pycon" if text.startswith(">>> ") else "python"
    except SyntaxError:
        language = "pycon" if ">>> " in text else "text"
    return f"```{language}\n{text}\n```"


def escaped(text: str) -> str:
    """Return prose with the signs escaped that Markdown would take for its own.

    >>> escaped("a <b> and `<c>` of *args")
    'a \\\\<b> and `<c>` of \\\\*args'
    """
    parts = re.split(r"(`[^`]*`)", text)
    plain = [re.sub(r"([<*\[\]])", r"\\\1", part) for part in parts[::2]]
    code = [*parts[1::2], ""]
    return "".join(word for pair in zip(plain, code, strict=True) for word in pair)


def summary(doc: str | None) -> str:
    """Return the first sentence or paragraph of a docstring, on one line."""
    first = (doc or "").strip().split("\n\n")[0]
    return re.sub(r"\s+", " ", first)
