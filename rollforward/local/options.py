"""The options of a run, for each command line that starts one."""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from rollforward.local.errors import UsageError

EPILOG = (
    "Ports: APP_PORT, CONSOLE_PORT, TASKS_PORT, DATASTORE_PORT, MEMCACHE_PORT, MAIL_PORT (0 takes "
    "a free one). DATASTORE_EMULATOR=datastore chooses the emulator that does not lock; "
    "DATASTORE_EMULATOR_HOST and MEMCACHE_HOSTS use one that already runs; MEMCACHE_HOSTS=none "
    "runs the app without memcached."
)
TARGET_HELP = (
    "the Flask app, or a function that returns it (default: main:serve; without a main.py "
    "app:serve, or the one module here that has a `serve`)"
)


_SERVICE = re.compile(r"(?:[a-z0-9-]+\.){0,2}[a-z0-9-]+")


def service_urls(texts: Sequence[str]) -> dict[str, str]:
    """Return the addresses of services by their names, from the values of --service.

    Raises:
        UsageError: a value is malformed, or a name is there twice.
    """
    urls: dict[str, str] = {}
    for text in texts:
        name, _, url = text.partition("=")
        if not _SERVICE.fullmatch(name) or not url.startswith(("http://", "https://")):
            raise UsageError(
                f"--service must be NAME=URL, with a NAME like worker or v2.worker, got {text!r}"
            )
        if name in urls:
            raise UsageError(f"--service must name a service once, got {name!r} twice")
        urls[name] = url
    return urls


class _Parser(argparse.ArgumentParser):
    """Reports a bad argument as any other error."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}. {self.prog} --help lists the options.")


def parser() -> argparse.ArgumentParser:
    """Return the parser of `python -m rollforward.local`."""
    command_line = _Parser(
        prog="python -m rollforward.local",
        description="Start the app and everything it needs, on this machine only.",
        epilog=EPILOG,
    )
    command_line.add_argument("--target", default="", metavar="MODULE:CALLABLE", help=TARGET_HELP)
    add_to(command_line)
    return command_line


def add_to(parser: argparse.ArgumentParser) -> None:
    """Add every option but the target."""
    parser.add_argument(
        "--queues",
        type=Path,
        metavar="PATH",
        help="the queue.yaml; else that of the target's package, else that of this folder",
    )
    parser.add_argument("--cron", type=Path, metavar="PATH", help="the cron.yaml; the same")
    parser.add_argument(
        "--service",
        action="append",
        default=[],
        metavar="NAME=URL",
        help="another service of App Engine tasks, which you run yourself; may be repeated. A "
        "dispatch.yaml beside queue.yaml chooses between them",
    )
    parser.add_argument(
        "--like",
        default="",
        metavar="cloud|FILE",
        help="draw latencies and limits from a profile, on the Firestore emulator: the one that "
        "comes along (rollforward/cloud_profile/cloud.toml), or a file of your own in its form",
    )
    parser.add_argument("--memory", action="store_true", help="keep nothing across restarts")
    parser.add_argument("--no-reload", action="store_true", help="do not reload on save")
    parser.add_argument("--json", action="store_true", help="print the addresses as one JSON line")
    parser.add_argument("--verbose", action="store_true", help="show every line of every service")
