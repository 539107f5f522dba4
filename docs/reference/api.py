"""The pages of the API: one for the front door, one for each package, and the list of all names.

A page has each name of a door with its signature, its docstring and its source, and each public
method and property of a class. `public-api.txt` has one line for each of them: a release is
compared with the one before it by that list.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from docs.reference import docstrings, signatures
from docs.reference.docstrings import summary
from docs.release.compatibility import DEPRECATED

ROOT = Path(__file__).parents[2]
FRONT = "rollforward"
# Packages without names of their own: programs, and rooms of the deployed process.
NO_API = ("cli", "gunicorn", "local")
# Modules that a door names as public, beside its own names.
MODULES = {
    "compat": ("deferred",),
    "continuations": ("csv_source", "errors", "progress", "runs", "sources"),
    "operations": ("run_sources",),
    "streams": (
        "connectors.readers",
        "connectors.sinks",
        "model.errors",
        "model.limits",
        "operators.aggregates",
        "operators.deduplicate",
        "operators.fused",
        "operators.hot_keys",
        "operators.joins",
        "operators.windows",
    ),
    "tasks": ("attempts",),
}


@dataclass(frozen=True)
class Entry:
    """A public name: where it is documented, and what it is."""

    name: str
    value: Any
    kind: str
    signature: Sequence[str]
    doc: str = ""
    members: Sequence[Entry] = ()


def packages() -> list[str]:
    doors = sorted((ROOT / FRONT).glob("*/__init__.py"))
    names = [path.parent.name for path in doors if path.parent.name not in NO_API]
    return [name for name in names if getattr(_import(f"{FRONT}.{name}"), "__all__", ())]


def _import(name: str) -> types.ModuleType:
    return importlib.import_module(name)


@functools.cache
def entries(module: str) -> list[Entry]:
    """Return the public names of a module: those of `__all__`, or those that it defines."""
    door = _import(module)
    names = getattr(door, "__all__", None) or [
        name
        for name, value in vars(door).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module
    ]
    values = [(name, getattr(door, name)) for name in names]
    return [_entry(name, value) for name, value in values if not isinstance(value, TypeVar)]


def _entry(name: str, value: Any) -> Entry:
    if isinstance(value, types.ModuleType):
        return Entry(name, value, "module", [value.__name__], _own_doc(value))
    if isinstance(value, type):
        members = list(_members(name, value))
        kind = "exception" if issubclass(value, BaseException) else "class"
        signature = signatures.of_callable(name, value)
        return Entry(name, value, kind, signature, _own_doc(value), members)
    if inspect.isroutine(value):
        signature = signatures.of_callable(name, value)
        return Entry(name, value, "function", signature, _own_doc(value))
    text = repr(value).replace(f"{ROOT}/", "")
    is_long = len(text) > signatures.WIDTH or "<" in text
    return Entry(name, value, "constant", [name if is_long else f"{name} = {text}"])


def _members(owner: str, kind: type) -> Iterator[Entry]:
    """Yield the public methods and properties of a class, its own and those of private bases."""
    seen: set[str] = set()
    fields = getattr(kind, "__dataclass_fields__", {})  # A default may be a function.
    for base in kind.__mro__:
        if not base.__module__.startswith(FRONT) or (base is not kind and _is_public(base)):
            continue
        for name, value in vars(base).items():
            if name.startswith("_") or name in seen or name in fields:
                continue
            seen.add(name)
            member = _member(f"{owner}.{name}", value)
            if member:
                yield replace(member, doc=_inherited_doc(kind, name))


@functools.cache
def _is_public(kind: type) -> bool:
    """Tell whether a class is documented itself, so that its heirs need not repeat it."""
    modules = [*(f"{FRONT}.{package}" for package in packages()), *public_modules()]
    return any(
        getattr(_import(module), kind.__name__, None) is kind
        for module in modules
        if kind.__name__ in getattr(_import(module), "__all__", [kind.__name__])
    )


def _member(name: str, value: Any) -> Entry | None:
    if isinstance(value, (property, functools.cached_property)):
        getter = value.fget if isinstance(value, property) else value.func
        returned = inspect.signature(getter).return_annotation if getter else inspect._empty
        text = "" if returned is inspect._empty else f": {signatures.annotation(returned)}"
        return Entry(name, getter, "property", [f"{name}{text}"])
    if isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    if inspect.isfunction(value):
        return Entry(name, value, "method", signatures.of_callable(name, value))
    return None


def _inherited_doc(kind: type, name: str) -> str:
    """Return the docstring of a method, or of the method that it overrides."""
    values = [vars(base)[name] for base in kind.__mro__ if name in vars(base)]
    functions = [getattr(value, "__func__", value) for value in values]
    return next((doc for function in functions if (doc := _own_doc(function))), "")


def _own_doc(value: Any) -> str:
    """Return a docstring that was written, and none that a dataclass or a base made up."""
    doc = vars(value).get("__doc__") if isinstance(value, type) else getattr(value, "__doc__", "")
    if not doc or (isinstance(value, type) and doc.startswith(f"{value.__name__}(")):
        return ""
    return inspect.cleandoc(doc)


# Pages


def pages(warning: str) -> dict[str, str]:
    """Return the pages by their names below docs/reference/, and the list of all names."""
    texts = {"api.md": "\n\n".join([*_front(warning)]) + "\n"}
    for package in packages():
        texts[f"api/{package}.md"] = "\n\n".join([*_package(package, warning)]) + "\n"
    texts["public-api.txt"] = "".join(f"{line}\n" for line in lines())
    return texts


def _front(warning: str) -> Iterator[str]:
    yield "# API"
    yield warning
    yield (
        "`import rollforward as rf` offers what an app begins with, and `rf.<package>` the rest.\n"
        "All that stands on these pages is public, and everything else is private.\n"
        "A call may leave `[clients: Clients, ]` out in a request, a task and the shell."
    )
    doors = {package: summary(_import(f"{FRONT}.{package}").__doc__) for package in packages()}
    rows = [f"| [`{name}`](api/{name}.md) | {_cell(about)} |" for name, about in doors.items()]
    yield "\n".join(["| Package | Is |", "| --- | --- |", *rows])
    yield "## The front door"
    rows = []
    for entry in entries(FRONT):
        home = _home(entry.value)
        target = f"api/{home}.md#{_anchor(entry)}" if home else f"#{_anchor(entry)}"
        rows.append(f"| [`rf.{entry.name}`]({target}) | {_cell(summary(entry.doc))} |")
    yield "\n".join(["| Name | Is |", "| --- | --- |", *rows])
    for entry in entries(FRONT):
        if not _home(entry.value):
            yield from _section(entry, "docs/reference/api.md")


def _home(value: Any) -> str | None:
    """Return the package whose door has a name, and whose page so documents it."""
    package = getattr(value, "__module__", "").removeprefix(f"{FRONT}.").partition(".")[0]
    if package not in packages():
        return None
    is_there = any(entry.value is value for entry in entries(f"{FRONT}.{package}"))
    return package if is_there else None


def _package(package: str, warning: str) -> Iterator[str]:
    door = f"{FRONT}.{package}"
    here = f"docs/reference/api/{package}.md"
    yield f"# {door}"
    yield warning
    yield docstrings.markdown(_own_doc(_import(door)))
    yield _table(entries(door))
    for entry in entries(door):
        yield from _section(entry, here)
    for name in MODULES.get(package, ()):
        module = f"{door}.{name}"
        if not any(entry.value is _import(module) for entry in entries(door)):
            yield f"## {module}"
            yield docstrings.markdown(_own_doc(_import(module)))
        for entry in entries(module):
            if not _is_among(entry, entries(door)):
                yield from _section(entry, here, level=3)


def _is_among(entry: Entry, others: Sequence[Entry]) -> bool:
    return any(other.value is entry.value for other in others)


def _table(shown: Sequence[Entry]) -> str:
    rows = [
        f"| [`{entry.name}`](#{_anchor(entry)}) | {_cell(summary(entry.doc))} |" for entry in shown
    ]
    return "\n".join(["| Name | Is |", "| --- | --- |", *rows])


def _cell(text: str) -> str:
    return docstrings.escaped(text).replace("|", "\\|")


def _anchor(entry: Entry) -> str:
    """Return the anchor that code hosts and the site make of a heading."""
    return re.sub(r"[^\w -]", "", _heading(entry).lower()).replace(" ", "-")


def _heading(entry: Entry) -> str:
    """Return the heading of a name with its kind: `Task` and `task` would have one anchor."""
    return f"{entry.kind} {entry.name}"


def _section(entry: Entry, here: str, level: int = 2) -> Iterator[str]:
    yield f"{'#' * level} {_heading(entry)}"
    yield "```python\n{}\n```".format("\n".join(entry.signature))
    if entry.doc:
        yield docstrings.markdown(entry.doc)
    yield from _source(entry, here)
    for member in entry.members:
        yield f"{'#' * (level + 1)} {member.name}"
        yield "```python\n{}\n```".format("\n".join(member.signature))
        if member.doc:
            yield docstrings.markdown(member.doc)


def _source(entry: Entry, here: str) -> Iterator[str]:
    """Yield a link to the module that defines a name."""
    module = (
        getattr(inspect.unwrap(entry.value), "__module__", None) if callable(entry.value) else None
    )
    path = f"{(module or '').replace('.', '/')}.py"
    if module and (ROOT / path).is_file():
        up = "../" * here.count("/")
        yield f"[Source]({up}{path})"


# The list


def lines() -> list[str]:
    """Return a line for each public name, member and module, with its signature."""
    found: list[str] = []
    for entry in entries(FRONT):
        home = _home(entry.value)
        found += [f"{FRONT}: {entry.name} of {home}"] if home else lines_of(FRONT, entry)
    for module in [*(f"{FRONT}.{package}" for package in packages()), *public_modules()]:
        for entry in entries(module):
            found += lines_of(module, entry)
    return sorted(found)


def lines_of(module: str, entry: Entry) -> list[str]:
    """Return the lines of a name and its members."""
    return [
        f"{module}: {_one_line(text)}{DEPRECATED if is_deprecated(one) else ''}"
        for one in [entry, *entry.members]
        for text in one.signature
    ]


def is_deprecated(entry: Entry) -> bool:
    """Tell whether a docstring has the paragraph that docs/releasing.md asks for."""
    return bool(re.search(r"^Deprecated since \d+\.\d+: ", entry.doc, flags=re.MULTILINE))


def _one_line(signature: str) -> str:
    text = re.sub(r"\s+", " ", signature)
    return text.replace("( ", "(").replace(", )", ")")


def public_modules() -> list[str]:
    return [f"{FRONT}.{package}.{name}" for package, names in MODULES.items() for name in names]
