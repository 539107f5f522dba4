"""What is served: `module:callable`, found without running any of it, and its two YAML files.

The module is looked for where Python would: in the current folder first, then on PYTHONPATH. What
it lacks on sight (the module itself, the name in it) is said before anything starts; the rest
shows when a worker loads it (wsgi.py).
"""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from devserver.errors import UsageError

DEFAULT = "main:serve"


@dataclass(frozen=True)
class Target:
    """What is served.

    Attributes:
        text: As given, `module:callable`.
        folder: Where its module lies.
        queue_yaml: Declares the queues.
        cron_yaml: Declares the cron jobs; it need not be there.
    """

    text: str
    folder: Path
    queue_yaml: Path
    cron_yaml: Path


def find(text: str, root: Path, *, queues: Path | None, cron: Path | None) -> Target:
    """Return the target, with the files that go with it.

    Args:
        text: `module:callable`.
        root: The current folder.
        queues: The queue.yaml that was asked for; None takes that of the target's package, or else
            that of the current folder.
        cron: The same for cron.yaml.

    Raises:
        UsageError: the target or a file is not there; says what to do.
    """
    module, colon, name = text.removesuffix("()").partition(":")
    if not colon or not all(map(str.isidentifier, [*module.split("."), name])):
        raise UsageError(
            f"The target is written module:callable, for example {DEFAULT}, not {text!r}."
        )
    spec = _spec(module, root)
    _check_name(spec, module, name)
    folder = _folder(spec)
    is_in_package = "." in module or spec.submodule_search_locations is not None
    package = folder if is_in_package else root
    return Target(
        f"{module}:{name}",
        folder,
        _queue_yaml(queues, package, root),
        _cron_yaml(cron, package, root),
    )


def _spec(module: str, root: Path) -> ModuleSpec:
    """Return where a module lies; no package above it is imported for that."""
    path, spec = [str(root), *sys.path], None
    parts = module.split(".")
    for number in range(1, len(parts) + 1):
        spec = PathFinder.find_spec(".".join(parts[:number]), path)
        if spec is None:
            raise UsageError(
                f"There is no module {module!r} in {root} or on PYTHONPATH. Start this where it "
                "lies, or name the right one: --target module:callable."
            )
        path = [*(spec.submodule_search_locations or [])]
    assert spec is not None
    return spec


def _folder(spec: ModuleSpec) -> Path:
    if spec.origin is not None and spec.has_location:
        return Path(spec.origin).resolve().parent
    return Path(next(iter(spec.submodule_search_locations or []))).resolve()


def _check_name(spec: ModuleSpec, module: str, name: str) -> None:
    """Refuse a name that a module plainly does not have; what it imports or makes is not known."""
    source = Path(spec.origin) if spec.origin is not None and spec.has_location else None
    try:
        tree = ast.parse(source.read_bytes()) if source is not None else ast.Module([], [])
    except (OSError, SyntaxError, ValueError):
        return  # A worker says what is wrong with it.
    names = set(_names(tree))
    if names & {name, "*", "__getattr__"}:
        return
    where = f"{source}" if source is not None else f"the folder of {module}"
    raise UsageError(
        f"There is no {name!r} in {where}. Write a function `def {name}() -> Flask:` there, or "
        f"name another: --target {module}:callable."
    )


def _names(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a module binds anywhere outside of functions and classes."""
    todo: list[ast.AST] = [*tree.body]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        else:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id
            todo += ast.iter_child_nodes(node)


def _queue_yaml(asked: Path | None, package: Path, root: Path) -> Path:
    found = _file("queue.yaml", asked, package, root)
    if found.is_file():
        return found
    if asked is not None:
        raise UsageError(f"There is no {found}. Name the queue.yaml: --queues path/queue.yaml.")
    raise UsageError(
        f"There is no queue.yaml in {root}. Write one that declares the queues, or name it: "
        "--queues path/queue.yaml."
    )


def _cron_yaml(asked: Path | None, package: Path, root: Path) -> Path:
    found = _file("cron.yaml", asked, package, root)
    if asked is not None and not found.is_file():
        raise UsageError(f"There is no {found}. Name the cron.yaml: --cron path/cron.yaml.")
    return found


def _file(name: str, asked: Path | None, package: Path, root: Path) -> Path:
    if asked is not None:
        return (root / asked).resolve()
    return next((path for path in (package / name, root / name) if path.is_file()), root / name)
