"""Ids of an interval: a commit costs what it adds, and not what the interval remembers."""

from __future__ import annotations

import pytest

from rollforward.streams.model.slots import SLOTS
from rollforward.streams.storage.dedup import MAX_PART, MAX_PARTS, KnownIds
from rollforward.streams.storage.remote_calls import Commit, Key, StoredRow
from rollforward.streams.storage.schema import IdsPart, Interval, Names

pytestmark = pytest.mark.fast

NOW_MS, HORIZON_MS = 1_000_000, 600_000
NOW_S = NOW_MS // 1000


class CountingNames(Names):
    """Names that count the keys of ids that are made."""

    made = 0

    def ids(self, computation: str, lo: int, number: int) -> Key:
        self.made += 1
        return super().ids(computation, lo, number)


def known(sizes: list[int]) -> tuple[KnownIds, Interval]:
    """Return the memory of an interval with rows of these sizes."""
    parts = tuple(IdsPart(number, NOW_S, size) for number, size in enumerate(sizes))
    ids = KnownIds(CountingNames("p"), "c", 0, HORIZON_MS)
    for part in parts:
        body = tuple(f"{part.number}-{n}" for n in range(part.size))
        ids.parts[part.id] = StoredRow(body, 1)
        ids.accepted.update(body)
    return ids, Interval(hi=SLOTS, ids=parts)


def commit_ids(ids: KnownIds, interval: Interval, accepted: list[str]) -> tuple[Commit, Interval]:
    """Add ids by a commit that passes; return the commit, and the interval after it."""
    commit = Commit()
    interval = interval._replace(ids=ids.change(interval, accepted, NOW_MS, commit))
    ids.committed(interval, commit, [2] * (len(commit.puts) + len(commit.inserts)))
    ids.expire(interval, NOW_MS)
    return commit, interval


@pytest.mark.parametrize("parts", [2, MAX_PARTS])
def test_a_commit_makes_the_keys_of_the_rows_that_it_writes(parts: int) -> None:
    ids, interval = known([MAX_PART] * (parts - 1) + [MAX_PART - 1])
    commit_ids(ids, interval, ["new"])
    assert isinstance(ids.names, CountingNames)
    assert ids.names.made == 1
    assert "new" in ids.accepted


def test_after_a_commit_the_memory_is_as_the_rows_are() -> None:
    """Of an appended row, a new one, and one that there is no more room for."""
    ids, interval = known([MAX_PART] * (MAX_PARTS - 1) + [MAX_PART - 1])
    commit, after = commit_ids(ids, interval, ["appended", "inserted"])

    names = Names("p")
    written = dict(commit.rows)
    assert written.keys() == {names.ids("c", 0, MAX_PARTS - 1), names.ids("c", 0, MAX_PARTS)}
    assert commit.deletes == [(names.ids("c", 0, 0), None)]
    assert ids.parts.keys() == {part.id for part in after.ids}
    for part in after.ids[-2:]:
        assert ids.parts[part.id] == StoredRow(written[names.ids("c", 0, part.number)], 2)
    assert {"appended", "inserted", "1-0"} <= ids.accepted
    assert "0-0" not in ids.accepted
