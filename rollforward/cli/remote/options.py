"""Options that commands share: the app, a page of a list, verbs, and the names that they take."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from rollforward.cli.remote.remote_app import PREFIX, TOKEN_VARIABLE
from rollforward.look.lists import parse_integer

MAX_LIMIT = 50
Run = Callable[[argparse.Namespace], int]


def add_remote_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that name the app, and --json."""
    parser.add_argument("--console", metavar="URL", help="the console of the local platform")
    parser.add_argument("--url", metavar="URL", help="a deployed app")
    parser.add_argument(
        "--token", help=f"the bearer token for it; else the variable {TOKEN_VARIABLE}"
    )
    parser.add_argument(
        "--prefix", help=f"the prefix of the console that the app mounts ({PREFIX})"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_page(parser: argparse.ArgumentParser) -> None:
    """Add the size of a page and where it begins."""
    add_after(parser)
    parser.add_argument(
        "--limit", default=20, type=limit, metavar="N", help=f"rows, 1 to {MAX_LIMIT} (20)"
    )


def add_after(parser: argparse.ArgumentParser) -> None:
    """Add where a page begins, of a list whose pages have a size of their own."""
    parser.add_argument("--after", default="", metavar="CURSOR", help="continue a list there")


def limit(text: str) -> int:
    """Return a number of rows."""
    if (number := parse_integer(text, MAX_LIMIT)) is None:
        raise argparse.ArgumentTypeError(f"must be 1 to {MAX_LIMIT}, got {text!r}")
    return number


def add_subparsers_of(parser: argparse.ArgumentParser) -> Any:
    """Return where the verbs of a command are added, after the command's own options."""
    return parser.add_subparsers(metavar="VERB", dest="verb")


def add_subcommand(
    verbs: Any, name: str, summary: str, run: Run, /, **names: str
) -> argparse.ArgumentParser:
    """Add a verb below a command, which takes the same options.

    Args:
        names: The names that it takes, each with its help.
    """
    parser: argparse.ArgumentParser = verbs.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        argument_default=argparse.SUPPRESS,  # Those in front of the verb stay.
    )
    parser.set_defaults(run_verb=run)
    add_remote_options(parser)
    for option, about in names.items():
        parser.add_argument(option, metavar=option.upper(), help=about)
    return parser


def subcommand_or(list_rows: Run) -> Run:
    """Return a command that runs its verb, or lists rows if there is none."""

    def run(options: argparse.Namespace) -> int:
        chosen: Run = options.run_verb if options.verb else list_rows
        return chosen(options)

    return run
