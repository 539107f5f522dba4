"""One SQLite file, write-ahead log, one process: what the tables of the store are written to.

Writes gather in one transaction until commit(). A call is committed before it is answered, so it
survives kill -9. A power cut may lose the last calls, because a commit does not sync the log to the
disk.
"""

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_BUSY_TIMEOUT_S = 2.0  # A predecessor that was killed may still be on its way out.


class StoreInUseError(Exception):
    """Another process holds the store: two emulators would deliver each task twice."""


class Database:
    """A connection. Callers hold the engine's lock.

    Args:
        path: The file; None keeps everything in memory.
        schema: SQL that makes the tables that are missing.

    Raises:
        StoreInUseError: another process has opened the file.
    """

    def __init__(self, path: str | Path | None, schema: str) -> None:
        if path is not None:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        self._connection = sqlite3.connect(
            str(path) if path is not None else ":memory:",
            timeout=_BUSY_TIMEOUT_S,
            isolation_level=None,
            check_same_thread=False,
        )
        self._connection.row_factory = sqlite3.Row
        try:
            self._prepare(schema)
        except sqlite3.DatabaseError as error:
            self._connection.close()
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                raise
            raise StoreInUseError(f"{path} is in use by another emulator") from error
        self._is_open = False

    def _prepare(self, schema: str) -> None:
        """Take the file for ourselves until we end, and make the tables."""
        execute = self._connection.execute
        execute("PRAGMA locking_mode = EXCLUSIVE")
        execute("PRAGMA journal_mode = WAL")
        execute("PRAGMA synchronous = NORMAL")
        execute("BEGIN EXCLUSIVE")
        execute("COMMIT")
        self._connection.executescript(schema)

    def add_column(self, table: str, column: str, kind: str) -> None:
        """Add a column to a table that lacks it."""
        columns = {row["name"] for row in self.rows(f"PRAGMA table_info({table})")}
        if column not in columns:
            self._connection.execute(f"ALTER TABLE {table} ADD COLUMN {column} {kind}")

    def close(self) -> None:
        """Commit and close."""
        try:
            self.commit()
        finally:
            self._connection.close()

    def commit(self) -> None:
        """Make the writes since the last commit durable.

        Raises:
            sqlite3.Error: they are rolled back, by this commit or by a write before it: the disk is
                full. The next write starts over.
        """
        if not self._is_open:
            return
        self._is_open = False
        try:
            # Without a transaction, too: the rows are gone, and this must not pass for a commit.
            self._connection.execute("COMMIT")
        except sqlite3.Error:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    def write(self, sql: str, values: Sequence[Any] = ()) -> None:
        """Execute a statement that changes something.

        Raises:
            sqlite3.Error: it failed, or an earlier one since the last commit did, and SQLite rolled
                back both.
        """
        if not self._is_open:
            self._connection.execute("BEGIN")
            self._is_open = True
        elif not self._connection.in_transaction:
            # It would be kept by itself, without what it belongs to.
            raise sqlite3.OperationalError("an earlier write was rolled back")
        self._connection.execute(sql, values)

    def rows(self, sql: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        """Return the rows of a query, as they are read."""
        return self._connection.execute(sql, values)

    def row(self, sql: str, values: Sequence[Any] = ()) -> sqlite3.Row | None:
        """Return the first row of a query, None if there is none."""
        row: sqlite3.Row | None = self._connection.execute(sql, values).fetchone()
        return row

    def value(self, sql: str, values: Sequence[Any] = ()) -> Any:
        """Return the first column of the first row, None if there is none."""
        row = self.row(sql, values)
        return row[0] if row else None
