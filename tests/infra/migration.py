"""Pages of docs/howto/migrate: blocks of code, and tables of old calls and their replacements.

A block below `<!-- old -->` has the old API: it compiles, and is not run. The other blocks declare
the parts of an app. A row of the table "You wrote | You write" has a name, code of the old API,
the code to write instead, and the difference. Code that spans lines is joined by `<br>`.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.infra.documents import ROOT, named, text_of
from tests.infra.snippets import BLOCK
from tests.infra.world import World

PAGES = [
    path
    for path in sorted((ROOT / "docs/howto/migrate").glob("*.md"))
    if "You wrote |" in path.read_text(encoding="utf-8")
]
OLD = "old"
HEADER = ["", "You wrote", "You write", "What differs"]
NOTHING = "nothing"
CODE = re.compile(r"`([^`]+)`")


@dataclass(frozen=True)
class Row:
    """One call of the old API, and its replacement; `new` is "" if there is none."""

    page: Path
    line: int
    name: str
    old: str
    new: str
    difference: str

    def __str__(self) -> str:
        return f"{self.page.stem}: {self.name}"


@dataclass(frozen=True)
class Effect:
    """Expressions that are true after a row's code ran.

    `at_once` is true before time passes, `finally_` when every task has been delivered.
    """

    at_once: str = ""
    finally_: str = ""


def rows_of(page: Path) -> list[Row]:
    """Return the rows of the tables of a page."""
    rows = []
    in_table = False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        cells = [cell.strip() for cell in line.split("|")[1:-1]] if line.startswith("|") else []
        if cells == HEADER:
            in_table = True
        elif not cells:
            in_table = False
        elif in_table and set("".join(cells)) - set("-: "):
            assert len(cells) == len(HEADER), f"{named(page)}:{number}: a cell too many or too few"
            name, old, new, difference = cells
            rows.append(Row(page, number, name, _code(old), _new_code(new), difference))
    return rows


def old_blocks(page: Path) -> list[str]:
    """Return the blocks of the old API."""
    return [code for mark, code in BLOCK.findall(page.read_text(encoding="utf-8")) if mark == OLD]


def new_blocks(page: Path) -> list[tuple[int, str]]:
    """Return the blocks that run, each with the line where it begins."""
    text = page.read_text(encoding="utf-8")
    return [
        (text.count("\n", 0, block.start(2)) + 1, block.group(2))
        for block in BLOCK.finditer(text)
        if block.group(1) != OLD
    ]


def effects() -> dict[str, dict[str, Effect]]:
    """Return the effects of each page's rows, from tests/migration.toml."""
    pages = tomllib.loads(text_of("tests/migration.toml"))
    return {
        page: {name: _effect(value) for name, value in rows.items()} for page, rows in pages.items()
    }


def queues_with_tasks(world: World) -> list[str]:
    """Return the queue of each live task, in order."""
    names = [queue.name.rpartition("/")[2] for queue in world.engine.queues.all()]
    return sorted(name for name in names for _ in world.live_tasks(name))


def _effect(value: Any) -> Effect:
    if isinstance(value, str):
        return Effect(finally_=value)
    return Effect(value.get("at_once", ""), value.get("finally", ""))


def _code(cell: str) -> str:
    return "\n".join(CODE.findall(cell))


def _new_code(cell: str) -> str:
    return "" if cell.startswith(NOTHING) else _code(cell)
