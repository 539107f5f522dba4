"""Sources as the site shows them: highlighted, each line with an anchor."""

from __future__ import annotations

from pathlib import Path

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_for_filename
from pygments.lexers.special import TextLexer
from pygments.util import ClassNotFound


def render(path: Path) -> tuple[str, set[str]]:
    """Return a file as HTML, and the anchors of its lines: `L-12` is the twelfth."""
    text = path.read_text(encoding="utf-8")
    try:
        lexer = get_lexer_for_filename(path.name, stripnl=False)
    except ClassNotFound:
        lexer = TextLexer(stripnl=False)
    formatter = HtmlFormatter(
        cssclass="highlight source", linenos="inline", linespans="L", wrapcode=True
    )
    anchors = {f"L-{line}" for line in range(1, text.count("\n") + 1)}
    return highlight(text, lexer, formatter), anchors
