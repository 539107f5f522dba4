"""`rollforward shell`: Python with the app's clients, on the platform that runs.

The console of the running platform says which app that is and where its services are. The app is
opened here once more, as in one more worker that takes no requests, and its context stays open.

Input from a pipe, or from -c, runs as a script.
"""

import argparse
import code
import http.client
import importlib
import json
import os
import sys
import traceback
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollforward.local import settings
from rollforward.local.app import wsgi
from rollforward.local.errors import BrokenAppError, NoPlatformError, PlatformError, UsageError

ANSWER_S = 5.0
# Another server's JSON, or none.
_NO_ANSWER = (ValueError, KeyError, TypeError)
_REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Running:
    """The platform that runs: which app in which folder, and the environment to join it with."""

    console: str
    target: str
    root: Path
    environment: Mapping[str, str]


def main(arguments: Sequence[str]) -> int:
    """Open a shell as a command line says; return the exit code."""
    options = _parser().parse_args(arguments)
    return run(options.target, options.code)


def run(asked: str | None, script: str | None, console: str = "") -> int:
    """Open the app, then a prompt or a script in its context; return the exit code.

    Args:
        asked: Another app than the one that runs.
        script: Lines to run instead of a prompt.
        console: The URL of the running console, if it is not the usual one.
    """
    try:
        running = find(console or settings.console_url(os.environ, Path.cwd()))
        if not (asked or settings.is_named(os.environ, console)):
            settings.check_folder(running.console, running.root, Path.cwd())
        target = asked or running.target
        _join(running, Path.cwd() if asked else running.root)
        names = open_app(target)
    except PlatformError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    with names["clients"].context():
        if script is not None:
            return run_script(script, names)
        if not sys.stdin.isatty():
            return run_script(sys.stdin.read(), names)
        _prompt(names, f"{target} on {running.environment.get('TASKS_URL', running.console)}")
    return 0


def find(console: str) -> Running:
    """Return the platform whose console is at an address.

    Raises:
        NoPlatformError: none is; says how to start one.
    """
    # Not by a proxy: it would look for this address on its own machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{console}/api/v1/shell", timeout=ANSWER_S) as response:
            answer = json.loads(response.read())
            return Running(console, answer["target"], Path(answer["root"]), answer["environment"])
    except (urllib.error.HTTPError, http.client.HTTPException, *_NO_ANSWER) as error:
        raise NoPlatformError(
            f"What answers at {console} is no console of this platform ({error}). If that is on "
            "another port: CONSOLE_PORT=9000 rollforward shell."
        ) from error
    except OSError as error:
        raise NoPlatformError(
            f"No local platform answers at {console}. Start it in another terminal: rollforward "
            "run. If its console is on another port: CONSOLE_PORT=9000 rollforward shell."
        ) from error


def open_app(target: str) -> dict[str, Any]:
    """Return the names of a prompt: the names of the target's module, and the app's own clients.

    Raises:
        UsageError: the target makes no app on the patterns.
        BrokenAppError: its code fails; the text says where.
    """
    try:
        app: Any = wsgi.app_of(target)
    except wsgi.WrongTargetError as error:
        raise UsageError(str(error)) from error
    except (Exception, SystemExit) as error:
        summary, lines = wsgi.describe(error)
        raise BrokenAppError("\n".join([f"The app cannot be loaded: {summary}", *lines])) from error
    wiring = getattr(app, "extensions", {}).get("wiring")
    if wiring is None:
        raise UsageError(
            f"{target} is an app without clients: write `serve = rf.serve(app, greet)`, with the "
            "tasks that it has."
        )
    module = importlib.import_module(target.partition(":")[0])
    public = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    of_app = {"app": app, "clients": wiring.clients, "registry": wiring.registry}
    return {**public, "ndb": importlib.import_module("google.cloud.ndb"), **of_app}


def run_script(text: str, names: dict[str, Any]) -> int:
    """Run a script; return 1 if it raises, and show where in it."""
    try:
        # It is a shell: its user types what it runs.
        exec(compile(text, "<shell>", "exec"), names)  # nosec B102
    except Exception as error:
        # Without the frame above: the script's own come first.
        trace = error.__traceback__.tb_next if error.__traceback__ is not None else None
        traceback.print_exception(error.with_traceback(trace))
        return 1
    return 0


def _join(running: Running, folder: Path) -> None:
    """Make this process one of the platform's, in a folder."""
    environment = settings.without_cloud(os.environ)
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update({"LOG_LEVEL": "WARNING", **environment, **running.environment})
    sys.path[:0] = [str(folder), str(_REPOSITORY)]


def _prompt(names: dict[str, Any], where: str) -> None:
    try:
        readline = importlib.import_module("readline")
        completer = importlib.import_module("rlcompleter").Completer(names)
        readline.set_completer(completer.complete)
        readline.parse_and_bind("tab: complete")
    except ImportError:
        pass  # Then a line is typed whole.
    banner = (
        f"{where}\n"
        "  clients   for every call that takes clients; the context of Datastore is open\n"
        "  registry  what the app is made of: registry.tasks, registry.jobs\n"
        "  app, ndb  the Flask app, google.cloud.ndb; and the names of the app's own module\n"
        "Ctrl-D ends it."
    )
    code.interact(banner, local=names, exitmsg="")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m rollforward.local.shell",
        description="Python with the app's clients, on the services of the running platform.",
        epilog="CONSOLE_PORT is the running console's (8000).",
    )
    parser.add_argument(
        "--target", metavar="MODULE:CALLABLE", help="another app than the one that runs"
    )
    parser.add_argument("-c", dest="code", metavar="CODE", help="run this, and end")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
