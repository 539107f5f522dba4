"""`rollforward run`: the app and everything that it needs, on this machine only."""

from __future__ import annotations

import argparse

from rollforward.cli.command import Command, local_module
from rollforward.local import options as local_options


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the target and the options of a run."""
    parser.add_argument(
        "target", nargs="?", default="", metavar="module:callable", help=local_options.TARGET_HELP
    )
    local_options.add_to(parser)


def run(options: argparse.Namespace) -> int:
    """Start the local platform; return when Ctrl-C or a signal has stopped it."""
    platform, settings = local_module("__main__"), local_module("settings")
    code: int = platform.run(lambda: settings.chosen_by(options))
    return code


COMMAND = Command(
    "run",
    "start the app and everything it needs, on this machine only",
    "Start the app with Datastore, Cloud Tasks, memcached, mail and cron, on this machine only, "
    "and the console on port 8000. The app is loaded again when a file is saved. Ctrl-C stops "
    "everything. Data is kept in .dev/.",
    add_options,
    run,
    local_options.EPILOG,
)
