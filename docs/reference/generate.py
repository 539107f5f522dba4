"""Reference pages that list what the code has: `make reference` writes them, a test compares them.

Modules, exceptions and gauges come from the sources, routes and tasks from the demo app, the API
from the doors of the packages, queues from queue.yaml.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import inspect
import re
import types
import typing
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

import main
from docs.reference import api, commands, emulators
from docs.reference.docstrings import summary
from handlers.settings import DemoSettings
from pipelines.registry import APP
from tests.infra.documents import LOCAL_ENVIRONMENT, ROOT

FOLDER = ROOT / "docs/reference"
WARNING = "<!-- Written by `make reference` from the code: change it there. -->"
Row = Sequence[str]


@functools.cache
def pages() -> dict[str, str]:
    """Return the text of each reference page by its file name."""
    return {
        **api.pages(WARNING),
        "modules.md": _page("Modules", _MODULES, _modules()),
        "routes.md": _page("Routes", _ROUTES, [_table(["Route", "Module", "Does"], _routes())]),
        "tasks.md": _page("Tasks", _TASKS, [_table(["Path", "Queue", "Arguments"], _tasks())]),
        "queues.md": _page("Queues", _QUEUES, [_table(["Queue", "Limits", "For"], _queues())]),
        "gauges.md": _page("Gauges", _GAUGES, [_table(["Gauge", "Meaning", "Module"], _gauges())]),
        "errors.md": _page("Errors", _ERRORS, _errors()),
        "emulators.md": _page("Emulators of Cloud Tasks", _EMULATORS, emulators.parts()),
        "cli.md": _page("The command `rollforward`", _CLI, _commands()),
    }


def write() -> None:
    """Write the pages that have changed."""
    for name, text in pages().items():
        path = FOLDER / name
        path.parent.mkdir(exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


_MODULES = "Each module with the first line of its docstring. Imports point down only."
_ROUTES = """The routes of the demo app. An app of your own has those of `rollforward/flask`;
its `handlers` mount the others."""
_TASKS = "The tasks of the demo app's registry, which `POST /tasks/<path>` delivers."
_QUEUES = "The queues of queue.yaml, which an app deploys before its code."
_GAUGES = """Numbers of `GET /metrics`. [Operations](../operations.md) says at which value to act,
and what to do."""
_ERRORS = (
    "Exceptions of the library by package. Each `Raises:` section names those of its function."
)

_EMULATORS = """This one beside others, row by row.
[How to run it](../howto/run-the-tasks-emulator.md)."""
_CLI = """`rollforward COMMAND --help` prints the same.
A failure is one sentence on standard error, with an exit code above 0.
`--json` prints one JSON document; fields may be added to it in a minor version, and none is
renamed or removed."""


def _page(title: str, about: str, parts: Iterable[str]) -> str:
    return "\n\n".join([f"# {title}", WARNING, about, *parts]) + "\n"


def _table(head: Row, rows: Iterable[Row]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


# Commands


def _commands() -> Iterator[str]:
    yield _table(["Exit code", "Means"], commands.exit_codes())
    for about, options, below in commands.sections():
        yield about
        if options:
            yield _table(["Argument", "Is"], options)
        if below:
            yield below


# Sources


def _sources(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def _modules() -> Iterator[str]:
    for folder in ("rollforward", "handlers", "pipelines", "models"):
        by_package: dict[str, list[Row]] = {}
        for path in _sources(folder):
            doc = summary(ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))))
            package = str(path.parent.relative_to(ROOT))
            if doc:
                name = "(package)" if path.stem == "__init__" else f"`{path.stem}`"
                by_package.setdefault(package, []).append([name, doc])
        for package, rows in sorted(by_package.items()):
            yield f"## {package}/"
            yield _table(["Module", "Is"], rows)


def _errors() -> Iterator[str]:
    by_package: dict[str, list[Row]] = {}
    for path in _sources("rollforward"):
        parts = path.relative_to(ROOT / "rollforward").parts
        if parts[0] in ("local", "cloud_profile"):
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and re.search(r"(Error|Exception)$", node.name):
                module = str(path.relative_to(ROOT))
                row = [f"`{node.name}`", summary(ast.get_docstring(node)), f"`{module}`"]
                by_package.setdefault(parts[0].removesuffix(".py"), []).append(row)
    for package, rows in sorted(by_package.items()):
        yield f"## {package}"
        yield _table(["Error", "Means", "Module"], sorted(rows))


def _gauges() -> list[Row]:
    rows = []
    for path in _sources("rollforward"):
        text = path.read_text(encoding="utf-8")
        if not re.search(r"\b(Gauge|Family)\(", text) or path.match("local/*"):
            continue
        module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
        for name, meaning in _gauges_of(ast.parse(text), module):
            rows.append([f"`{name}`", meaning, f"`{path.relative_to(ROOT)}`"])
    return sorted(rows)


def _gauges_of(tree: ast.Module, module: types.ModuleType) -> Iterator[tuple[str, str]]:
    """Yield the names and texts of gauges: those that calls state, and those of a table HELP."""
    yield from getattr(module, "HELP", {}).items()
    for node in ast.walk(tree):
        is_gauge = isinstance(node, ast.Call) and getattr(node.func, "id", "") in (
            "Gauge",
            "Family",
        )
        if is_gauge and isinstance(node.args[0], ast.Constant):
            meaning = compile(ast.Expression(node.args[1]), "gauge", "eval")
            yield str(node.args[0].value), eval(meaning, vars(module))


# The app


def _routes() -> list[Row]:
    settings = DemoSettings.from_environment(LOCAL_ENVIRONMENT)
    app = main.create_app(settings, main.open_clients(settings))
    rows = []
    for rule in app.url_map.iter_rules():
        view = inspect.unwrap(app.view_functions[rule.endpoint])
        methods = sorted((rule.methods or set()) - {"HEAD", "OPTIONS"})
        method = methods[0] if len(methods) == 1 else "any"
        module = view.__module__ if view.__module__.startswith(("handlers", "rollforward")) else ""
        where = f"`{module.replace('.', '/')}`" if module else "Flask"
        rows.append([f"`{method} {rule.rule}`", where, summary(view.__doc__)])
    return sorted(rows, key=lambda row: row[0].partition(" ")[2])


def _tasks() -> list[Row]:
    return [
        [f"`{path}`", f"`{task.queue}`", _arguments(task.args)]
        for path, task in sorted(APP.tasks.items())
    ]


def _arguments(kind: Any) -> str:
    if not dataclasses.is_dataclass(kind):
        return ""
    names = [field.name for field in dataclasses.fields(kind)]
    return ", ".join(f"`{name}`" for name in names)


def _queues() -> list[Row]:
    text = (ROOT / "queue.yaml").read_text(encoding="utf-8")
    comments = _comments_before_queues(text)
    return [
        [f"`{queue['name']}`", _limits(queue), comments[queue["name"]]]
        for queue in sorted(yaml.safe_load(text)["queue"], key=lambda queue: str(queue["name"]))
    ]


def _limits(queue: dict[str, typing.Any]) -> str:
    return f"{queue['rate']}, {queue['max_concurrent_requests']} at a time"


def _comments_before_queues(text: str) -> dict[str, str]:
    """Return the first sentence of the comment above each queue."""
    found = re.findall(r"((?:^  #.*\n)+)  - name: (\S+)", text, flags=re.MULTILINE)
    comments = {name: re.sub(r"\s*#\s*", " ", comment).strip() for comment, name in found}
    return {name: re.split(r"(?<=[a-z)])\. ", comment)[0] for name, comment in comments.items()}


if __name__ == "__main__":
    write()
