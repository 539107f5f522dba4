"""Links of the documents, as a code host has them and as the site has them."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Pages of the site that stand outside docs/.
OUTSIDE = {
    "overview.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "history.md": "HISTORY.md",
    "security.md": "SECURITY.md",
}
_LINK = re.compile(r"(?<!\\)\]\((?P<target>[^)\s]+)\)")
_PICTURE = re.compile(r'(?P<name> src(?:set)?)="docs/(?P<path>[^"]+)"')
_FENCE = re.compile(r"^(?P<mark>`{3,}).*?^(?P=mark)`*\s*$", flags=re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]+`")


def targets(text: str) -> Iterator[str]:
    """Yield the targets of a text's links, those in code aside."""
    for link in _LINK.finditer(_CODE.sub("", _FENCE.sub("", text))):
        yield link["target"]


def resolve(uri: str, target: str) -> tuple[str, str]:
    """Return the path in the repository that a page links, and the anchor; no path if outside."""
    path, _, anchor = target.partition("#")
    if not path or re.match(r"[a-z][a-z+.-]*:|/", path):
        return "", anchor
    folder = posixpath.dirname(OUTSIDE.get(uri, f"docs/{uri}"))
    return posixpath.normpath(posixpath.join(folder, path)), anchor


def is_source(path: str, pages: Collection[str]) -> bool:
    """Tell whether a path is a file that the site shows as a source."""
    return page_of(path, pages) is None and (ROOT / path).is_file() and not _is_picture(path)


def page_of(path: str, pages: Collection[str]) -> str | None:
    """Return the page of a document, None if the site has none."""
    for uri, outside in OUTSIDE.items():
        if path == outside:
            return uri
    uri = path.removeprefix("docs/")
    return uri if uri != path and uri in pages else None


def _is_picture(path: str) -> bool:
    return path.endswith((".png", ".svg", ".jpg"))


def page_of_source(path: str) -> str:
    """Return the page that shows a source."""
    return f"source/{path}.md"


def source_of_page(uri: str) -> str | None:
    """Return the source that a page shows, None if it shows none."""
    if not uri.startswith("source/"):
        return None
    return uri.removeprefix("source/").removesuffix(".md")


def rewrite(text: str, uri: str, pages: Collection[str]) -> str:
    """Return the text with its links to files of the repository as links to pages."""

    def replaced(link: re.Match[str]) -> str:
        path, anchor = resolve(uri, link["target"])
        if not path:
            return link[0]
        page = page_of(path, pages)
        if page is None and is_source(path, pages):
            page, anchor = page_of_source(path), re.sub(r"^L(\d+)$", r"L-\1", anchor)
        if page is None:
            return link[0]
        relative = posixpath.relpath(page, posixpath.dirname(uri) or ".")
        return f"]({relative}{'#' if anchor else ''}{anchor})"

    if uri in OUTSIDE:  # MkDocs leaves HTML alone; the page has a folder of its own.
        text = _PICTURE.sub(r'\g<name>="../\g<path>"', text)
    parts: list[str] = []
    end = 0
    for fence in _FENCE.finditer(text):
        parts += [_LINK.sub(replaced, text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, _LINK.sub(replaced, text[end:])])
