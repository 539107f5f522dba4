"""Failures of a command: the text is shown as it is, and the class decides the exit code."""

from __future__ import annotations


class CliError(Exception):
    """A failure, in a sentence that says what to do."""

    exit_code = 1


class WrongUsageError(CliError):
    """An argument that names nothing, or makes no sense."""

    exit_code = 2


class UnreachableError(CliError):
    """No platform or app answers."""

    exit_code = 3


class NotAllowedError(CliError):
    """The app does not accept the caller."""

    exit_code = 4


class NotFoundError(CliError):
    """The named thing, or the API that would know it, does not exist."""

    exit_code = 5
