"""The app that a command asks, by its options: the local platform's, or a deployed one."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollforward.cli.command import local_module
from rollforward.cli.errors import UnreachableError, WrongUsageError
from rollforward.cli.remote.tables import printable, table

if TYPE_CHECKING:
    from rollforward.cli.remote.http import Endpoint

TOKEN_VARIABLE = "ROLLFORWARD_TOKEN"  # nosec B105  The name of a variable.
PREFIX = "/rollforward"
EPILOG = (
    "Without --url the local platform is asked that runs in this folder. A deployed app needs "
    "`rf.serve(app, ..., console=rf.Console(access=...))` and a token: ROLLFORWARD_TOKEN="
    "$(gcloud auth print-identity-token) rollforward {name} --url https://shop.example. The token "
    "is sent by https only, or to this machine, and is never printed."
)
_NO_CONSOLE = (
    "{url} mounts no console at {prefix}, or its access hook gives this caller no role: "
    "rf.serve(app, ..., console=rf.Console(access=...))"
)


@dataclass(frozen=True)
class RemoteApp:
    """An app that runs.

    Attributes:
        app: The API of the console that the app mounts.
        platform: The API of the local platform; None for a deployed app.
    """

    app: Endpoint
    platform: Endpoint | None

    def local(self, command: str, instead: str) -> Endpoint:
        """Return the local platform.

        Raises:
            WrongUsageError: the app is deployed; says what to use instead.
        """
        if self.platform is None:
            raise WrongUsageError(f"{command} is for the local platform. {instead}")
        return self.platform


FILTERS = ("pattern", "queue", "state", "error", "name", "since", "until")


def find(options: argparse.Namespace) -> RemoteApp:
    """Return the app that options name.

    Raises:
        WrongUsageError: they contradict each other.
        PlatformError: they name no platform, and one answers that runs another folder's app.
        UnreachableError: no local platform answers.
    """
    token = options.token or os.environ.get(TOKEN_VARIABLE, "")
    prefix = options.prefix or PREFIX
    if options.url and options.console:
        raise WrongUsageError("Give --url for a deployed app, or --console for a local one.")
    if options.url:
        return RemoteApp(_app(options.url, prefix, token.strip()), None)
    if options.token:
        raise WrongUsageError("--token is for a deployed app: name it by --url.")
    console = options.console or _console_url()
    running = _endpoint(console, "/api/v1", f"{console} is no console of the local platform.")
    try:
        shell = running.get("/shell")
    except UnreachableError as error:
        raise UnreachableError(
            f"{error}. Start the local platform in another terminal: rollforward run. Name a "
            "deployed app by --url."
        ) from error
    if not _settings().is_named(os.environ, options.console or ""):
        root = Path(str(shell.get("root", "")))
        if note := _settings().check_folder(console, root, Path.cwd()):
            print(printable(note), file=sys.stderr)
    environment = shell.get("environment")
    url = environment.get("TASKS_URL", "") if isinstance(environment, dict) else ""
    return RemoteApp(_app(str(url), prefix, ""), running)


def _app(url: str, prefix: str, token: str) -> Endpoint:
    absent = _NO_CONSOLE.format(url=url.rstrip("/"), prefix=prefix)
    return _endpoint(url, f"{prefix.rstrip('/')}/api/v1", absent, token)


def _endpoint(url: str, path: str, absent: str, token: str = "") -> Endpoint:
    # Most commands send no request, and an HTTP client takes as long to load as all of them.
    from rollforward.cli.remote.http import endpoint

    return endpoint(url, path, absent, token)


def _console_url() -> str:
    url: str = _settings().console_url(os.environ, Path.cwd())
    return url


def _settings() -> Any:
    return local_module("settings")


def show(
    options: argparse.Namespace,
    name: str,
    rows: Sequence[Mapping[str, Any]],
    head: Sequence[str],
    cells: Callable[[Mapping[str, Any]], Iterable[object]],
    *,
    following: object = None,
) -> int:
    """Print a page of rows: as a table, or as {name: [...], "next": ...}."""
    if options.json:
        print(json.dumps({name: rows, "next": following or None}))
        return 0
    if rows:
        print(table(head, [list(cells(row)) for row in rows]))
    else:
        is_filtered = any(getattr(options, filter_name, None) for filter_name in FILTERS)
        print(f"No {name.replace('_', ' ')}{' match' if is_filtered else ''}.")
    if following:
        print(f"\nMore: --after {printable(str(following))}")
    return 0


def confirm(options: argparse.Namespace, answer: Mapping[str, Any], sentence: str) -> int:
    """Print the result of a change."""
    print(json.dumps(answer) if options.json else printable(sentence))
    return 0


def confirm_run(options: argparse.Namespace, answer: Mapping[str, Any]) -> int:
    """Print the run that makes a change of many things."""
    started = answer.get("run")
    row: Mapping[str, Any] = started if isinstance(started, dict) else {}
    name = f"{row.get('pattern')} {row.get('id')}"
    return confirm(options, answer, f"Started a run: rollforward runs show {name}")


def rows_of(answer: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """Return the rows of an answer; what is no row is left out."""
    rows = answer.get(name)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
