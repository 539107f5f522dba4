"""The command line: `rollforward run`, `new`, `shell`, `tasks`, `deploy` and so on.

    commands   one module for each command: its options, its help and its work
    program    the parser of all commands, and the exit codes

A command loads its modules when it runs. Without `rollforward[local]` a command of the local
platform says what to install. Failures are one sentence on standard error. A failed command changes
only the things that its text names.
"""

from rollforward.cli.program import main, parser

__all__ = ["main", "parser"]
