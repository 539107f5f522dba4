"""The target (`module:callable`) and its two YAML files, found without running any of its code.

The module is looked for where Python would: in the current folder first, then on PYTHONPATH. A
missing module, or a name that the module lacks, is reported before anything starts. Other errors
show when a worker loads the target (app/wsgi.py).
"""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rollforward.local.errors import UsageError

_CALLABLE = "serve"
DEFAULT = f"main:{_CALLABLE}"
# For an app without such files: the queues `default` and `outbox`, and the sweep.
DEFAULT_QUEUES = Path(__file__).with_name("default_queue.yaml")
DEFAULT_CRON = Path(__file__).with_name("default_cron.yaml")


@dataclass(frozen=True)
class Target:
    """The app that is served, and its files.

    Attributes:
        text: As given, `module:callable`.
        folder: The folder of its module.
        queue_yaml: Declares the queues; it need not be there.
        cron_yaml: Declares the cron jobs; it need not be there.
    """

    text: str
    folder: Path
    queue_yaml: Path
    cron_yaml: Path

    @property
    def queues_file(self) -> Path:
        """The file that declares the queues now: the app's, or the default one."""
        return self.queue_yaml if self.queue_yaml.is_file() else DEFAULT_QUEUES

    @property
    def cron_file(self) -> Path:
        """The file that declares the cron jobs now: the app's, or the default one."""
        return self.cron_yaml if self.cron_yaml.is_file() else DEFAULT_CRON

    @property
    def dispatch_yaml(self) -> Path | None:
        """The rules between the app's services, if there is a file for them next to queue.yaml."""
        path = self.queue_yaml.with_name("dispatch.yaml")
        return path if path.is_file() else None

    @property
    def cron_source(self) -> str:
        """The source of the cron jobs, for people."""
        name = self.cron_yaml.name
        is_own = self.cron_file == self.cron_yaml
        return f"from {name}" if is_own else f"the sweep alone: there is no {name}"


def default(root: Path) -> str:
    """Return the target of a folder that names none: in main.py, app.py or the only module.

    Raises:
        UsageError: several modules have a `serve`; says which.
    """
    if (root / "main.py").is_file():
        return DEFAULT
    modules = sorted(path.stem for path in root.glob("*.py") if _CALLABLE in _names(_parse(path)))
    if "app" in modules:
        return f"app:{_CALLABLE}"
    if len(modules) == 1:
        return f"{modules[0]}:{_CALLABLE}"
    if modules:
        raise UsageError(
            f"Several modules in {root} have a {_CALLABLE!r}: name one of "
            f"{', '.join(f'{module}:{_CALLABLE}' for module in modules)}."
        )
    return DEFAULT  # `find` says that it is not there.


def has_app(root: Path) -> bool:
    """Return whether some module of a folder has a `serve`."""
    return any(_CALLABLE in _names(_parse(path)) for path in root.glob("*.py"))


def find(text: str, root: Path, *, queues: Path | None, cron: Path | None) -> Target:
    """Return the target, with the files that go with it.

    Args:
        text: `module:callable`.
        root: The current folder.
        queues: The queue.yaml that was asked for; None takes the one of the target's package, or
            else of the current folder.
        cron: The same for cron.yaml.

    Raises:
        UsageError: the target or a file is not there; says what to do.
    """
    module, colon, name = text.removesuffix("()").partition(":")
    if not colon or not all(map(str.isidentifier, [*module.split("."), name])):
        raise UsageError(
            f"The target is written module:callable, for example {DEFAULT}, not {text!r}."
        )
    source, folder = _find_module(module, root)
    _check_name(source, folder, module, name)
    is_in_package = "." in module or source is None or source.name == "__init__.py"
    package = folder if is_in_package else root
    return Target(
        f"{module}:{name}",
        folder,
        _file("queue.yaml", "--queues", queues, package, root),
        _file("cron.yaml", "--cron", cron, package, root),
    )


def _find_module(module: str, root: Path) -> tuple[Path | None, Path]:
    """Return a module's file (None for a folder without __init__.py) and folder.

    By hand: Python's own search would run the packages above it.
    """
    source, folders = None, [root, *map(Path, sys.path)]
    for part in module.split("."):
        source, folders = _step(part, folders)
        if source is None and not folders:
            raise UsageError(
                f"There is no module {module!r} in {root} or on PYTHONPATH. Start this where it "
                "lies, or name the right one as module:callable."
            )
    return source, (source.parent if source is not None else folders[0]).resolve()


def _step(part: str, folders: list[Path]) -> tuple[Path | None, list[Path]]:
    """Return the file of one part of a module's name, and where the next part may be."""
    for folder in folders:
        if (package := folder / part / "__init__.py").is_file():
            return package, [folder / part]
        if (plain := folder / f"{part}.py").is_file():
            return plain, []
    return None, [folder / part for folder in folders if (folder / part).is_dir()]


def _check_name(source: Path | None, folder: Path, module: str, name: str) -> None:
    """Refuse a name that a module plainly does not have; what it imports or makes is not known."""
    tree = _parse(source) if source is not None else ast.Module([], [])
    if tree is None:
        return  # A worker says what is wrong with it.
    if {*_names(tree)} & {name, "*", "__getattr__"}:
        return
    raise UsageError(
        f"There is no {name!r} in {source or folder}. Write a function `def {name}() -> Flask:` "
        f"there, or name another one: {module}:callable."
    )


def _parse(source: Path) -> ast.Module | None:
    """Return a parsed file; None: it cannot be read or parsed."""
    try:
        return ast.parse(source.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None


def _names(tree: ast.Module | None) -> Iterator[str]:
    """Yield the names that a module binds anywhere outside of functions and classes."""
    todo: list[ast.AST] = [*tree.body] if tree is not None else []
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


def _file(name: str, option: str, asked: Path | None, package: Path, root: Path) -> Path:
    if asked is None:
        paths = (package / name, root / name)
        return next((path for path in paths if path.is_file()), root / name)
    path = (root / asked).resolve()
    if not path.is_file():
        raise UsageError(f"There is no {path}. Name the {name}: {option} path/{name}.")
    return path
