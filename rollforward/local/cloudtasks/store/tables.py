"""The tables of the store: queues, names, tasks, attempts, operations.

The live tasks are in the engine's memory too; ended ones are only here.
Callers hold the engine's lock.
"""

import json
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

from rollforward.local.cloudtasks.store.database import Database
from rollforward.local.cloudtasks.store.records import LIVE, Attempt, PullMessage, TaskRecord

MAX_ATTEMPTS_PER_TASK = 200

# The columns of a task that a dispatch or its end may change.
_PROGRESS = (
    "schedule_at", "due_at", "state", "ended_at", "dispatch_count", "response_count",
    "execution_count", "previous_status", "retry_reason", "first_attempt_at", "last_schedule_at",
    "last_dispatch_at", "last_response_at", "last_code", "last_message",
)  # fmt: skip
_FIXED = ("sequence", "name", "queue", "path", "is_app_engine", "is_named", "created_at")
_COLUMNS = _FIXED + _PROGRESS
_INSERT_TASK = (
    f"INSERT INTO tasks ({', '.join(_COLUMNS)}, tag) VALUES ({', '.join('?' * len(_COLUMNS))}, ?)"
)
_values_of_task = attrgetter(*_COLUMNS)
_progress_of_task = attrgetter(*_PROGRESS, "sequence")
_UPDATE_TASK = f"UPDATE tasks SET {', '.join(f'{c} = ?' for c in _PROGRESS)} WHERE sequence = ?"
_SELECT_TASK = (
    f"SELECT {', '.join(f'tasks.{c}' for c in _COLUMNS)}, tag, spec, payload FROM tasks JOIN specs"
)

# A copy that comes late says nothing of how its task ended.
_OWN = "kind NOT IN ('duplicate', 'overlap')"

# What an index of its own holds: attempts that were struck, repeated, or failed.
INCIDENT = "(faults != '[]' OR error IS NOT NULL OR status < 200 OR status > 299)"

_LOST = "The emulator ended while this attempt was running."


@dataclass(frozen=True)
class StoredQueue:
    """A queue as it lies on disk."""

    name: str
    spec: bytes
    from_yaml: bool
    is_pull: bool


class QueueTable:
    """Queue messages by name."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def all(self) -> list[StoredQueue]:
        """Return all queues."""
        rows = self._db.rows("SELECT * FROM queues ORDER BY name")
        return [
            StoredQueue(row["name"], row["spec"], bool(row["from_yaml"]), bool(row["is_pull"]))
            for row in rows
        ]

    def put(self, queue: StoredQueue) -> None:
        """Write a queue, new or changed."""
        self._db.write(
            "INSERT OR REPLACE INTO queues (name, spec, from_yaml, is_pull) VALUES (?, ?, ?, ?)",
            (queue.name, queue.spec, int(queue.from_yaml), int(queue.is_pull)),
        )

    def delete(self, name: str) -> None:
        """Forget a queue, not its tasks."""
        self._db.write("DELETE FROM queues WHERE name = ?", (name,))


class NameTable:
    """Names that are blocked for a while, of tasks and queues."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def blocked_until(self, name: str) -> float:
        """Return until when a task's or queue's name is blocked; 0 if it is free."""
        return float(
            self._db.value("SELECT expires_at FROM tombstones WHERE name = ?", (name,)) or 0.0
        )

    def block(self, name: str, expires_at: float) -> None:
        """Block a name."""
        self._db.write("INSERT OR REPLACE INTO tombstones VALUES (?, ?)", (name, expires_at))

    def free(self, since: float, prefix: str) -> None:
        """Unblock the names with a prefix of tasks that were created at a time or later."""
        self._db.write(
            "DELETE FROM tombstones WHERE name IN "
            "(SELECT name FROM tasks WHERE created_at >= ? AND substr(name, 1, ?) = ?)",
            (since, len(prefix), prefix),
        )


class TaskTable:
    """Tasks, live and ended."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def insert(self, task: TaskRecord) -> None:
        """Write a new task."""
        tag, payload = (task.pull.tag, task.pull.payload) if task.pull else (None, None)
        self._db.write(_INSERT_TASK, (*_values_of_task(task), tag))
        self._db.write(
            "INSERT INTO specs (sequence, spec, payload) VALUES (?, ?, ?)",
            (task.sequence, task.spec, payload),
        )

    def update(self, task: TaskRecord) -> None:
        """Write how far a task has come."""
        self._db.write(_UPDATE_TASK, _progress_of_task(task))

    def live(self) -> Iterator[TaskRecord]:
        """Return the tasks that have not ended, oldest first."""
        rows = self._db.rows(
            f"{_SELECT_TASK} USING (sequence) WHERE state = ? ORDER BY tasks.sequence", (LIVE,)
        )
        return (_task(row) for row in rows)

    def by_name(self, name: str, sequence: int) -> TaskRecord | None:
        """Return the youngest task of a name, ended or not.

        Args:
            sequence: That of the only task whose caller did not choose the name; 0 for none.
        """
        row = self._db.row(
            f"{_SELECT_TASK} USING (sequence) WHERE tasks.sequence = max((SELECT "
            "coalesce(max(sequence), 0) FROM tasks WHERE name = ? AND is_named = 1), "
            "(SELECT coalesce(max(sequence), 0) FROM tasks WHERE sequence = ? AND name = ?))",
            (name, sequence, name),
        )
        return _task(row) if row else None

    def newest(
        self,
        below: int,
        limit: int,
        queue: str = "",
        state: str = "",
        *,
        above: int = 0,
        holding: bytes = b"",
    ) -> list[TaskRecord]:
        """Return tasks with a sequence below this one, newest first.

        Args:
            above: Only those with a sequence above this one.
            holding: Only those whose request holds these bytes.
        """
        clauses = ["tasks.sequence < ?", "tasks.sequence > ?"]
        values: list[int | str | bytes] = [below, above]
        for clause, value in (
            ("queue = ?", queue),
            ("state = ?", state),
            ("instr(coalesce(payload, spec), ?) > 0", holding),
        ):
            if value:
                clauses.append(clause)
                values.append(value)
        rows = self._db.rows(
            f"{_SELECT_TASK} USING (sequence) WHERE {' AND '.join(clauses)} "
            "ORDER BY tasks.sequence DESC LIMIT ?",
            [*values, limit],
        )
        return [_task(row) for row in rows]

    def ended(self, since: float, states: Sequence[str]) -> list[TaskRecord]:
        """Return the tasks that ended so at a time or later, in the order of their ends."""
        rows = self._db.rows(
            f"{_SELECT_TASK} USING (sequence) WHERE ended_at >= ? "
            f"AND state IN ({', '.join('?' * len(states))}) ORDER BY ended_at",
            [since, *states],
        )
        return [_task(row) for row in rows]

    def ended_counts(self) -> dict[tuple[str, str], int]:
        """Return how many ended tasks are kept, by queue and state."""
        rows = self._db.rows(
            "SELECT queue, state, COUNT(*) FROM tasks WHERE ended_at IS NOT NULL "
            "GROUP BY queue, state"
        )
        return {(row[0], row[1]): row[2] for row in rows}


class AttemptTable:
    """Attempts of tasks, with requests and responses."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def insert(self, attempt: Attempt) -> None:
        """Write an attempt that begins."""
        self._db.write(
            "INSERT INTO attempts (id, sequence, number, kind, faults, started_at, method, url, "
            "headers, has_body) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                attempt.id,
                attempt.task.sequence,
                attempt.number,
                attempt.kind,
                json.dumps(attempt.faults) if attempt.faults else "[]",
                attempt.started_at,
                attempt.method,
                attempt.url,
                json.dumps(attempt.headers),
                int(bool(attempt.body)),
            ),
        )
        if attempt.number and attempt.number % MAX_ATTEMPTS_PER_TASK == 0:
            self._prune(attempt.task.sequence)

    def _prune(self, sequence: int) -> None:
        """Keep only the latest attempts of a task that fails for ever."""
        self._db.write(
            "DELETE FROM attempts WHERE sequence = ? AND id NOT IN "
            "(SELECT id FROM attempts WHERE sequence = ? ORDER BY id DESC LIMIT ?)",
            (sequence, sequence, MAX_ATTEMPTS_PER_TASK),
        )

    def end(self, attempt: Attempt) -> None:
        """Write the end of an attempt."""
        self._db.write(
            "UPDATE attempts SET faults = ?, duration_ms = ?, status = ?, error = ?, "
            "response_headers = ?, response_body = ?, next_retry_at = ? WHERE id = ?",
            (
                json.dumps(attempt.faults) if attempt.faults else "[]",
                attempt.duration_ms,
                attempt.status,
                attempt.error,
                json.dumps(attempt.response_headers),
                attempt.response_body,
                attempt.next_retry_at,
                attempt.id,
            ),
        )

    def of_task(self, sequence: int) -> list[sqlite3.Row]:
        """Return the attempts of a task, oldest first."""
        rows = self._db.rows("SELECT * FROM attempts WHERE sequence = ? ORDER BY id", (sequence,))
        return rows.fetchall()

    def last_response(self, sequence: int) -> bytes | None:
        """Return the body of the newest response to a task; copies do not speak for it."""
        body: bytes | None = self._db.value(
            f"SELECT response_body FROM attempts WHERE sequence = ? AND status IS NOT NULL "
            f"AND {_OWN} ORDER BY id DESC LIMIT 1",
            (sequence,),
        )
        return body

    def last_duration_ms(self, sequence: int) -> float | None:
        """Return how long a task's newest attempt took that has ended; copies do not count."""
        duration_ms: float | None = self._db.value(
            f"SELECT duration_ms FROM attempts WHERE sequence = ? AND duration_ms IS NOT NULL "
            f"AND {_OWN} ORDER BY id DESC LIMIT 1",
            (sequence,),
        )
        return duration_ms

    def last_faults(self, sequence: int) -> list[str]:
        """Return the kinds of the faults that hit a task's newest attempt that has ended."""
        faults: str | None = self._db.value(
            f"SELECT faults FROM attempts WHERE sequence = ? AND duration_ms IS NOT NULL "
            f"AND {_OWN} ORDER BY id DESC LIMIT 1",
            (sequence,),
        )
        return list(json.loads(faults)) if faults else []

    def of_tasks(self, sequences: Sequence[int]) -> list[sqlite3.Row]:
        """Return the attempts of some tasks without their responses, oldest first."""
        marks = ", ".join("?" * len(sequences))
        rows = self._db.rows(
            "SELECT id, sequence, kind, faults, started_at, duration_ms, status, error "
            f"FROM attempts WHERE sequence IN ({marks}) ORDER BY id",
            [*sequences],
        )
        return rows.fetchall()

    def newest(self, since: float, limit: int) -> list[sqlite3.Row]:
        """Return the newest attempts that began since a moment, oldest first, with their tasks.

        Among the `limit` youngest attempts of all alone: the table has no index of their times.
        """
        rows = self._db.rows(
            "SELECT attempts.id, kind, faults, started_at, duration_ms, status, error, number, "
            "tasks.queue, tasks.path FROM attempts JOIN tasks USING (sequence) "
            "WHERE attempts.id > (SELECT coalesce(max(id), 0) FROM attempts) - ? "
            "AND started_at >= ? ORDER BY attempts.id",
            (limit, since),
        )
        return rows.fetchall()

    def ended_since(self, queue: str, since: float) -> int:
        """Return how many attempts of a queue began since a moment and have ended."""
        count: int = self._db.value(
            "SELECT COUNT(*) FROM attempts JOIN tasks USING (sequence) "
            "WHERE queue = ? AND started_at >= ? AND duration_ms IS NOT NULL",
            (queue, since),
        )
        return count

    def incidents(
        self, since: float, until: float, path: str, text: str, limit: int
    ) -> list[sqlite3.Row]:
        """Return attempts that were struck, repeated or failed, oldest first, with their tasks."""
        rows = self._db.rows(
            "SELECT attempts.*, tasks.name, tasks.queue, tasks.path, tasks.state, "
            "tasks.ended_at AS task_ended_at, spec "
            "FROM attempts JOIN tasks USING (sequence) JOIN specs USING (sequence) "
            f"WHERE {INCIDENT} AND started_at >= ? AND started_at <= ? "
            "AND instr(path, ?) AND instr(spec, CAST(? AS BLOB)) ORDER BY started_at LIMIT ?",
            (since, until, path, text, limit),
        )
        return rows.fetchall()

    def close_lost(self) -> None:
        """End the attempts that a crash cut off."""
        self._db.write(
            "UPDATE attempts SET duration_ms = 0, error = ? WHERE duration_ms IS NULL", (_LOST,)
        )


class OperationTable:
    """Serialized long-running operations."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def get(self, name: str) -> bytes | None:
        """Return a serialized long-running operation."""
        message: bytes | None = self._db.value(
            "SELECT message FROM operations WHERE name = ?", (name,)
        )
        return message

    def all(self) -> list[bytes]:
        """Return all kept operations, oldest first."""
        rows = self._db.rows("SELECT message FROM operations ORDER BY created_at, name")
        return [row[0] for row in rows]

    def put(self, name: str, created_at: float, message: bytes) -> None:
        """Keep an operation."""
        self._db.write(
            "INSERT OR REPLACE INTO operations VALUES (?, ?, ?)", (name, created_at, message)
        )

    def delete(self, name: str) -> None:
        """Forget an operation."""
        self._db.write("DELETE FROM operations WHERE name = ?", (name,))


def _task(row: sqlite3.Row) -> TaskRecord:
    values = {column: row[column] for column in _COLUMNS}
    values["path"] = sys.intern(values["path"])
    for flag in ("is_app_engine", "is_named"):
        values[flag] = bool(values[flag])
    pull = None if row["tag"] is None else PullMessage(row["payload"], row["tag"])
    return TaskRecord(spec=row["spec"], pull=pull, **values)
