"""`rollforward shell`: Python with the app's clients, on the platform that runs."""

from __future__ import annotations

import argparse

from rollforward.cli.command import Command, local_module


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the target and the code."""
    parser.add_argument(
        "target",
        nargs="?",
        metavar="module:callable",
        help="another app than the one that runs",
    )
    parser.add_argument("-c", dest="code", metavar="CODE", help="run this, and end")
    parser.add_argument(
        "--console",
        default="",
        metavar="URL",
        help="the console of the running platform; else that of this folder, or of CONSOLE_PORT "
        "(8000)",
    )


def run(options: argparse.Namespace) -> int:
    """Open the shell; return its exit code."""
    code: int = local_module("shell").run(options.target, options.code, options.console)
    return code


COMMAND = Command(
    "shell",
    "Python with the clients of the app that runs",
    "Open Python with the app's clients and its open Datastore context, on the platform that "
    "`rollforward run` has started. Input from a pipe, or from -c, runs as a script.",
    add_options,
    run,
)
