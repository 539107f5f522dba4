"""Python blocks of documents, run as they stand there, in a module of their own."""

from __future__ import annotations

import contextlib
import re
import sys
import types
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from google.cloud import ndb

from rollforward.registry import PATTERNS
from rollforward.tasks import Task
from tests.infra.world import World

# One below `<!-- not run: the reason -->` is none of them.
BLOCK = re.compile(
    r"(?:^<!-- (\S+) -->\n|(?<! -->\n)^)```python\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL
)
MAX_DELIVERIES = 200
TAKEN = tuple(pattern.takes for pattern in PATTERNS if pattern.takes is not None)


def blocks(page: Path) -> list[tuple[int, str]]:
    """Return the Python blocks of a page, each with the line where it begins."""
    text = page.read_text(encoding="utf-8")
    return [
        (text.count("\n", 0, found.start(2)) + 1, found.group(2)) for found in BLOCK.finditer(text)
    ]


@contextlib.contextmanager
def empty_module() -> Iterator[types.ModuleType]:
    """Return an empty module; kinds that are declared in it are gone afterwards."""
    module = types.ModuleType(f"snippets_{uuid.uuid4().hex[:8]}")
    kinds = dict(ndb.Model._kind_map)
    sys.modules[module.__name__] = module
    yield module
    del sys.modules[module.__name__]
    ndb.Model._kind_map.clear()
    ndb.Model._kind_map.update(kinds)


def run(module: types.ModuleType, page: Path, line: int, block: str) -> None:
    """Run a block; an error shows the line of the page."""
    source = "\n" * (line - 1) + block
    exec(compile(source, str(page), "exec"), module.__dict__)


def parts_of(module: types.ModuleType) -> list[Any]:
    """Return what the app of a page would register."""
    return [value for value in vars(module).values() if isinstance(value, TAKEN)]


def deliver(world: World, tasks: dict[str, Task[Any]]) -> int:
    """Do the work of every task that is due; return how many there were."""
    count = 0
    while (due := world.engine.due()) and count < MAX_DELIVERIES:
        attempt = world.engine.begin_attempt(due[0].task_name)
        task = tasks[urlsplit(attempt.url).path]
        task.work(world.clients, task.read(attempt.body))
        world.engine.end_attempt(attempt.id, status=204)
        count += 1
    return count
