"""Setup of logging in a process: text on a laptop, entries of Cloud Logging in a deployed app."""

from __future__ import annotations

import logging
import sys
import threading
from types import TracebackType
from typing import Any

from rollforward.telemetry.log_entries import CloudLogFormatter

JSON, TEXT, OFF = "json", "text", "off"
FORMATS = (JSON, TEXT, OFF)
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
TEXT_FORMAT = "%(levelname)s %(name)s: %(message)s"

log = logging.getLogger(__name__)


def install(log_format: str, level: str, formatter: CloudLogFormatter) -> None:
    """Set up logging, unless the app has done so: its own handlers stay as they are.

    Args:
        log_format: One of FORMATS.
        level: One of LEVELS.
        formatter: The formatter of JSON entries.
    """
    if log_format == OFF or logging.getLogger().handlers:
        return
    if log_format == TEXT:
        logging.basicConfig(level=level, format=TEXT_FORMAT)
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(level=level, handlers=[handler])
    _format_gunicorn(formatter)
    sys.excepthook = _log_end_of_process
    threading.excepthook = _log_end_of_thread


def _format_gunicorn(formatter: CloudLogFormatter) -> None:
    """Write gunicorn's records of this worker as entries, too: it has handlers of its own."""
    for handler in logging.getLogger("gunicorn.error").handlers:
        if type(handler) is logging.StreamHandler:
            handler.setFormatter(formatter)


def _log_end_of_process(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Log the error that ends the process as one entry: Python prints a line an entry."""
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    log.critical("the process ends: %s", kind.__name__, exc_info=(kind, error, trace))


def _log_end_of_thread(args: Any) -> None:
    """Log the error that ends a thread as one entry."""
    if args.exc_type is SystemExit or args.exc_value is None:
        return
    name = args.thread.name if args.thread is not None else "?"
    exc_info = (args.exc_type, args.exc_value, args.exc_traceback)
    log.error("thread %s ends: %s", name, args.exc_type.__name__, exc_info=exc_info)
