"""Log entries of a store that cannot be written to: one line each, which says what to do."""

from __future__ import annotations

import logging
import sqlite3

_ADVICE = "Nothing accepted is lost: make room on the disk of the store, and the queue goes on"


def truncate(record: logging.LogRecord) -> bool:
    """Put a line in the place of SQLite's traceback, which says no more; a filter of a handler."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, sqlite3.OperationalError):
        record.msg, record.args = f"{record.getMessage()}: {error}. {_ADVICE}", ()
        record.exc_info = record.exc_text = None
    return True
