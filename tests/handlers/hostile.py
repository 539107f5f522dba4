"""Input from hostile visitors, and the elements of a page that shows it."""

from __future__ import annotations

from html.parser import HTMLParser


class Tags(HTMLParser):
    """Collects the elements and attributes of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [(tag, name) for name, _ in attrs] or [(tag, "")]


def tags(text: str) -> list[tuple[str, str]]:
    parser = Tags()
    parser.feed(text)
    return parser.found


XSS = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</title><svg/onload=alert(1)>",
    "</textarea><script>1</script>",
    "javascript:alert(1)",
    "{{ 7 * 7 }}{% include 'x' %}",
    "<!--",
    "&lt;b&gt;",
]


TOO_LARGE = {
    "12 MiB": {"id": "d" * 32, "file": (12 * 2**20, "x.csv")},
    "a field of 1 MiB": {"id": "d" * 32, "pasted": "x" * 2**20},
    "60 parts": {**{f"x{i}": "y" for i in range(60)}, "file": (1, "x.csv")},
}
