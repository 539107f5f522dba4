"""Queues, tasks, attempts and names on disk: SQLite, write-ahead log.

Writes gather in one transaction until commit(). An answered call was
committed before, so it survives kill -9 (a power cut may cost the last ones:
the log is not synced to the disk on each commit).

The live tasks are in the engine's memory too; ended ones are only here.
Callers hold the engine's lock.
"""

import json
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devserver.cloudtasks.records import LIVE, Attempt, TaskRecord

MAX_ATTEMPTS_PER_TASK = 200

_BUSY_TIMEOUT_S = 2.0  # A predecessor that was killed may still be on its way out.

_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value BLOB) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS queues (
    name TEXT PRIMARY KEY, spec BLOB NOT NULL, from_yaml INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tasks (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, queue TEXT NOT NULL,
    path TEXT NOT NULL, is_app_engine INTEGER NOT NULL, is_named INTEGER NOT NULL,
    created_at REAL NOT NULL, schedule_at REAL NOT NULL, due_at REAL NOT NULL,
    state TEXT NOT NULL, ended_at REAL, dispatch_count INTEGER NOT NULL,
    response_count INTEGER NOT NULL, execution_count INTEGER NOT NULL,
    previous_status INTEGER, retry_reason TEXT, first_attempt_at REAL,
    last_schedule_at REAL, last_dispatch_at REAL, last_response_at REAL,
    last_code INTEGER NOT NULL, last_message TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS tasks_by_name ON tasks (name);
CREATE INDEX IF NOT EXISTS tasks_ended ON tasks (ended_at) WHERE ended_at IS NOT NULL;
CREATE TABLE IF NOT EXISTS specs (sequence INTEGER PRIMARY KEY, spec BLOB NOT NULL);
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
CREATE TABLE IF NOT EXISTS operations (
    name TEXT PRIMARY KEY, created_at REAL NOT NULL, message BLOB NOT NULL
) WITHOUT ROWID;
"""

_TABLES = ("queues", "tasks", "specs", "tombstones", "attempts", "operations")

# The columns of a task that a dispatch or its end may change.
_PROGRESS = (
    "schedule_at", "due_at", "state", "ended_at", "dispatch_count", "response_count",
    "execution_count", "previous_status", "retry_reason", "first_attempt_at", "last_schedule_at",
    "last_dispatch_at", "last_response_at", "last_code", "last_message",
)  # fmt: skip
_FIXED = ("sequence", "name", "queue", "path", "is_app_engine", "is_named", "created_at")
_COLUMNS = _FIXED + _PROGRESS
_INSERT_TASK = (
    f"INSERT INTO tasks ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"
)
_UPDATE_TASK = f"UPDATE tasks SET {', '.join(f'{c} = ?' for c in _PROGRESS)} WHERE sequence = ?"
_SELECT_TASK = f"SELECT {', '.join(f'tasks.{c}' for c in _COLUMNS)}, spec FROM tasks JOIN specs"

_LOST = "The emulator ended while this attempt was running."


@dataclass(frozen=True)
class StoredQueue:
    """A queue as it lies on disk."""

    name: str
    spec: bytes
    from_yaml: bool


class StoreInUseError(Exception):
    """Another process holds the store: two emulators would deliver each task twice."""


class Store:
    """The tables. A path of None keeps them in memory.

    Raises:
        StoreInUseError: another process has opened the file.
    """

    def __init__(self, path: str | Path | None) -> None:
        if path is not None:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(
            str(path) if path is not None else ":memory:",
            timeout=_BUSY_TIMEOUT_S,
            isolation_level=None,
            check_same_thread=False,
        )
        self._db.row_factory = sqlite3.Row
        try:
            self._prepare()
        except sqlite3.OperationalError as error:
            self._db.close()
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                raise
            raise StoreInUseError(f"{path} is in use by another emulator") from error
        self._is_open = False

    def _prepare(self) -> None:
        """Take the file for ourselves until we end, and make the tables."""
        self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._db.execute("BEGIN EXCLUSIVE")
        self._db.execute("COMMIT")
        self._db.executescript(_SCHEMA)

    def close(self) -> None:
        """Commit and close."""
        self.commit()
        self._db.close()

    def commit(self) -> None:
        """Make the writes since the last commit durable."""
        if self._is_open:
            self._db.execute("COMMIT")
            self._is_open = False

    def _write(self, sql: str, values: Sequence[Any] = ()) -> None:
        if not self._is_open:
            self._db.execute("BEGIN")
            self._is_open = True
        self._db.execute(sql, values)

    def _one(self, sql: str, values: Sequence[Any] = ()) -> Any:
        row = self._db.execute(sql, values).fetchone()
        return row[0] if row else None

    # --- meta, queues, names ----------------------------------------------

    def meta(self, key: str) -> Any:
        """Return a kept value, or None."""
        return self._one("SELECT value FROM meta WHERE key = ?", (key,))

    def set_meta(self, key: str, value: Any) -> None:
        """Keep a value."""
        self._write("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def queues(self) -> list[StoredQueue]:
        """Return all queues."""
        rows = self._db.execute("SELECT * FROM queues ORDER BY name")
        return [StoredQueue(row["name"], row["spec"], bool(row["from_yaml"])) for row in rows]

    def put_queue(self, queue: StoredQueue) -> None:
        """Write a queue, new or changed."""
        self._write(
            "INSERT OR REPLACE INTO queues VALUES (?, ?, ?)",
            (queue.name, queue.spec, int(queue.from_yaml)),
        )

    def delete_queue(self, name: str) -> None:
        """Forget a queue, not its tasks."""
        self._write("DELETE FROM queues WHERE name = ?", (name,))

    def tombstone_expiry(self, name: str) -> float:
        """Return until when a task's or queue's name is blocked; 0 if it is free."""
        return self._one("SELECT expires_at FROM tombstones WHERE name = ?", (name,)) or 0.0

    def put_tombstone(self, name: str, expires_at: float) -> None:
        """Block a name."""
        self._write("INSERT OR REPLACE INTO tombstones VALUES (?, ?)", (name, expires_at))

    def free_names(self, since: float) -> None:
        """Unblock the names of tasks that were created at a time or later."""
        self._write(
            "DELETE FROM tombstones WHERE name IN (SELECT name FROM tasks WHERE created_at >= ?)",
            (since,),
        )

    # --- tasks ------------------------------------------------------------

    def last_ids(self) -> tuple[int, int]:
        """Return the highest task sequence and attempt id ever given out."""
        ids = dict(self._db.execute("SELECT name, seq FROM sqlite_sequence").fetchall())
        return ids.get("tasks", 0), ids.get("attempts", 0)

    def insert_task(self, task: TaskRecord) -> None:
        """Write a new task."""
        self._write(_INSERT_TASK, [getattr(task, column) for column in _COLUMNS])
        self._write("INSERT INTO specs VALUES (?, ?)", (task.sequence, task.spec))

    def update_task(self, task: TaskRecord) -> None:
        """Write how far a task has come."""
        values = [getattr(task, column) for column in _PROGRESS]
        self._write(_UPDATE_TASK, [*values, task.sequence])

    def live_tasks(self) -> Iterator[TaskRecord]:
        """Return the tasks that have not ended, oldest first."""
        rows = self._db.execute(
            f"{_SELECT_TASK} USING (sequence) WHERE state = ? ORDER BY tasks.sequence", (LIVE,)
        )
        return (_task(row) for row in rows)

    def task_by_name(self, name: str) -> TaskRecord | None:
        """Return the youngest task of a name, ended or not."""
        row = self._db.execute(
            f"{_SELECT_TASK} USING (sequence) WHERE name = ? ORDER BY tasks.sequence DESC LIMIT 1",
            (name,),
        ).fetchone()
        return _task(row) if row else None

    def tasks_before(
        self, before: int, limit: int, queue: str = "", state: str = ""
    ) -> list[TaskRecord]:
        """Return tasks with a sequence below before, newest first."""
        clauses, values = ["tasks.sequence < ?"], [before]
        for column, value in (("queue", queue), ("state", state)):
            if value:
                clauses.append(f"{column} = ?")
                values.append(value)
        rows = self._db.execute(
            f"{_SELECT_TASK} USING (sequence) WHERE {' AND '.join(clauses)} "
            "ORDER BY tasks.sequence DESC LIMIT ?",
            [*values, limit],
        )
        return [_task(row) for row in rows]

    def tasks_ended(self, since: float, states: Sequence[str]) -> list[TaskRecord]:
        """Return the tasks that ended so at a time or later, in the order of their ends."""
        rows = self._db.execute(
            f"{_SELECT_TASK} USING (sequence) WHERE ended_at >= ? "
            f"AND state IN ({', '.join('?' * len(states))}) ORDER BY ended_at",
            [since, *states],
        )
        return [_task(row) for row in rows]

    def ended_counts(self) -> dict[tuple[str, str], int]:
        """Return how many ended tasks are kept, by queue and state."""
        rows = self._db.execute(
            "SELECT queue, state, COUNT(*) FROM tasks WHERE ended_at IS NOT NULL "
            "GROUP BY queue, state"
        )
        return {(row[0], row[1]): row[2] for row in rows}

    # --- attempts ---------------------------------------------------------

    def insert_attempt(self, attempt: Attempt) -> None:
        """Write an attempt that begins."""
        self._write(
            "INSERT INTO attempts (id, sequence, number, kind, faults, started_at, method, url, "
            "headers, has_body) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                attempt.id,
                attempt.task.sequence,
                attempt.number,
                attempt.kind,
                json.dumps(attempt.faults),
                attempt.started_at,
                attempt.method,
                attempt.url,
                json.dumps(attempt.headers),
                int(bool(attempt.body)),
            ),
        )
        if attempt.number and attempt.number % MAX_ATTEMPTS_PER_TASK == 0:
            self._prune_attempts(attempt.task.sequence)

    def _prune_attempts(self, sequence: int) -> None:
        """Keep only the latest attempts of a task that fails for ever."""
        self._write(
            "DELETE FROM attempts WHERE sequence = ? AND id NOT IN "
            "(SELECT id FROM attempts WHERE sequence = ? ORDER BY id DESC LIMIT ?)",
            (sequence, sequence, MAX_ATTEMPTS_PER_TASK),
        )

    def end_attempt(self, attempt: Attempt) -> None:
        """Write what came of an attempt."""
        self._write(
            "UPDATE attempts SET faults = ?, duration_ms = ?, status = ?, error = ?, "
            "response_headers = ?, response_body = ?, next_retry_at = ? WHERE id = ?",
            (
                json.dumps(attempt.faults),
                attempt.duration_ms,
                attempt.status,
                attempt.error,
                json.dumps(attempt.response_headers),
                attempt.response_body,
                attempt.next_retry_at,
                attempt.id,
            ),
        )

    def attempts(self, sequence: int) -> list[sqlite3.Row]:
        """Return the attempts of a task, oldest first."""
        rows = self._db.execute(
            "SELECT * FROM attempts WHERE sequence = ? ORDER BY id", (sequence,)
        )
        return rows.fetchall()

    def close_lost_attempts(self) -> None:
        """End the attempts that a crash cut off."""
        self._write(
            "UPDATE attempts SET duration_ms = 0, error = ? WHERE duration_ms IS NULL", (_LOST,)
        )

    # --- operations, pruning ----------------------------------------------

    def operation(self, name: str) -> bytes | None:
        """Return a serialized long-running operation."""
        return self._one("SELECT message FROM operations WHERE name = ?", (name,))

    def operations(self) -> list[bytes]:
        """Return all kept operations, oldest first."""
        rows = self._db.execute("SELECT message FROM operations ORDER BY created_at, name")
        return [row[0] for row in rows]

    def put_operation(self, name: str, created_at: float, message: bytes) -> None:
        """Keep an operation."""
        self._write(
            "INSERT OR REPLACE INTO operations VALUES (?, ?, ?)", (name, created_at, message)
        )

    def delete_operation(self, name: str) -> None:
        """Forget an operation."""
        self._write("DELETE FROM operations WHERE name = ?", (name,))

    def prune(self, keep: int, now: float, operations_before: float) -> None:
        """Drop the oldest ended tasks beyond keep, and what has expired."""
        count = self._one("SELECT COUNT(*) FROM tasks WHERE ended_at IS NOT NULL")
        oldest = "(SELECT sequence FROM tasks WHERE ended_at IS NOT NULL ORDER BY ended_at LIMIT ?)"
        if (excess := count - keep) > 0:
            for table in ("attempts", "specs", "tasks"):
                self._write(f"DELETE FROM {table} WHERE sequence IN {oldest}", (excess,))
        self._write("DELETE FROM tombstones WHERE expires_at <= ?", (now,))
        self._write("DELETE FROM operations WHERE created_at < ?", (operations_before,))

    def clear(self, queue: str = "") -> None:
        """Drop everything but the signing key, or all tasks and names of one queue."""
        if not queue:
            for table in _TABLES:
                self._write(f"DELETE FROM {table}")
            return
        for table in ("attempts", "specs"):
            self._write(
                f"DELETE FROM {table} WHERE sequence IN "
                "(SELECT sequence FROM tasks WHERE queue = ?)",
                (queue,),
            )
        self._write("DELETE FROM tasks WHERE queue = ?", (queue,))
        prefix = f"{queue}/tasks/"
        self._write("DELETE FROM tombstones WHERE substr(name, 1, ?) = ?", (len(prefix), prefix))


def _task(row: sqlite3.Row) -> TaskRecord:
    values = {column: row[column] for column in _COLUMNS}
    for flag in ("is_app_engine", "is_named"):
        values[flag] = bool(values[flag])
    return TaskRecord(spec=row["spec"], **values)
