"""The tutorial's files, step by step, as a reader has them after each step."""

from __future__ import annotations

import re

from tests.infra.documents import text_of

FILE = re.compile(r"^`([\w.]+)`\n\n```\w+\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
CHANGE = re.compile(
    r"^Change `([\w.]+)`, or copy \[the whole file\]\((\S+)\):\n\n```diff\n(.*?)^```$",
    flags=re.MULTILINE | re.DOTALL,
)


def steps() -> list[dict[str, str]]:
    """Return the files that each step adds or changes, each file whole.

    Raises:
        AssertionError: a change that is shown does not lead to the file that it links.
    """
    latest: dict[str, str] = {}
    steps = list[dict[str, str]]()
    for section in text_of("docs/tutorial.md").split("\n## ")[1:]:
        files = dict(FILE.findall(section))
        for name, link, change in CHANGE.findall(section):
            files[name] = text_of(f"docs/{link}")
            assert changed(latest[name], change) == files[name], f"{name} is not {link}"
        if files:
            steps.append(files)
            latest |= files
    return steps


def files() -> dict[str, str]:
    """Return all files as they are after the last step."""
    return {name: text for step in steps() for name, text in step.items()}


def changed(text: str, change: str) -> str:
    """Return a file with the hunks of a change applied, each of which fits in one place.

    >>> changed("a\\nb\\nc\\n", " a\\n-b\\n+B\\n@@\\n+d\\n c\\n")
    'a\\nB\\nd\\nc\\n'
    """
    for hunk in re.split(r"^@@\n", change, flags=re.MULTILINE):
        lines = hunk.splitlines(keepends=True)
        before = "".join(line[1:] for line in lines if line[0] in " -")
        after = "".join(line[1:] for line in lines if line[0] in " +")
        assert f"\n{text}".count(f"\n{before}") == 1, f"fits not in one place: {hunk}"
        text = f"\n{text}".replace(f"\n{before}", f"\n{after}")[1:]
    return text
