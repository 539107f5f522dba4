"""Queues, tasks, attempts and names on disk, and when they are dropped.

Callers hold the engine's lock.
"""

from pathlib import Path
from typing import Any

from rollforward.local.cloudtasks.store.database import Database
from rollforward.local.cloudtasks.store.tables import (
    INCIDENT,
    AttemptTable,
    NameTable,
    OperationTable,
    QueueTable,
    TaskTable,
)

_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value BLOB) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS queues (
    name TEXT PRIMARY KEY, spec BLOB NOT NULL, from_yaml INTEGER NOT NULL,
    is_pull INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tasks (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, queue TEXT NOT NULL,
    path TEXT NOT NULL, is_app_engine INTEGER NOT NULL, is_named INTEGER NOT NULL,
    created_at REAL NOT NULL, schedule_at REAL NOT NULL, due_at REAL NOT NULL,
    state TEXT NOT NULL, ended_at REAL, dispatch_count INTEGER NOT NULL,
    response_count INTEGER NOT NULL, execution_count INTEGER NOT NULL,
    previous_status INTEGER, retry_reason TEXT, first_attempt_at REAL,
    last_schedule_at REAL, last_dispatch_at REAL, last_response_at REAL,
    last_code INTEGER NOT NULL, last_message TEXT NOT NULL, tag TEXT
);
DROP INDEX IF EXISTS tasks_by_name;
CREATE INDEX IF NOT EXISTS tasks_by_own_name ON tasks (name) WHERE is_named = 1;
CREATE INDEX IF NOT EXISTS tasks_ended ON tasks (ended_at) WHERE ended_at IS NOT NULL;
CREATE TABLE IF NOT EXISTS specs (
    sequence INTEGER PRIMARY KEY, spec BLOB NOT NULL, payload BLOB
);
CREATE TABLE IF NOT EXISTS tombstones (
    name TEXT PRIMARY KEY, expires_at REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS attempts (
    id INTEGER PRIMARY KEY AUTOINCREMENT, sequence INTEGER NOT NULL, number INTEGER NOT NULL,
    kind TEXT NOT NULL, faults TEXT NOT NULL, started_at REAL NOT NULL, method TEXT NOT NULL,
    url TEXT NOT NULL, headers TEXT NOT NULL, has_body INTEGER NOT NULL, duration_ms REAL,
    status INTEGER, error TEXT, response_headers TEXT, response_body BLOB, next_retry_at REAL
);
CREATE INDEX IF NOT EXISTS attempts_by_task ON attempts (sequence);
CREATE INDEX IF NOT EXISTS attempts_incidents ON attempts (started_at) WHERE {INCIDENT};
CREATE TABLE IF NOT EXISTS operations (
    name TEXT PRIMARY KEY, created_at REAL NOT NULL, message BLOB NOT NULL
) WITHOUT ROWID;
"""

# Columns that a file of an older version lacks.
_NEWER_COLUMNS = (
    ("queues", "is_pull", "INTEGER NOT NULL DEFAULT 0"),
    ("tasks", "tag", "TEXT"),
    ("specs", "payload", "BLOB"),
)

_TABLES = ("queues", "tasks", "specs", "tombstones", "attempts", "operations")


class Store:
    """All tables. A path of None keeps them in memory.

    Raises:
        StoreInUseError: another process has opened the file.
    """

    def __init__(self, path: str | Path | None) -> None:
        self._db = Database(path, _SCHEMA)
        for table, column, kind in _NEWER_COLUMNS:
            self._db.add_column(table, column, kind)
        self.queues = QueueTable(self._db)
        self.names = NameTable(self._db)
        self.tasks = TaskTable(self._db)
        self.attempts = AttemptTable(self._db)
        self.operations = OperationTable(self._db)

    def close(self) -> None:
        """Commit and close."""
        self._db.close()

    def commit(self) -> None:
        """Make the writes since the last commit durable."""
        self._db.commit()

    def meta(self, key: str) -> Any:
        """Return a small value that is kept under a key, or None."""
        return self._db.value("SELECT value FROM meta WHERE key = ?", (key,))

    def set_meta(self, key: str, value: Any) -> None:
        """Keep a value."""
        self._db.write("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def last_ids(self) -> tuple[int, int]:
        """Return the highest task sequence and attempt id ever given out."""
        ids = dict(self._db.rows("SELECT name, seq FROM sqlite_sequence").fetchall())
        return ids.get("tasks", 0), ids.get("attempts", 0)

    def prune(self, keep: int, now_s: float, operations_before: float) -> None:
        """Drop the oldest ended tasks beyond keep, and expired rows."""
        count = self._db.value("SELECT COUNT(*) FROM tasks WHERE ended_at IS NOT NULL")
        oldest = "(SELECT sequence FROM tasks WHERE ended_at IS NOT NULL ORDER BY ended_at LIMIT ?)"
        if (excess := count - keep) > 0:
            for table in ("attempts", "specs", "tasks"):
                self._db.write(f"DELETE FROM {table} WHERE sequence IN {oldest}", (excess,))
        self._db.write("DELETE FROM tombstones WHERE expires_at <= ?", (now_s,))
        self._db.write("DELETE FROM operations WHERE created_at < ?", (operations_before,))

    def clear(self, queue: str = "") -> None:
        """Drop everything but the signing key, or all tasks and names of one queue."""
        if not queue:
            for table in _TABLES:
                self._db.write(f"DELETE FROM {table}")
            return
        for table in ("attempts", "specs"):
            self._db.write(
                f"DELETE FROM {table} WHERE sequence IN "
                "(SELECT sequence FROM tasks WHERE queue = ?)",
                (queue,),
            )
        self._db.write("DELETE FROM tasks WHERE queue = ?", (queue,))
        prefix = f"{queue}/tasks/"
        self._db.write("DELETE FROM tombstones WHERE substr(name, 1, ?) = ?", (len(prefix), prefix))
