"""The WSGI app of gunicorn's workers: the target's or, if that cannot be loaded, an error page.

gunicorn ends when a worker cannot load the app, and the browser sees a refused connection. So a
worker of the local platform loads it through `load`, which never fails. The app is loaded again
when a file is saved. This module runs in the app's workers and imports nothing of the platform but
its SDK of OpenTelemetry (sdk.py).
"""

import html
import importlib
import inspect
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rollforward.local.app.sdk import export_traces

PROBLEM_HEADER = "X-Devserver-Problem"
"""Carries WRONG or BROKEN and, percent-encoded, the reason."""

MIDDLEWARE = "Middleware goes around its wsgi_app: app.wsgi_app = ProxyFix(app.wsgi_app)."

WRONG, BROKEN = "wrong", "broken"
"""The target is not what `module:callable` must be; or its own code fails."""

FIRST_LINE, LAST_LINE = "ERROR the app cannot be loaded: ", "It is loaded again on save."
"""What stands around each report on standard error."""

LOADED = "INFO the app is loaded"
"""What a worker writes there that could load it."""

_SHOWN_LINES, _SHOWN_STEPS = 8, 3
_MAX_LINE = 300
_STDLIB = sysconfig.get_path("stdlib")
_REPOSITORY = Path(__file__).resolve().parents[3]
_FOR_STRANGERS = "<!doctype html><title>Error</title><p>The app cannot be loaded.</p>\n"
_LOCAL_HOSTS = {"127.0.0.1", "localhost", "[::1]"}

WsgiApp = Callable[[dict[str, Any], Any], Iterable[bytes]]


class WrongTargetError(Exception):
    """The target is not what `module:callable` must be."""


def load(target: str) -> WsgiApp:
    """Return the target's app, or one that answers each request with why there is none."""
    try:
        app = app_of(target)
    except WrongTargetError as error:
        page = ErrorPage(WRONG, str(error), [])
    except BaseException as error:
        page = ErrorPage(BROKEN, *describe(error))
    else:
        export_traces()
        _write(LOADED)
        return _as_cold_as_a_profile_says(app)
    page.report()
    return page


def _as_cold_as_a_profile_says(app: WsgiApp) -> WsgiApp:
    """Return the app behind the start of an instance, if there is a profile."""
    path = os.getenv("CLOUD_PROFILE")
    if not path:
        return app
    from rollforward.cloud_profile import load as load_profile
    from rollforward.cloud_profile.instances import ColdStart

    return ColdStart(app, load_profile(Path(path)))


def _write(text: str) -> None:
    """Write to standard error in one piece: another worker writes there, too."""
    sys.stderr.flush()
    os.write(sys.stderr.fileno(), f"{text}\n".encode(errors="replace"))


def app_of(target: str) -> WsgiApp:
    """Return the target's app, opened.

    Raises:
        WrongTargetError: the target is not of the form `module:callable`.
        Exception: its own code fails.
    """
    module_name, _, name = target.removesuffix("()").partition(":")
    module = importlib.import_module(module_name)
    served = getattr(module, name, None)
    if served is None:
        raise WrongTargetError(f"There is no {name!r} in {module.__file__ or module_name}.")
    if not hasattr(served, "wsgi_app"):  # It is no Flask app, but makes one.
        if not callable(served):
            raise WrongTargetError(f"{target} is {served!r}: name a function that returns the app.")
        if needs_arguments(served):
            raise WrongTargetError(
                f"{target} takes arguments: name the Flask app, or a function without any. "
                + MIDDLEWARE
            )
        served = served()
    if not callable(served):
        raise WrongTargetError(f"{target} returned {served!r}: it must return the Flask app.")
    opening = getattr(served, "extensions", {}).get("rollforward")
    if opening is not None:  # Of rf.serve.
        opening.open()
    app: WsgiApp = served
    return app


def needs_arguments(served: Callable[..., Any]) -> bool:
    """Return whether a callable is no function that makes an app, but perhaps WSGI middleware."""
    try:
        inspect.signature(served).bind()
    except (TypeError, ValueError):
        return True
    return False


def describe(error: BaseException) -> tuple[str, list[str]]:
    """Return where and what in a sentence, and the app's own steps on the way there.

    Eight lines at most: the frames of libraries say little to the person who made the mistake.
    """
    text = "".join(traceback.format_exception_only(error)).rstrip().splitlines()
    # A syntax error shows its line first, and further in.
    at = next(i for i, line in enumerate(text) if not line.startswith("  "))
    summary, details, steps = text[at], text[at + 1 :], _app_frames(error)
    lines = text[:at] or [line for step in steps for line in _lines_of(step)]
    if error.__cause__ is not None:
        details.append(f"because of {traceback.format_exception_only(error.__cause__)[-1].strip()}")
    lines += details[: max(1, _SHOWN_LINES - len(lines))]
    summary = f"{_location(error, steps)}{_without_our_module(summary)}"
    return summary[:_MAX_LINE], [line[:_MAX_LINE] for line in lines]


def _without_our_module(summary: str) -> str:
    """Return the summary of one of the library's errors by its class, as of others by theirs."""
    name, colon, text = summary.partition(": ")
    return f"{name.rpartition('.')[2]}{colon}{text}" if name.startswith("rollforward.") else summary


def _app_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the first step into the app's code and the last two in it."""
    frames = traceback.extract_tb(error.__traceback__)
    steps = [frame for frame in frames if _is_app_file(frame.filename)]
    return steps if len(steps) <= _SHOWN_STEPS else [steps[0], *steps[1 - _SHOWN_STEPS :]]


def _lines_of(step: traceback.FrameSummary) -> list[str]:
    place = f"  {_short(step.filename)}, line {step.lineno}, in {step.name}"
    return [place, f"    {step.line}"] if step.line else [place]


def _location(error: BaseException, steps: list[traceback.FrameSummary]) -> str:
    """Return where it happened, with a colon: the last line of the app's own on the way.

    A declaration that is found wrong when the app is opened has no line: its text names it.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_short(error.filename)}, line {error.lineno}: "
    return f"{_short(steps[-1].filename)}, line {steps[-1].lineno}: " if steps else ""


def _is_app_file(filename: str) -> bool:
    """Return whether a file is the app's: neither Python's, nor a library's, nor this one.

    To an app in a folder of its own this repository is a library, too.
    """
    path = Path(filename)
    is_library = "site-packages" in path.parts or path.is_relative_to(_STDLIB)
    if not Path.cwd().is_relative_to(_REPOSITORY):
        is_library = is_library or path.is_relative_to(_REPOSITORY)
    return path.is_absolute() and not is_library and filename != __file__


def _short(filename: str) -> str:
    path = Path(filename)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else filename


class ErrorPage:
    """Answers every request with 500 and the reason."""

    def __init__(self, kind: str, summary: str, lines: list[str]) -> None:
        self.kind = kind
        self.summary = summary
        self.lines = lines

    def report(self) -> None:
        """Write the reason to standard error."""
        _write("\n".join([FIRST_LINE + self.summary, *self.lines, LAST_LINE]))

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """Answer a request; what the code says is for this machine's own names alone."""
        is_local = _is_local(str(environ.get("HTTP_HOST", "")))
        body = (self._html() if is_local else _FOR_STRANGERS).encode(errors="replace")
        problem = f"{self.kind} {quote(self.summary)}" if is_local else self.kind
        headers = [
            ("Content-Type", "text/html; charset=utf-8"),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
            ("Content-Security-Policy", "default-src 'none'"),
            (PROBLEM_HEADER, problem),
        ]
        start_response("500 Internal Server Error", headers)
        return [b"" if environ.get("REQUEST_METHOD") == "HEAD" else body]

    def _html(self) -> str:
        lines = html.escape("\n".join(self.lines))
        return (
            '<!doctype html><html lang="en"><meta charset="utf-8">'
            '<meta http-equiv="refresh" content="2"><title>The app cannot be loaded</title>'
            f"<h1>The app cannot be loaded</h1><p>{html.escape(self.summary)}</p>"
            f"<pre>{lines}</pre>"
            "<p>Fix it and save: the app and this page reload automatically.</p></html>\n"
        )


def _is_local(host: str) -> bool:
    """Return whether a Host header is this machine's.

    A page of another site that has made its own name point here may read what we answer.
    """
    return host in _LOCAL_HOSTS or host.rpartition(":")[0] in _LOCAL_HOSTS
