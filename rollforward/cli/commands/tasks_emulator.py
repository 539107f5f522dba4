"""`rollforward tasks-emulator`: the Cloud Tasks emulator alone, for an app of any kind."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rollforward import lazy_imports
from rollforward.cli.command import Command, local_module

PORT, UI_PORT = 8123, 8000


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the addresses, the queues, and the place of the data."""
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (127.0.0.1)")
    parser.add_argument(
        "--port", type=_port, default=PORT, help=f"the port of gRPC and REST ({PORT}); 0 is free"
    )
    parser.add_argument(
        "--queue",
        action="append",
        default=[],
        metavar="NAME",
        help="a queue to create, by id or full name; may be repeated",
    )
    parser.add_argument(
        "--queue-yaml", type=Path, metavar="PATH", help="a queue.yaml, read again when it changes"
    )
    parser.add_argument(
        "--project", default="demo-local", help="the project of queues without one (demo-local)"
    )
    parser.add_argument(
        "--location", default="us-central1", help="the location of the same queues (us-central1)"
    )
    parser.add_argument(
        "--app-url",
        default="http://127.0.0.1:8080",
        metavar="URL",
        help="the default service of App Engine tasks (http://127.0.0.1:8080)",
    )
    parser.add_argument(
        "--service",
        action="append",
        default=[],
        metavar="NAME=URL",
        help="another service of App Engine tasks, by [[INSTANCE.]VERSION.]SERVICE; repeatable",
    )
    parser.add_argument(
        "--dispatch-yaml",
        type=Path,
        metavar="PATH",
        help="a dispatch.yaml, whose rules choose the service; read again when it changes",
    )
    parser.add_argument(
        "--functions-url",
        default="http://127.0.0.1:5001",
        metavar="URL",
        help="the functions of Firebase, each at URL/PROJECT/LOCATION/NAME (http://127.0.0.1:5001)",
    )
    parser.add_argument(
        "--issuer", default="", metavar="URL", help="the issuer of OIDC tokens (the emulator's URL)"
    )
    parser.add_argument(
        "--data", type=Path, metavar="FOLDER", help="keep queues and tasks there (nothing is kept)"
    )
    parser.add_argument(
        "--ui",
        type=_port,
        nargs="?",
        const=UI_PORT,
        metavar="PORT",
        help=f"show queues and tasks as pages, on this machine only (port {UI_PORT})",
    )
    parser.add_argument("--json", action="store_true", help="print the address as one JSON line")


def _port(text: str) -> int:
    if text.isdecimal() and int(text) <= 65535:
        return int(text)
    raise argparse.ArgumentTypeError(f"must be 0 to 65535, got {text!r}")


def run(options: argparse.Namespace) -> int:
    """Serve until Ctrl-C or a signal."""
    code: int = emulator_module().run(options)
    return code


def emulator_module() -> Any:
    """Return the module that serves, loaded without Google's client.

    Raises:
        CliError: its requirements are not installed.
    """
    lazy_imports.install(lazy_imports.CLOUD_TASKS)
    return local_module("tasks_emulator")


COMMAND = Command(
    "tasks-emulator",
    "run the Cloud Tasks emulator alone, for an app of any kind",
    "Run Cloud Tasks on this machine: gRPC and REST on one port, for every project and location. "
    "Tasks are sent to any URL, and App Engine tasks to --app-url. Ctrl-C stops it.",
    add_options,
    run,
)
