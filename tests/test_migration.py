"""Each row of the pages about migration does what it says, against the local services."""

from __future__ import annotations

import ast
import re
import types
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from rollforward.lanes import Lane
from rollforward.tasks.dead_task_entities import DeadTask
from tests.infra.documents import ROOT, cells, named, text_of
from tests.infra.migration import (
    PAGES,
    Effect,
    Row,
    effects,
    new_blocks,
    old_blocks,
    queues_with_tasks,
    rows_of,
)
from tests.infra.snippets import empty_module, parts_of, run
from tests.infra.world import Services, World

EFFECTS = effects()
ROWS = [row for page in PAGES for row in rows_of(page)]
one_emulator = pytest.mark.parametrize("services", ["datastore"], indirect=True)


@pytest.fixture
def module() -> Iterator[types.ModuleType]:
    """An empty module; kinds that are declared in it are gone after the test."""
    with empty_module() as module:
        yield module


@one_emulator
@pytest.mark.parametrize("row", [row for row in ROWS if row.new], ids=str)
def test_the_code_to_write_has_its_effect(
    services: Services, module: types.ModuleType, row: Row
) -> None:
    """In an app with the declarations of its page; the effect is not there before it."""
    for line, block in new_blocks(row.page):
        run(module, row.page, line, block)
    parts = parts_of(module)
    has_lanes = any(isinstance(part, Lane) for part in parts)
    world = World(services, tasks=parts, knows_paths=has_lanes)
    module.__dict__["clients"] = world.clients
    effect = EFFECTS[row.page.stem][row.name]
    assert not holds(world, module, effect), "it holds before anything was written"

    with world.context():
        run(module, row.page, row.line, row.new)
    if effect.at_once:
        world.deliver_due()
        assert value_of(world, module, effect.at_once), effect.at_once
    world.clients.process_state.shutdown()  # A worker that ends stores what it counts in memory.
    world.settle()

    if effect.finally_:
        assert value_of(world, module, effect.finally_), effect.finally_


def holds(world: World, module: types.ModuleType, effect: Effect) -> bool:
    """Return whether all of an effect is there; before its row, names may be missing."""
    expressions = [text for text in (effect.at_once, effect.finally_) if text]
    try:
        return all(value_of(world, module, text) for text in expressions)
    except (NameError, AttributeError, LookupError):
        return False


def value_of(world: World, module: types.ModuleType, expression: str) -> Any:
    """Evaluate an expression among the names of the page, and a few about tasks."""
    with world.context():
        names = {
            **vars(module),
            "queues": lambda: queues_with_tasks(world),
            "dead": lambda: [dead.reason for dead in DeadTask.query()],
        }
        return eval(expression, names)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_the_old_code_compiles(page: Any) -> None:
    """It is code, and marked as the old API: nobody runs it by mistake."""
    rows = rows_of(page)

    assert rows
    assert old_blocks(page)
    for block in old_blocks(page):
        compile(block, str(page), "exec")
    for row in rows:
        assert ast.parse(row.old).body  # Not compiled: some stood in a function.


def test_every_row_has_an_effect_and_every_effect_a_row() -> None:
    """A row whose effect nobody checks would be a promise."""
    listed = {page: set(rows) for page, rows in EFFECTS.items()}
    written: dict[str, set[str]] = {}
    for row in ROWS:
        if row.new:
            written.setdefault(row.page.stem, set()).add(row.name)

    assert listed == written
    assert len({str(row) for row in ROWS}) == len(ROWS)


def test_every_row_says_how_the_replacement_differs() -> None:
    """Also that nothing replaces it, and what to do then."""
    assert [str(row) for row in ROWS if len(row.difference) < 10] == []


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs/howto/migrate/README.md").read_text(encoding="utf-8")
    pages = sorted((ROOT / "docs/howto/migrate").glob("*.md"))

    assert [page.name for page in pages if f"({page.name})" not in index] == ["README.md"]


def test_the_lines_of_the_exercise_add_up() -> None:
    """Per file to its lines of code, and in all to the sentence above the table."""
    page = "docs/howto/migrate/bridgy-fed.md"
    sizes = {name: int(code) for name, _, _, code in cells(page, "The files")[1:]}
    going: Counter[str] = Counter()
    staying: Counter[str] = Counter()
    for lines, _, go, stay, _ in cells(page, "The count")[1:]:
        name = re.split("[ ,]", lines)[0]
        going[name] += int(go)
        staying[name] += int(stay)

    assert {name: going[name] + staying[name] for name in sizes} == sizes
    parts = ", ".join(f"{going[name]} of {size}" for name, size in sizes.items())
    total = f"{going.total()} of {sum(sizes.values())}"
    assert f"**{total} lines of code would go: {parts}.**" in text_of(page)
