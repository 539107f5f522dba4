"""The public API of two releases, compared by their lists (docs/reference/public-api.txt).

A public name may go only after a release in which it was deprecated, and the changelog says so.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIST = "docs/reference/public-api.txt"
RELEASED = "docs/reference/released"
DEPRECATED = " [deprecated]"
_NAME = re.compile(r"(?:(?:async )?def |class )?(?P<name>[\w.]+)")


def breaks(old: Iterable[str], new: Iterable[str], changelog: str) -> Iterator[str]:
    """Yield each name that a release would take away or change without having said so.

    Args:
        old: The list of the last release.
        new: The list of today.
        changelog: The part of the changelog that is not released yet.
    """
    before, after = _by_name(old), _by_name(new)
    removed, changed = _section(changelog, "Removed"), _section(changelog, "Changed")
    for name, signatures in sorted(before.items()):
        short = name.partition(": ")[2]
        if name not in after:
            if not any(signature.endswith(DEPRECATED) for signature in signatures):
                yield f"{name} went without a release in which it was deprecated"
            elif not _names(removed, short):
                yield f"{name} went: CHANGELOG.md must name `{short}` below Removed"
        elif _plain(signatures) != _plain(after[name]) and not _names(changed, short):
            yield f"{name} has changed: CHANGELOG.md must name `{short}` below Changed"


def last_release(root: Path = ROOT) -> Path | None:
    """Return the list of the newest release, None if nothing was released yet."""
    lists = (root / RELEASED).glob("*.txt")
    return max(lists, key=lambda path: numbers(path.stem), default=None)


def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, which are ordered as versions are."""
    return tuple(int(part) for part in version.split("."))


def unreleased(changelog: str) -> str:
    """Return the part of a changelog that no release has yet."""
    return re.split(r"^## ", changelog.partition("## Unreleased\n")[2], flags=re.MULTILINE)[0]


def _by_name(lines: Iterable[str]) -> dict[str, set[str]]:
    """Return the signatures of each name; an overloaded one has several."""
    names = defaultdict(set)
    for line in lines:
        module, _, signature = line.rstrip("\n").partition(": ")
        match = _NAME.match(signature)
        assert match, line
        names[f"{module}: {match['name']}"].add(signature)
    return dict(names)


def _plain(signatures: set[str]) -> set[str]:
    return {signature.removesuffix(DEPRECATED) for signature in signatures}


def _section(changelog: str, title: str) -> str:
    sections = re.split(r"^### (.+)$", changelog, flags=re.MULTILINE)
    titles = zip(sections[1::2], sections[2::2], strict=True)
    return "\n".join(text for heading, text in titles if heading.strip() == title)


def _names(section: str, name: str) -> bool:
    """Tell whether a section has a name in backticks, alone or in a call."""
    return bool(re.search(rf"`(?:[\w.]+\.)?{re.escape(name)}(?:\(|`)", section))
