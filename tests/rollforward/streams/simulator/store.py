"""The rows of the simulator, and what answers a worker's calls in their place."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Mapping
from typing import Any

from rollforward.streams.storage.remote_calls import (
    ChangedError,
    Commit,
    Key,
    Read,
    ScanKeysMany,
    Snapshot,
    StoredRow,
    UnworkableError,
)
from rollforward.streams.storage.serde import check_sizes, dump


class Violation(AssertionError):
    """An invariant does not hold."""


Steps = Generator[Any, Any, Any]
# Answers a call in the place of the services, by further calls; None: the services answer.
Answer = Callable[[Any], Generator[Any, Any, tuple[Any] | None]]


def answered(steps: Steps, answer: Answer) -> Steps:
    """Run steps, with some of their calls answered otherwise."""
    reply: Any = None
    error: Exception | None = None
    while True:
        try:
            call = steps.throw(error) if error else steps.send(reply)
        except StopIteration as stop:
            return stop.value
        error = None
        try:
            other = yield from answer(call)
            reply = other[0] if other else (yield call)
        except GeneratorExit:
            raise
        except Exception as raised:
            error = raised


def one_by_one(call: Any) -> Generator[Any, Any, tuple[Any] | None]:
    """Read several rows one after the other: each is as it is then. The last peek comes first."""
    if type(call) is ScanKeysMany and len(call.scans) > 1:
        answers: list[Any] = []
        for peek in reversed(call.scans):
            answers.insert(0, (yield peek))
        return (answers,)
    if type(call) not in (Read, Snapshot) or len(call.keys) == 1:
        return None
    found: list[Any] = []
    for key in call.keys:
        found += yield Read([key])
    return (found if type(call) is Read else (None, found),)


class Store:
    """Rows with versions; a commit is atomic."""

    def __init__(self) -> None:
        self.rows: dict[Key, StoredRow] = {}
        self.version = 0
        self.parts = random.Random(0)  # Which answers are cut short; nothing else of a schedule.
        self.unguarded: frozenset[str] = frozenset()  # Kinds whose versions are not checked.
        # Whether the service takes a commit, whatever its rows stand at.
        self.takes: Callable[[Commit], bool] = lambda commit: True
        # Called after each commit, also with the rows that it has replaced or deleted.
        self.on_commit: Callable[[Commit, Mapping[Key, StoredRow]], None] = lambda commit, before: (
            None
        )

    def read(self, keys: Any, moment: dict[Key, StoredRow] | None = None) -> list[StoredRow | None]:
        rows = self.rows if moment is None else moment
        return [rows.get(key) for key in keys]

    def names(self, kind: str, low: str, high: str, moment: Any = None) -> list[str]:
        rows = self.rows if moment is None else moment
        return sorted(key.name for key in rows if key.kind == kind and low <= key.name < high)

    def first_names(
        self, kind: str, low: str, high: str, limit: int, moment: Any = None
    ) -> list[str]:
        """Return the first names: answers that are cut short are followed to their end."""
        found: list[str] = []
        is_finished = False
        while not is_finished and len(found) < limit:
            part, is_finished = self.ask(kind, low, high, limit - len(found), moment)
            found += part
            low = f"{found[-1]}\0" if found else low
        return found

    def ask(
        self, kind: str, low: str, high: str, limit: int, moment: Any = None
    ) -> tuple[list[str], bool]:
        """Return the first names, or some of them, or none, and whether these are all."""
        names = self.names(kind, low, high, moment)[:limit]
        if self.parts.random() < 0.5:
            return names, True
        return names[: self.parts.randrange(len(names) + 1)], False

    def commit(self, commit: Commit) -> list[int]:
        if not self.takes(commit):
            raise UnworkableError("the service takes no such row")
        # Not `commit.rows`: `test_one_record.py` counts the files of which functions run.
        written = [*((key, body) for key, body, _ in commit.puts), *commit.inserts]
        check_sizes(((key, dump(key.kind, body)) for key, body in written), len(commit.deletes))
        for key, _ in commit.inserts:
            if key in self.rows:
                raise ChangedError
        for key, version in [*((key, at) for key, _, at in commit.puts), *commit.deletes]:
            self._check(key, version)
        self.version += 1
        touched = [*(key for key, _, _ in commit.puts), *(key for key, _ in commit.deletes)]
        before = {key: self.rows[key] for key in touched if key in self.rows}
        for key, _ in commit.deletes:
            self.rows.pop(key, None)
        for key, body in written:
            self.rows[key] = StoredRow(body, self.version)
        self.on_commit(commit, before)
        return [self.version] * len(written)

    def _check(self, key: Key, version: int | None) -> None:
        if version is not None and key.kind not in self.unguarded:
            found = self.rows.get(key)
            if found is None or found.version != version:
                raise ChangedError
