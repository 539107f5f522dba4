"""Each Python block of the how-tos and of the README runs as it stands there.

The blocks of a page run one after the other, in one module: each has its imports, or goes on where
the one before it ends. All that is given is `clients`, with a context open, as in `make shell`.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Flask

from rollforward.flask import serve
from rollforward.registry import Registry
from rollforward.testing import Rollforward
from tests.infra import tutorial
from tests.infra.documents import ROOT, named, text_of
from tests.infra.runs import sampling
from tests.infra.snippets import BLOCK, blocks, deliver, empty_module, parts_of, run
from tests.infra.world import Services, World

PAGES = [
    path for path in sorted((ROOT / "docs/howto").glob("*.md")) if "```python" in path.read_text()
]

one_emulator = pytest.mark.parametrize("services", ["datastore"], indirect=True)


@pytest.fixture
def module() -> Iterator[types.ModuleType]:
    """An empty module; kinds that are declared in it are gone after the test."""
    with empty_module() as module:
        yield module


@one_emulator
@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=named)
def test_every_block_of_a_page_runs(
    world: World, services: Services, module: types.ModuleType, page: Path
) -> None:
    """A reader may paste them in turn, and what they enqueue can be delivered."""
    module.__dict__["clients"] = world.clients

    with world.context():
        for line, block in blocks(page):
            run(module, page, line, block)

    app = module.__dict__.get("APP")
    registry = app if isinstance(app, Registry) else Registry()
    parts = Registry(*parts_of(module), *registry.declared, patterns=[*registry.patterns.values()])
    with world.context():
        deliver(world, dict(parts.tasks))
    tests = [value for name, value in vars(module).items() if name.startswith("test_")]
    if tests:
        run_tests(module, tests, parts, services)
    world.clients.process_state.shutdown()


def run_tests(
    module: types.ModuleType, tests: list[Any], parts: Registry, services: Services
) -> None:
    """Run the tests of a page as the plugin would, with the app of the page or of its parts."""
    app = module.__dict__.get("serve")
    app = app if isinstance(app, Flask) else serve(Flask("page"), parts)
    fakes = module.__dict__.get("rollforward_fakes")
    kit = Rollforward(app, services, fakes.__wrapped__() if fakes is not None else None)
    for test in tests:
        kit.reset()
        with kit.clients.context():
            test(kit)
    kit.close()


@one_emulator
def test_the_plain_task_is_a_whole_file(world: World, module: types.ModuleType) -> None:
    """Pasted into an empty file it works: nothing has to be found elsewhere."""
    page = ROOT / "docs/howto/add-a-job.md"
    [(line, block)] = [(line, block) for line, block in blocks(page) if "def remind(" in block]

    run(module, page, line, block)

    [use] = [(line, block) for line, block in blocks(page) if "remind.enqueue(" in block]
    with world.context():
        run(module, page, *use)
    world.clock.sleep(61)
    with world.context():
        assert deliver(world, dict(module.__dict__["APP"].tasks)) == 1


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=named)
def test_a_block_that_is_an_example_is_that_example(page: Path) -> None:
    """To the letter; of its imports those that it uses."""
    for example, block in BLOCK.findall(page.read_text(encoding="utf-8")):
        if not example:
            continue
        source = text_of(example)
        shown = re.split(r"^# howto: .*$", source, flags=re.MULTILINE)[1].strip()
        imports, _, code = block.partition("\n\n\n")
        assert code.strip() == shown
        assert imported(imports) <= imported(source)


def imported(source: str) -> set[tuple[str, str]]:
    """Return the names that a source imports, each with its module."""
    return {
        (node.module or "", alias.name)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


MISTAKES = """
import prices
import sales
from rollforward.runtime import Clients

def wrong(clients: Clients) -> None:
    prices.Raise(percent="10")
    sales.ship(clients, "x")
    sales.ship.enqueue(clients, prices.Raise(percent=10))
    sales.ship.enqueue(clients, 10)
    sales.ship.bind(10)
"""


@sampling.long
@pytest.mark.timeout(300)
def test_the_tutorials_files_pass_mypy_and_mistakes_do_not(tmp_path: Path) -> None:
    """With the two settings that it names, in a folder of their own; py.typed stands for ours."""
    for name, text in tutorial.files().items():
        (tmp_path / name).write_text(text, encoding="utf-8")

    assert mypy(tmp_path) == "Success: no issues found in 6 source files\n"

    (tmp_path / "wrong.py").write_text(MISTAKES, encoding="utf-8")
    found = re.findall(r"^wrong\.py:(\d+): error: .*\[([\w-]+)\]$", mypy(tmp_path), re.MULTILINE)
    enqueued = [("9", "call-overload"), ("10", "call-overload"), ("11", "arg-type")]
    assert found == [("7", "arg-type"), ("8", "operator"), *enqueued]


SERVICES = """
from typing import Protocol

import rollforward as rf
from rollforward.flows import Steps


class Couriers(Protocol):
    def collect(self, title: str) -> str: ...


class Mailer:
    def send(self, text: str) -> int:
        return len(text)


def ship(step: Steps) -> str:
    rf.clients().service(Mailer).send(7)
    return step.clients.service(Couriers).collect("Emma")
"""


@sampling.long
@pytest.mark.timeout(300)
def test_mypy_takes_a_service_that_is_named_by_its_protocol(tmp_path: Path) -> None:
    """Strictly, with no error code disabled, and it still knows the service's methods."""
    (tmp_path / "mypy.ini").write_text("[mypy]\nstrict = True\n", encoding="utf-8")
    (tmp_path / "services.py").write_text(SERVICES, encoding="utf-8")

    errors = re.findall(
        r"^services\.py:(\d+): error: .*\[([\w-]+)\]$", mypy(tmp_path), re.MULTILINE
    )
    assert errors == [("18", "arg-type")]


def mypy(folder: Path) -> str:
    """Return what mypy says of the modules in a folder, as the tutorial calls it."""
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(ROOT / ".mypy_cache/tutorial")]
    done = subprocess.run(
        [*command, *sorted(path.name for path in folder.glob("*.py"))],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    return done.stdout + done.stderr


def test_every_page_that_has_an_example_is_looked_at() -> None:
    """Those of docs/examples that a page shows, the flows among them."""
    texts = [page.read_text(encoding="utf-8") for page in [ROOT / "README.md", *PAGES]]
    shown = {example for text in texts for example, _ in BLOCK.findall(text) if example}

    examples = ROOT / "docs/examples"
    assert shown == {named(path) for path in (*examples.glob("*.py"), *examples.glob("flows/*.py"))}
