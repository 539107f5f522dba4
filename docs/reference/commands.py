"""The commands of the program `rollforward`, as Markdown, from its parsers."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from rollforward.cli.program import COMMANDS, EXIT_CODES, parser

Row = Sequence[str]


def exit_codes() -> list[Row]:
    """Return a row for each exit code."""
    return [[f"`{code}`", text] for code, text in EXIT_CODES.items()]


def sections() -> Iterator[tuple[str, list[Row], str]]:
    """Yield the text above, the options and the text below of each command, with its own ones."""
    named = _subcommands(parser())
    for command in COMMANDS:
        yield from _sections(named[command.name])


def _sections(command: argparse.ArgumentParser) -> Iterator[tuple[str, list[Row], str]]:
    hashes = "#" * len(command.prog.split())
    about = f"{hashes} {command.prog}\n\n{_one_line(command.description)}"
    yield about, _options(command), _one_line(command.epilog)
    for subcommand in _subcommands(command).values():
        yield from _sections(subcommand)


def _options(command: argparse.ArgumentParser) -> list[Row]:
    return [
        [f"`{_form(action)}`", _help(action)]
        for action in command._actions
        if not isinstance(
            action, argparse._SubParsersAction | argparse._HelpAction | argparse._VersionAction
        )
    ]


def _form(action: argparse.Action) -> str:
    value = str(action.metavar or "") or (action.dest.upper() if action.option_strings else "")
    if action.choices:
        value = "|".join(map(str, action.choices))
    if not action.option_strings:
        value = value or action.dest
        return {"?": f"[{value}]", "*": f"[{value} ...]", "+": f"{value} ..."}.get(
            str(action.nargs), value
        )
    return action.option_strings[-1] + (f" {value}" if action.nargs != 0 else "")


def _help(action: argparse.Action) -> str:
    return _one_line(action.help).replace("%(default)s", str(action.default))


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())


def _subcommands(command: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in command._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}
