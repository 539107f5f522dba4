"""Kinds that source files declare, for an emulator that cannot list those it stores.

The Firestore emulator refuses queries of `__kind__`. The console knows the app over the network
only, so it reads the sources of the app and of the library, and imports nothing of them.
"""

import ast
import os
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

LIBRARY = Path(__file__).parents[3]
MAX_FILES = 5_000
SKIPPED = {"tests", "node_modules", "__pycache__", "local"}


def declared_kinds(folders: Sequence[Path]) -> list[str]:
    """Return the names of the classes that extend `ndb.Model`, or one of their file that does."""
    paths = {*_sources(folders)}
    return sorted({kind for path in paths for kind in _kinds_of(path, _changed_ns(path))})


def _sources(folders: Sequence[Path]) -> Iterator[Path]:
    count = 0
    for folder in folders:
        for parent, names, files in os.walk(folder):
            names[:] = [name for name in names if name not in SKIPPED and name[0] not in "._"]
            for name in files:
                if name.endswith(".py"):
                    count += 1
                    if count > MAX_FILES:
                        return
                    yield Path(parent, name)


def _changed_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


@lru_cache(maxsize=2 * MAX_FILES)
def _kinds_of(path: Path, changed_ns: int) -> tuple[str, ...]:
    """Return the kinds of a file, which is parsed again when it was changed."""
    try:
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text) if "ndb" in text else ast.Module([], [])
    except (OSError, SyntaxError, ValueError):
        return ()  # Its author sees why when the app is loaded.
    models, kinds = {"Model"}, []
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and models & {_name(base) for base in node.bases}:
            models.add(node.name)
            if not node.name.startswith("_"):
                kinds.append(node.name)
    return tuple(kinds)


def _name(base: ast.expr) -> str:
    return base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "")
