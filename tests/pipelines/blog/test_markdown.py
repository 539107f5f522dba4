"""Markdown: what it may become, and what it may not, whoever writes it."""

from __future__ import annotations

import contextlib
import re

import pytest

from pipelines.blog import markdown
from pipelines.blog.drafts import MAX_BODY_CHARS, BadDraftError, Draft, draft_of
from pipelines.blog.markdown import (
    ATTRIBUTES,
    EXCERPT_CHARS,
    MAX_HTML_BYTES,
    TAGS,
    excerpt_of,
    html_of,
    shown,
)
from tests.handlers.hostile import XSS, tags
from tests.infra.world import World

HOSTILE = [
    *XSS,
    "[x](javascript:alert(1))",
    "[x](JaVaScRiPt:alert(1))",
    "[x](java\tscript:alert(1))",
    "[x](&#106;avascript:alert(1))",
    "[x](data:text/html;base64,PHNjcmlwdD4=)",
    "[x](vbscript:msgbox)",
    "<javascript:alert(1)>",
    "![x](https://example.com/x.png)",
    '![x](x "onerror=alert(1)")',
    '[x](https://example.com "\\" onmouseover=alert(1) \\"")',
    "<a href=javascript:alert(1)>x</a>",
    "<svg><script>alert(1)</script></svg>",
    '<math><mi//xlink:href="data:x,<script>alert(1)</script>">',
    "<iframe srcdoc='<script>alert(1)</script>'></iframe>",
    "<style>@import 'x'</style>",
    "<form action=//example.com><button>x",
    "<details open ontoggle=alert(1)>",
    "```html\n<script>alert(1)</script>\n```",
    '``` "><script>alert(1)</script>\nx\n```',
    "| a |\n|---|\n| <img src=x onerror=alert(1)> |",
    "[a]: javascript:alert(1)\n\n[a]",
    "<!-- --><script>alert(1)</script>",
    "x" * 100 + "<" * 5000,
    "[" * 3000,
    "> " * 3000 + "x",
    "*" * 5001,
    "* " * 2000,
]


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: repr(text[:20]))
def test_no_markdown_becomes_more_than_text(text: str) -> None:
    """S16: elements and attributes of the list, http and mail addresses, and nothing else."""
    html = html_of(text)

    allowed = {(tag, name) for tag, names in ATTRIBUTES.items() for name in {*names, "rel"}}
    for tag, attribute in tags(html):
        assert tag in TAGS
        assert not attribute or (tag, attribute) in allowed
    for address in re.findall(r'<a [^>]*href="([^"]*)"', html):
        assert address.startswith(("http://", "https://", "mailto:")), address
    assert "49" not in html


def test_markdown_becomes_what_it_says() -> None:
    """Headings below those of the page, lists, code, tables, links that promise nothing."""
    html = html_of("# A\n\n## B\n\n*a* **b** `c` ~~d~~\n\n- e\n\n| f |\n|---|\n| g |\n")

    for part in ("<h3>A</h3>", "<h4>B</h4>", "<em>a</em>", "<strong>b</strong>", "<li>e</li>"):
        assert part in html
    for part in ("<code>c</code>", "<table>", "<td>g</td>"):
        assert part in html
    link = html_of("[h](https://example.com)")
    assert 'rel="nofollow ugc noopener"' in link


def test_an_excerpt_is_plain_text() -> None:
    """One line, cut at a word, without marks."""
    text = "# A\n\n*b* [c](https://example.com)\nd\n\n```\ncode\n```\n\n| t |\n|---|\n| u |"
    assert excerpt_of(text) == "b c d"
    long = excerpt_of("word " * 200)
    assert long.endswith("word…")
    assert len(long) <= EXCERPT_CHARS + 1
    assert excerpt_of("夏" * 500) == "夏" * EXCERPT_CHARS + "…"
    assert excerpt_of("x <b>y</b>") == "x <b>y</b>"


# Repeated up to the longest post, each of these becomes many times as much.
GROWING = ['"', "&", "<", "`a", "-\n", "#\n", "1.\n", "<http://a>", "*_", "a\n-\n", "![", "[a](b) "]
TABLES = [
    "|a" * 50 + "|\n" + "|-" * 50 + "|\n" + "|\n" * 19_800,
    "|" * 5_000 + "\n" + "|-" * 5_000 + "|\n" + "|\n" * 12_000,
    "a|b\n-|-\n" + "|\n" * 19_000,
]
REFERENCES = "[a]: /" + "x" * 20_000 + "\n\n" + "[a]" * 1_300


@pytest.mark.parametrize(
    "text",
    [*(each * (MAX_BODY_CHARS // len(each)) for each in GROWING), *TABLES, REFERENCES],
    ids=lambda text: repr(text[:10]),
)
def test_a_post_becomes_no_more_than_a_stated_size(text: str) -> None:
    """S25: what would be larger is refused before it is published."""
    published: Draft | None = None
    with contextlib.suppress(BadDraftError):
        published = draft_of("Title", text, "")

    assert published is None or len(html_of(published.body).encode()) <= MAX_HTML_BYTES


def test_a_post_that_would_be_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """S25: the limit is that of what it becomes, however it comes to that."""
    draft_of("Title", "&" * 1_000, "")
    monkeypatch.setattr(markdown, "MAX_HTML_BYTES", 4_999)

    with pytest.raises(BadDraftError, match="at most 4,999 bytes of HTML"):
        draft_of("Title", "&" * 1_000, "")


def test_a_definition_is_not_repeated_wherever_it_is_referred_to() -> None:
    """S25: a link that is named elsewhere is text, for a short text would become a long page."""
    assert len(html_of(REFERENCES)) < 2 * len(REFERENCES)
    assert html_of("[a]: https://example.com\n\n[a]").count("<a ") == 0


@pytest.mark.parametrize("services", ["datastore"], indirect=True)
def test_a_text_is_rendered_once_and_what_memcached_says_is_cleaned(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S25: rendering costs seconds at worst; whoever writes into memcached gets no script shown."""
    rendered = []

    def render(text: str) -> str:
        rendered.append(text)
        return f"<p>{text}</p><script>alert(1)</script>"

    monkeypatch.setattr(markdown, "_render", render)
    with world.context():
        seen = [shown(world.clients, "Hello") for _ in range(3)]

    assert rendered == ["Hello"]
    assert seen == ["<p>Hello</p>"] * 3
