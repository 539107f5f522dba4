"""The lines that matter of the code that runs: cut out of its source, so they cannot be old."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
from dataclasses import dataclass
from pathlib import Path

from rollforward.look.editor import editor_url

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Excerpt:
    """Lines of a file, unchanged: a function, a class, a method or an assignment."""

    path: str
    line: int
    code: str
    purpose: str

    @property
    def place(self) -> str:
        """File and line, as editors open it."""
        return f"{self.path}:{self.line}"

    @property
    def editor_url(self) -> str:
        """URL that opens the place in the developer's editor, for pages on this machine."""
        return editor_url(str(ROOT / self.path), self.line)


@functools.cache
def excerpt(module: str, name: str, purpose: str) -> Excerpt:
    """Return the definition of a name in a module, without its docstring.

    Args:
        name: A function, a class, a constant, or "Class.method".

    Raises:
        LookupError: the module defines nothing of that name.
    """
    source = inspect.getsource(importlib.import_module(module))
    node = _find(ast.parse(source), name)
    parts = [node, *getattr(node, "decorator_list", [])]
    first_line = min(part.lineno for part in parts)
    lines = source.splitlines()
    hidden = _docstring_lines(node)
    if hidden and not lines[max(hidden)].strip():
        hidden.add(max(hidden) + 1)
    shown = [
        lines[number - 1]
        for number in range(first_line, (node.end_lineno or first_line) + 1)
        if number not in hidden
    ]
    indent = min(len(line) - len(line.lstrip()) for line in shown if line.strip())
    code = "\n".join(line[indent:] for line in shown)
    path = Path(inspect.getfile(importlib.import_module(module))).resolve().relative_to(ROOT)
    return Excerpt(path.as_posix(), first_line, code, purpose)


def _find(tree: ast.Module, name: str) -> ast.stmt:
    body: list[ast.stmt] = tree.body
    statement: ast.stmt | None = None
    for part in name.split("."):
        statement = next((node for node in body if part in _names(node)), None)
        if statement is None:
            raise LookupError(name)
        body = getattr(statement, "body", [])
    if statement is None:
        raise LookupError(name)
    return statement


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    return []


def _docstring_lines(node: ast.stmt) -> set[int]:
    docstring = getattr(node, "body", [None])[0]
    if isinstance(docstring, ast.Expr) and isinstance(getattr(docstring.value, "value", None), str):
        return set(range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1))
    return set()
