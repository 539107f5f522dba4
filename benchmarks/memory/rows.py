"""Entities with versions, indexes for the queries so far, and reads of the past."""

from __future__ import annotations

import time
from bisect import bisect_left, insort
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from benchmarks.memory.values import Path, entries_of, kind_of

KEPT_US = 15_000_000


class Stored(NamedTuple):
    """An entity, and the version of its last commit, in microseconds."""

    entity: Any
    version: int


class Form(NamedTuple):
    """The kind and the properties of a query's index."""

    kind: tuple[str, str]
    same: tuple[str, ...]
    orders: tuple[tuple[str, bool], ...]


@dataclass
class Rows:
    """All entities; a change is atomic because its caller holds a lock.

    Attributes:
        now_us: Returns the time for a commit, in microseconds.
        kept_us: The time for which replaced entities are kept, for reads of the past.
    """

    now_us: Callable[[], int] = lambda: time.time_ns() // 1_000
    kept_us: int = KEPT_US
    version: int = 0
    stored: dict[Path, Stored] = field(default_factory=dict)
    _by_kind: dict[tuple[str, str], list[Path]] = field(default_factory=lambda: defaultdict(list))
    _indexes: dict[Form, list[tuple[Any, ...]]] = field(default_factory=dict)
    _forms: dict[tuple[str, str], list[Form]] = field(default_factory=lambda: defaultdict(list))
    # Replaced entities with the version of the commit, oldest first.
    _replaced: deque[tuple[int, Path, Stored | None]] = field(default_factory=deque)

    def next_version(self) -> int:
        """Return the version of a new commit, which is later than all others."""
        self.version = max(self.version + 1, self.now_us())
        return self.version

    def now(self) -> int:
        """Return the version that a read at this time sees."""
        return self.version

    def get(self, path: Path, at: int | None = None) -> Stored | None:
        """Return an entity, optionally as it was at a version."""
        stored = self.stored.get(path)
        if at is None or (self.version <= at):
            return stored
        for version, replaced, previous in self._since(at):
            if replaced == path and version > at:
                return previous
        return stored

    def changed_since(self, at: int) -> Iterator[Path]:
        """Yield the keys written or deleted after a version, as far back as changes are kept."""
        return (path for _, path, _ in self._since(at))

    def _since(self, at: int) -> list[tuple[int, Path, Stored | None]]:
        """Return the changes after a version with the replaced entities, oldest first."""
        changes = []
        for change in reversed(self._replaced):
            if change[0] <= at:
                break
            changes.append(change)
        changes.reverse()
        return changes

    def write(self, version: int, changes: Mapping[Path, Any]) -> None:
        """Write entities; None deletes one."""
        for path, entity in changes.items():
            previous = self.stored.get(path)
            self._replaced.append((version, path, previous))
            if previous is not None:
                self._drop_entries(path, previous.entity)
            if entity is None:
                self.stored.pop(path, None)
            else:
                self.stored[path] = Stored(entity, version)
                self._add_entries(path, entity, is_new=previous is None)
            if entity is None and previous is not None:
                paths = self._by_kind[kind_of(path)]
                del paths[bisect_left(paths, path)]
        while self._replaced and self._replaced[0][0] < version - self.kept_us:
            self._replaced.popleft()

    def _add_entries(self, path: Path, entity: Any, *, is_new: bool) -> None:
        kind = kind_of(path)
        if is_new:
            insort(self._by_kind[kind], path)
        for form in self._forms[kind]:
            for entry in entries_of(entity, path, form.same, form.orders):
                insort(self._indexes[form], entry)

    def _drop_entries(self, path: Path, entity: Any) -> None:
        for form in self._forms[kind_of(path)]:
            index = self._indexes[form]
            for entry in entries_of(entity, path, form.same, form.orders):
                del index[bisect_left(index, entry)]

    def _index(self, form: Form) -> list[tuple[Any, ...]]:
        """Return a sorted index; the first query of a form creates it."""
        if form not in self._indexes:
            entries = [
                entry
                for path in self._by_kind[form.kind]
                for entry in entries_of(self.stored[path].entity, path, form.same, form.orders)
            ]
            self._indexes[form] = sorted(entries)
            self._forms[form.kind].append(form)
        return self._indexes[form]

    def scan(
        self, form: Form, low: Sequence[Any], at: int | None = None
    ) -> Iterator[tuple[tuple[Any, ...], Stored]]:
        """Yield entries and entities in order from a bound, optionally as of a version."""
        index = self._index(form)
        replaced: dict[Path, Stored | None] = {}
        if at is not None and at < self.version:
            for _, path, previous in self._since(at):
                if kind_of(path) == form.kind:
                    replaced.setdefault(path, previous)
        earlier = sorted(
            entry
            for path, previous in replaced.items()
            if previous is not None
            for entry in entries_of(previous.entity, path, form.same, form.orders)
            if entry >= tuple(low)
        )
        place, bound = 0, tuple(low)
        for number in range(bisect_left(index, bound), len(index)):
            entry = index[number]
            while place < len(earlier) and earlier[place] < entry:
                yield earlier[place], replaced[earlier[place][-1]]  # type: ignore[misc]
                place += 1
            if entry[-1] not in replaced:
                yield entry, self.stored[entry[-1]]
        for entry in earlier[place:]:
            yield entry, replaced[entry[-1]]  # type: ignore[misc]
