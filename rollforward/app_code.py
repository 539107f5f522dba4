"""Code of the app, as the library calls it: which of its errors count as failures.

A task, a step or a callback that ends by an error of any class has failed: if it did not count, it
would be repeated without end. Signals alone do not count. They end code on purpose:
an interrupt of the keyboard, a generator that is closed, and `ControlFlow` of the library.
"""

from __future__ import annotations

import inspect
from asyncio import CancelledError
from collections.abc import Callable
from typing import Any

from google.cloud import ndb

# Of code of the app: neither `sys.exit()` nor the end of a task of asyncio is an Exception.
EXITS = (SystemExit, CancelledError)
APP_ERRORS = (Exception, *EXITS)


class ControlFlow(BaseException):
    """Ends code of the app, and is no error of it."""


SIGNALS = (ControlFlow, KeyboardInterrupt, GeneratorExit)


class NotAnExceptionError(Exception):
    """Code of the app has raised a BaseException, as packages do that limit the time of a call."""


def tasklet_result(returned: Any) -> Any:
    """Return the value of a call; a tasklet of ndb is waited for."""
    return returned.result() if isinstance(returned, ndb.Future) else returned


def run_app(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Return the result of code of the app, a tasklet of ndb or not.

    Raises:
        NotAnExceptionError: it has raised another BaseException, which would count as no failure.
    """
    try:
        return tasklet_result(function(*args, **options))
    except (*APP_ERRORS, *SIGNALS):
        raise
    except BaseException as error:
        raise NotAnExceptionError(f"{type(error).__name__}: {error}") from error


def runs_when_called(function: Callable[..., object]) -> bool:
    """Return whether a call runs a function: of a generator or a coroutine it only creates one."""
    return not (inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function))
