"""The simulation that `python -m benchmarks.scaling` runs: it repeats itself, and loses nothing."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from benchmarks.scaling.benchmark import Run, Shape, run
from benchmarks.scaling.profile import ContendedError, Latencies
from benchmarks.scaling.rows import Rows
from rollforward.streams.storage.remote_calls import ChangedError, Commit, Key, StoredRow
from rollforward.streams.storage.schema import CHUNK, INTERVAL, SOURCE, chunk_size

SMALL = Shape(stages=2, intervals=2, pushed=20, warm_s=0.0, seconds=4.0)
KEY = Key(INTERVAL, "row")


def played(workers: int, *, is_limited: bool = False) -> Run:
    return run(workers, SMALL, Latencies(is_limited=is_limited))


def facts(found: Run) -> tuple[object, ...]:
    simulation = found.load.simulation
    return found.load.records, simulation.calls, simulation.costs, found.load.lags_ms


def test_a_simulation_is_the_same_each_time() -> None:
    assert facts(played(2)) == facts(played(2))


@pytest.mark.parametrize("is_limited", [False, True])
def test_what_came_in_waits_or_was_counted_at_each_stage(is_limited: bool) -> None:
    found = played(4, is_limited=is_limited)
    rows = found.load.simulation.rows
    sources = [rows.read([Key(SOURCE, name)])[0] for name in rows.names(SOURCE)]
    ingest_without_wakeup = sum(row.body.records for row in sources if row is not None)
    assert found.load.records > 0
    waiting, worked, handed_on = counts_of(rows, 1)
    assert waiting + worked == ingest_without_wakeup
    waiting, worked, _ = counts_of(rows, 2)
    assert waiting + worked == handed_on


def counts_of(rows: Rows, stage: int) -> tuple[int, int, int]:
    """Return how many records wait for a stage, how many it has counted, and handed on."""
    first = f"scaling:stage-{stage}:"
    chunks = [name for name in rows.names(CHUNK) if name.startswith(first)]
    keys = [Key(INTERVAL, name) for name in rows.names(INTERVAL) if name.startswith(first)]
    intervals = [row.body for row in rows.read(keys) if row is not None]
    return (
        sum(chunk_size(name)[0] for name in chunks),
        sum(each.records for each in intervals),
        sum(each.produced for each in intervals),
    )


def test_more_workers_do_more_until_the_queue_lets_no_more_run() -> None:
    wide = replace(SMALL, stages=1, intervals=4)
    one, two, four = (run(n, wide, Latencies(is_limited=False)) for n in (1, 2, 4))
    assert one.load.records < two.load.records < four.load.records
    narrow = run(4, replace(wide, at_once=1), Latencies(is_limited=False))
    assert narrow.load.records < two.load.records
    assert narrow.limits()["queue"] > four.limits()["queue"]


def test_a_moment_is_as_it_was_whatever_is_written_since() -> None:
    chance, rows, history = random.Random(1), Rows(), list[dict[Key, object]]()
    now: dict[Key, StoredRow] = {}
    for step in range(300):
        key = Key(CHUNK, f"n{chance.randrange(12):02}")
        if key not in now:
            commit = Commit(inserts=[(key, step)])
        elif chance.random() < 0.5:
            commit = Commit(deletes=[(key, now[key].version)])
        else:
            commit = Commit(puts=[(key, step, now[key].version)])
        rows.commit(commit)
        now.pop(key, None)
        if not commit.deletes:
            now[key] = StoredRow(step, rows.version)
        if chance.random() < 0.2:
            history.append({**now, Key("", "at"): rows.begin_moment(len(history))})
        if history and chance.random() < 0.1:
            rows.end_moment(chance.randrange(len(history)))
        for reader, was in enumerate(history):
            if reader in rows._moments:
                at = was[Key("", "at")]
                kept = {name: row for (kind, name), row in was.items() if kind}
                assert dict(rows.scan(CHUNK, "", "z", 99, at)) == kept  # type: ignore[arg-type]
    assert dict(rows.scan(CHUNK, "", "z", 99)) == {key.name: row for key, row in now.items()}


def test_a_commit_that_expects_another_version_writes_nothing() -> None:
    rows = Rows()
    [version] = rows.commit(Commit(inserts=[(KEY, 1)]))
    rows.commit(Commit(puts=[(KEY, 2, version)]))
    with pytest.raises(ChangedError):
        rows.commit(Commit(puts=[(KEY, 3, version)], inserts=[(Key(CHUNK, "new"), 1)]))
    assert rows.read([KEY, Key(CHUNK, "new")]) == [StoredRow(2, version + 1), None]


def test_a_row_is_written_at_the_profile_s_rate() -> None:
    latencies = Latencies()
    waits = [latencies.wait_for(KEY, 0.0), latencies.wait_for(KEY, 0.0)]
    assert waits == [0.0, 1_000.0]
    with pytest.raises(ContendedError):
        latencies.wait_for(KEY, 0.0)
    assert latencies.wait_for(KEY, 1_500.0) == 500.0
    assert Latencies(is_limited=False).wait_for(KEY, 0.0) == 0.0
