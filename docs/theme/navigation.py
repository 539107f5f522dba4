"""The navigation of the site, from the links of the documents.

A section of docs/README.md is a tab, and the pages that it links are its pages, in that order. A
page that is the index of a folder (`howto/README.md`, or `reference/api.md` of `reference/api/`)
brings the pages that it links itself, under its own sections. So a new page needs one link in an
index, and no other list.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from docs.theme import links

FRONT = "README.md"


def tree(texts: dict[str, str], warn: Callable[[str], None]) -> list[Any]:
    """Return the navigation that MkDocs takes, and warn of pages that no index links."""
    builder = _Builder(texts)
    tabs = builder.tabs()
    unlinked = {uri for uri in texts if not uri.startswith("source/")} - builder.taken
    for uri in sorted(unlinked):
        warn(f"docs/{uri} is in no index: link it from docs/README.md or its folder's README.md")
    return tabs


class _Builder:
    """The pages that have their place so far."""

    def __init__(self, texts: dict[str, str]) -> None:
        self._texts = texts
        self.taken = {FRONT}

    def tabs(self) -> list[Any]:
        intro, *sections = self._sections(FRONT)
        tabs = [{title: self._entries(pages, title)} for title, pages in sections]
        first = [{_title(uri): uri} for uri in self._entries(intro[1], "")]
        return [{"Home": FRONT}, *first, *(tab for tab in tabs if any(tab.values()))]

    def _entries(self, pages: list[str], title: str, within: str = "") -> list[Any]:
        """Return the entries of some pages: a page, or the section of an index.

        A page whose folder has an index stands in that index's section, `within`, only.
        """
        entries: list[Any] = []
        for uri in pages:
            if uri in self.taken or (not within and self._has_index(uri)):
                continue
            self.taken.add(uri)
            if not self._is_index(uri):
                entries.append(uri)
                continue
            section = self._index(uri)
            heading = _heading(self._texts[uri])
            # A section's own index stands first in it: one of the same name would stand twice.
            entries = [*section, *entries] if heading == title else [*entries, {heading: section}]
        return entries

    def _index(self, uri: str) -> list[Any]:
        """Return the section of an index: itself, and the pages of its folder by its headings."""
        folder = _folder(uri)
        own: list[Any] = [uri]
        for title, pages in self._sections(uri):
            below = [page for page in pages if page.startswith(folder)]
            entries = self._entries(below, title, folder)
            own += [{title: entries}] if title and entries else entries
        return own

    def _is_index(self, uri: str) -> bool:
        name = uri.rpartition("/")[2]
        return name == FRONT or any(other.startswith(_folder(uri)) for other in self._texts)

    def _has_index(self, uri: str) -> bool:
        folder = uri.rpartition("/")[0]
        indexes = {f"{folder}/{FRONT}", f"{folder}.md"} - {uri}
        return bool(folder and indexes & self._texts.keys())

    def _sections(self, uri: str) -> list[tuple[str, list[str]]]:
        """Return the sections of an index, each with the pages that it links."""
        parts = re.split(r"^## (.+)$", self._texts[uri], flags=re.MULTILINE)
        titles = ["", *parts[1::2]]
        return [
            (title, list(self._links(uri, text)))
            for title, text in zip(titles, parts[::2], strict=True)
        ]

    def _links(self, uri: str, text: str) -> Iterator[str]:
        for target in links.targets(text):
            path, _ = links.resolve(uri, target)
            page = links.page_of(path, self._texts) if path else None
            if page:
                yield page


def _folder(uri: str) -> str:
    return (
        uri.removesuffix("README.md")
        if uri.endswith("README.md")
        else f"{uri.removesuffix('.md')}/"
    )


def _title(uri: str) -> str:
    """Return a title for a tab, shorter than the page's heading."""
    return uri.removesuffix(".md").replace("-", " ").capitalize()


def _heading(text: str) -> str:
    found = re.search(r"^# (.+)$", text, flags=re.MULTILINE)
    return found[1] if found else ""
