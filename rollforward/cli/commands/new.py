"""`rollforward new`: an app in a folder of its own, which runs and passes its tests."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

from rollforward.cli.command import Command
from rollforward.cli.errors import WrongUsageError

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

_NAME = re.compile(r"[a-z][a-z0-9-]{0,39}")
_SUFFIX = ".txt"  # So that nothing takes a template for code of the library.
# Names that begin with a dot: a packager would leave them out.
_DOTTED = ("dockerignore", "gcloudignore", "gitignore")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the name."""
    parser.add_argument(
        "name", help="the folder to make here: lowercase letters, digits and hyphens"
    )


def run(options: argparse.Namespace) -> int:
    """Make the folder; refuse one that holds anything."""
    from importlib import resources

    name: str = options.name
    if not _NAME.fullmatch(name):
        raise WrongUsageError(
            f"A name has 1 to 40 lowercase letters, digits and hyphens, and begins with a letter: "
            f"{name[:60]!r} does not. For example: rollforward new shop"
        )
    folder = Path(name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise WrongUsageError(f"{name} exists and is not an empty folder: choose another name.")
    files = {
        **dict(_render(resources.files("rollforward.cli") / "template", name)),
        **_yaml_files(),
    }
    for path, text in sorted(files.items()):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    print(f"Made {name}/: {', '.join(sorted(files))}.\n\n  cd {name}\n  rollforward run")
    return 0


def _yaml_files() -> dict[str, str]:
    """Return queue.yaml and cron.yaml, as `deploy --check --write` would write them."""
    from rollforward.cli.deploy import yaml_files  # They load every pattern.
    from rollforward.cli.deploy.needs import Needs

    needs = Needs({"default": ["/tasks/greet", "/tasks/ship"], "outbox": ["the outbox"]})
    return {"queue.yaml": yaml_files.queue_yaml(needs), "cron.yaml": yaml_files.cron_yaml()}


def _render(folder: Traversable, name: str, prefix: str = "") -> list[tuple[str, str]]:
    """Return the path and the text of each file that a folder of templates makes."""
    files: list[tuple[str, str]] = []
    for item in folder.iterdir():
        if item.is_dir():
            files += _render(item, name, f"{prefix}{item.name}/")
        elif item.name.endswith(_SUFFIX):
            file = item.name.removesuffix(_SUFFIX)
            path = f"{prefix}{'.' if file in _DOTTED else ''}{file}"
            files.append((path, item.read_text(encoding="utf-8").replace("@NAME@", name)))
    return files


COMMAND = Command(
    "new",
    "make an app that runs and passes its tests",
    "Make an app in a new folder: app.py with two tasks, a page and a sale that ships exactly "
    "once; its tests; queue.yaml and cron.yaml; a Dockerfile and an app.yaml. A folder that holds "
    "anything is left alone.",
    add_options,
    run,
)
