"""Markdown to HTML that can be shown: rendered by one library, cleaned by another.

markdown-it-py follows CommonMark and is configured to escape all HTML. nh3 (ammonia) then parses
its output and keeps the tags on the list below. Either would be enough alone.

The size of a rendered post is bounded before it is published (`problem_of`). Link references are
disabled: a thousand of them would repeat a long definition a thousand times.

Rendering is bound by the processor: the worst valid post takes half a second. So `shown` caches the
rendered HTML in memcached, by a digest of the text. It is cleaned on each read, which takes next to
nothing, since content from memcached is not trusted.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

from rollforward.query_cache import cached
from rollforward.runtime import Clients

KEPT_S = 7 * 86400
EXCERPT_CHARS = 240
# Limit of a rendered text, so that it fits into memcached.
MAX_HTML_BYTES = 500_000
# Brackets cost most to parse: fifty times as much as a letter.
MAX_BRACKETS = 4_000
# Each row of a table has as many cells as the widest, so a short text may have a great many.
MAX_CELLS = 10_000
TAGS = frozenset(
    (
        *("a", "blockquote", "br", "code", "del", "em", "hr", "li", "ol", "p", "pre", "strong"),
        *("h3", "h4", "h5", "h6", "table", "tbody", "td", "th", "thead", "tr", "ul"),
    )
)
ATTRIBUTES = {"a": {"href", "title"}, "ol": {"start"}}
SCHEMES = {"http", "https", "mailto"}
# A post is a section of a page that has its h1 and h2 already.
SMALLER_HEADINGS = {"h1": "h3", "h2": "h4", "h3": "h5", "h4": "h6", "h5": "h6", "h6": "h6"}


def problem_of(markdown: str) -> str:
    """Return why a text may not be published, by the size of its HTML; "" if it may.

    >>> problem_of("[a](https://example.com)"), problem_of("[" * 5_000)
    ('', 'a post must have at most 4,000 square brackets, got 5,000')
    """
    if (brackets := markdown.count("[") + markdown.count("]")) > MAX_BRACKETS:
        return f"a post must have at most {MAX_BRACKETS:,} square brackets, got {brackets:,}"
    lines = markdown.split("\n")
    if (cells := max(line.count("|") for line in lines) * len(lines)) > MAX_CELLS:
        limit = f"{MAX_CELLS:,} cells (the post's lines times its columns)"
        return f"a table must have at most {limit}, got {cells:,}"
    if (size := len(_render(markdown).encode())) > MAX_HTML_BYTES:
        return f"a post must render to at most {MAX_HTML_BYTES:,} bytes of HTML, got {size:,}"
    return ""


def html_of(markdown: str) -> str:
    """Return a text in Markdown as HTML without scripts, styles, pictures or foreign schemes."""
    return _clean(_render(markdown))


def shown(clients: Clients, markdown: str) -> str:
    """Return the same HTML as `html_of`; the rendering is cached for a week."""
    return _clean(_rendered(clients, markdown))


@cached("blog-markdown", ttl_s=KEPT_S)
def _rendered(clients: Clients, markdown: str) -> str:
    return _render(markdown)


def _render(markdown: str) -> str:
    tokens = _parser().parse(markdown)
    for token in tokens:
        token.tag = SMALLER_HEADINGS.get(token.tag, token.tag)
    return str(_parser().renderer.render(tokens, _parser().options, {}))


def _clean(rendered: str) -> str:
    import nh3  # Posts alone need it: a worker starts without.

    return nh3.clean(
        rendered,
        tags=set(TAGS),
        attributes=ATTRIBUTES,
        url_schemes=SCHEMES,
        link_rel="nofollow ugc noopener",
    )


def excerpt_of(markdown: str) -> str:
    """Return the beginning of the paragraphs of a text in Markdown as plain text, in one line."""
    pairs = itertools.pairwise(_parser().parse(markdown))
    inline = [token for previous, token in pairs if previous.type == "paragraph_open"]
    words = " ".join(_plain(token) for token in inline).split()
    text = " ".join(words)
    if len(text) <= EXCERPT_CHARS:
        return text
    cut = text[: EXCERPT_CHARS + 1].rsplit(" ", 1)[0]
    has_words = EXCERPT_CHARS // 2 < len(cut) <= EXCERPT_CHARS
    return (cut if has_words else text[:EXCERPT_CHARS]).rstrip(" ,.;:") + "…"


def _plain(token: Any) -> str:
    breaks = ("softbreak", "hardbreak")
    return "".join(" " if child.type in breaks else child.content for child in token.children or [])


@functools.cache
def _parser() -> Any:
    from markdown_it import MarkdownIt

    rules = {"html": False, "linkify": False, "typographer": False, "maxNesting": 20}
    parser = MarkdownIt("commonmark", rules).enable(["table", "strikethrough"])
    return parser.disable("reference")
