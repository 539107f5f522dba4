"""Entities with versions, the indexes of the queries that were asked, and moments of the past."""

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
    """An entity, and the version of the commit that wrote it, in microseconds."""

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
        now_us: The time of a commit, in microseconds.
        kept_us: For how long what was replaced is kept, for reads of the past.
    """

    now_us: Callable[[], int] = lambda: time.time_ns() // 1_000
    kept_us: int = KEPT_US
    version: int = 0
    stored: dict[Path, Stored] = field(default_factory=dict)
    _by_kind: dict[tuple[str, str], list[Path]] = field(default_factory=lambda: defaultdict(list))
    _indexes: dict[Form, list[tuple[Any, ...]]] = field(default_factory=dict)
    _forms: dict[tuple[str, str], list[Form]] = field(default_factory=lambda: defaultdict(list))
    # What a commit has replaced, by its version, oldest first.
    _replaced: deque[tuple[int, Path, Stored | None]] = field(default_factory=deque)

    def next_version(self) -> int:
        """Return the version of a commit that begins now: later than all others."""
        self.version = max(self.version + 1, self.now_us())
        return self.version

    def now(self) -> int:
        """Return the moment that a read sees: all commits so far."""
        return self.version

    def get(self, path: Path, at: int | None = None) -> Stored | None:
        """Return an entity as it is, or as it was at a moment."""
        stored = self.stored.get(path)
        if at is None or (self.version <= at):
            return stored
        for version, replaced, before in self._since(at):
            if replaced == path and version > at:
                return before
        return stored

    def changed_since(self, at: int) -> Iterator[Path]:
        """Yield what was written or deleted after a moment, if that is not too long ago."""
        return (path for _, path, _ in self._since(at))

    def _since(self, at: int) -> list[tuple[int, Path, Stored | None]]:
        """Return what was replaced after a moment, the oldest first."""
        later = []
        for change in reversed(self._replaced):
            if change[0] <= at:
                break
            later.append(change)
        later.reverse()
        return later

    def write(self, version: int, changes: Mapping[Path, Any]) -> None:
        """Write entities, or delete those that are None."""
        for path, entity in changes.items():
            before = self.stored.get(path)
            self._replaced.append((version, path, before))
            if before is not None:
                self._drop_entries(path, before.entity)
            if entity is None:
                self.stored.pop(path, None)
            else:
                self.stored[path] = Stored(entity, version)
                self._add_entries(path, entity, is_new=before is None)
            if entity is None and before is not None:
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
        """Return a sorted index; the first query of a form makes it."""
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
        """Yield entries and their entities from a bound on, in order, as they were at a moment."""
        index = self._index(form)
        first: dict[Path, Stored | None] = {}
        if at is not None and at < self.version:
            for _, path, before in self._since(at):
                if kind_of(path) == form.kind:
                    first.setdefault(path, before)
        earlier = sorted(
            entry
            for path, before in first.items()
            if before is not None
            for entry in entries_of(before.entity, path, form.same, form.orders)
            if entry >= tuple(low)
        )
        place, bound = 0, tuple(low)
        for number in range(bisect_left(index, bound), len(index)):
            entry = index[number]
            while place < len(earlier) and earlier[place] < entry:
                yield earlier[place], first[earlier[place][-1]]  # type: ignore[misc]
                place += 1
            if entry[-1] not in first:
                yield entry, self.stored[entry[-1]]
        for entry in earlier[place:]:
            yield entry, first[entry[-1]]  # type: ignore[misc]
