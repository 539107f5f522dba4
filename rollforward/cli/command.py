"""A command of the program: its name, its help, its options, and the function that does it."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rollforward.cli.errors import CliError


@dataclass(frozen=True)
class Command:
    """One command.

    Attributes:
        summary: Its line in the list of commands.
        description: The first paragraph of its own help.
        run: Takes the parsed options; returns the exit code.
        epilog: The last paragraph of its help.
    """

    name: str
    summary: str
    description: str
    add_options: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    epilog: str = ""


def local_module(name: str) -> Any:
    """Return a module of `rollforward.local`.

    Raises:
        CliError: its requirements are not installed.
    """
    return _of_local_extra(f"rollforward.local.{name}")


def yaml_module() -> Any:
    """Return PyYAML.

    Raises:
        CliError: it is not installed.
    """
    return _of_local_extra("yaml")


def _of_local_extra(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "rollforward":
            raise
        raise CliError(
            f"The local platform is not installed (there is no {error.name}): "
            "pip install 'rollforward[local]'"
        ) from error
