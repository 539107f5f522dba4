"""The program `rollforward`: its commands, in the order of a first day, and its exit codes."""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Sequence
from typing import Any

from rollforward.cli.command import Command
from rollforward.cli.commands import (
    dead,
    deploy,
    doctor,
    lanes,
    new,
    ping,
    queues,
    run,
    runs,
    shell,
    tasks,
    tasks_emulator,
)
from rollforward.cli.errors import CliError
from rollforward.local.errors import PlatformError

COMMANDS: tuple[Command, ...] = (
    new.COMMAND,
    run.COMMAND,
    shell.COMMAND,
    doctor.COMMAND,
    tasks_emulator.COMMAND,
    tasks.COMMAND,
    runs.COMMAND,
    dead.COMMAND,
    queues.COMMAND,
    lanes.COMMAND,
    deploy.COMMAND,
    ping.COMMAND,
)
EXIT_CODES = {
    0: "done",
    1: "failed, or there is something to do: the text says what",
    2: "the arguments are wrong",
    3: "no platform or app answers",
    4: "the app does not accept the caller",
    5: "there is no such thing, or no API for it that the app shows this caller",
}
_FULL = (errno.ENOSPC, errno.EDQUOT)
_DESCRIPTION = (
    "Data pipelines on Datastore and Cloud Tasks: make an app, run it on this machine, look at its "
    "work, and check what its deployment needs."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit code."""
    options = parser().parse_args(arguments)
    command: Command = options.command
    try:
        return command.run(options)
    except (CliError, PlatformError) as error:
        print(f"rollforward {command.name}: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # `rollforward tasks | head`: nobody reads the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        # A folder that is read-only is named; a write to a full disk names no file.
        if error.filename is None and error.errno not in _FULL:
            raise
        print(f"rollforward {command.name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


class _Parser(argparse.ArgumentParser):
    """Parses a command or a verb; an option that it does not have is an error with its own usage.

    argparse would leave the error to the program, whose usage has the commands alone.
    """

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return options, unknown


class _ShowVersion(argparse.Action):
    """Prints the version, and ends the program."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        print(_version())
        parser.exit()


def _version() -> str:
    """Return the version of the installed package; a clone on the path has none."""
    from importlib import metadata  # It loads the parsers of mails, which no command needs.

    try:
        return f"rollforward {metadata.version('rollforward')}"
    except metadata.PackageNotFoundError:
        return "rollforward, from a clone"


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands; an option `command` holds the chosen one."""
    program = _Parser(
        prog="rollforward",
        description=_DESCRIPTION,
        epilog="Exit codes: " + "; ".join(f"{code} {text}" for code, text in EXIT_CODES.items()),
    )
    program.add_argument(
        "--version", action=_ShowVersion, nargs=0, help="show program's version number and exit"
    )
    named = program.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        subparser = named.add_parser(
            command.name,
            help=command.summary,
            description=command.description,
            epilog=command.epilog or None,
        )
        subparser.set_defaults(command=command)
        command.add_options(subparser)
    return program
