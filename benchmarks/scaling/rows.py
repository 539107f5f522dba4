"""Rows with versions for a simulation of many records: names in order, and past snapshots.

It replaces `tests/rollforward/streams/simulator/store.py`, which checks more and is slower. Here
the time of a query depends on its results only, and a snapshot is a version instead of a copy of
all rows.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping

from rollforward.streams.storage.remote_calls import ChangedError, Commit, Key, StoredRow


class Rows:
    """Rows of all kinds; a commit is atomic."""

    def __init__(self) -> None:
        self.version = 0
        self._rows: dict[Key, StoredRow] = {}
        self._names: dict[str, list[str]] = defaultdict(list)  # Including names in snapshots.
        # By key, the replaced rows, each with the version that replaced it.
        self._before: dict[Key, deque[tuple[int, StoredRow | None]]] = {}
        self._replaced: deque[tuple[int, Key]] = deque()
        self._moments: dict[object, int] = {}  # By their readers.
        # Called after each commit, with the rows that it has replaced or deleted.
        self.on_commit: Callable[[Commit, Mapping[Key, StoredRow]], None] = (
            lambda commit, replaced: None
        )

    def begin_moment(self, reader: object) -> int:
        """Keep a snapshot of all rows until its reader ends."""
        self._moments[reader] = self.version
        return self.version

    def end_moment(self, reader: object) -> None:
        """Drop a reader's snapshot, and the rows that only this snapshot has."""
        if self._moments.pop(reader, None) is None:
            return
        oldest = min(self._moments.values(), default=self.version)
        while self._replaced and self._replaced[0][0] <= oldest:
            _, key = self._replaced.popleft()
            history = self._before[key]
            history.popleft()
            if not history:
                del self._before[key]
                if key not in self._rows:
                    self._drop_name(key)

    def read(self, keys: Iterable[Key], at: int | None = None) -> list[StoredRow | None]:
        return [self._rows.get(key) if at is None else self._as_of(key, at) for key in keys]

    def scan(
        self, kind: str, low: str, high: str, limit: int, at: int | None = None
    ) -> list[tuple[str, StoredRow]]:
        """Return the first rows of a range, in order of their names."""
        names, rows = self._names[kind], list[tuple[str, StoredRow]]()
        for place in range(bisect_left(names, low), bisect_left(names, high)):
            [row] = self.read([Key(kind, names[place])], at)
            if row is not None:
                rows.append((names[place], row))
                if len(rows) == limit:
                    break
        return rows

    def names(self, kind: str) -> list[str]:
        """Return the names of all rows of a kind."""
        return [name for name in self._names[kind] if Key(kind, name) in self._rows]

    def commit(self, commit: Commit) -> list[int]:
        """Write all rows of a commit, or none.

        Raises:
            ChangedError: a row has another version than the commit expects.
        """
        self._check(commit)
        self.version += 1
        replaced = {}
        for key in [key for key, *_ in (*commit.puts, *commit.deletes)]:
            if (row := self._rows.get(key)) is not None:
                replaced[key] = row
        for key, _ in commit.deletes:
            self._replace(key, None)
        for key, body in commit.rows:
            self._replace(key, StoredRow(body, self.version))
        self.on_commit(commit, replaced)
        return [self.version] * len(commit.rows)

    def _check(self, commit: Commit) -> None:
        if any(key in self._rows for key, _ in commit.inserts):
            raise ChangedError
        for key, version in [*((key, at) for key, _, at in commit.puts), *commit.deletes]:
            row = self._rows.get(key)
            if version is not None and (row is None or row.version != version):
                raise ChangedError

    def _replace(self, key: Key, row: StoredRow | None) -> None:
        previous = self._rows.get(key)
        is_named = previous is not None or key in self._before
        if self._moments and (previous is not None or row is not None):
            self._before.setdefault(key, deque()).append((self.version, previous))
            self._replaced.append((self.version, key))
        if row is None:
            self._rows.pop(key, None)
            if is_named and key not in self._before:
                self._drop_name(key)
            return
        self._rows[key] = row
        if not is_named:
            insort(self._names[key.kind], key.name)

    def _as_of(self, key: Key, at: int) -> StoredRow | None:
        for until, row in self._before.get(key, ()):
            if at < until:
                return row
        return self._rows.get(key)

    def _drop_name(self, key: Key) -> None:
        names = self._names[key.kind]
        del names[bisect_left(names, key.name)]
