"""Chunks of a bundle: enough to fill it if they are small, and few bytes at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from rollforward.streams import Computation, Context, Pipeline, PushSource, Record
from rollforward.streams.storage.remote_calls import Commit, Scan, ScanKeysMany
from rollforward.streams.storage.schema import CHUNK, LATE, ON_TIME, InboxRecord
from rollforward.streams.workers.inbox_reader import MAX_BYTES, count_fitting
from tests.rollforward.streams.simulator.driver import Came, Desk

CHUNK_BYTES = 256 * 1024


class Counts(Computation):
    inputs: ClassVar = {"in": lambda value: str(value["k"])}

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.list("seen").append(record.value["n"])


def desk_of() -> Desk:
    """Return a pipeline of one interval, that was begun and has nothing to do."""
    desk = Desk(Pipeline("intake", Counts, sources=[PushSource("in")], intervals=1))
    desk.push(Came("first", "k", 1), watermark=100, n="first")
    desk.run()
    return desk


def put(desk: Desk, count: int, *, at: int, records: int, lane: int = ON_TIME) -> None:
    """Put chunks into the inbox, each with a number of records."""
    names, inserts = desk.environment.names, []
    for chunk in range(count):
        number = [f"{lane} {at}.{chunk}.{n}" for n in range(records)]
        body = tuple(InboxRecord("k", at, "in", "", f'{{"k":"k","n":"{n}"}}') for n in number)
        id_ = f"t{chunk:04}.{records}.{60 * records}"
        inserts.append((names.chunk("counts", 0, lane, at, id_), body))
    desk.do(committed(Commit(inserts=inserts)))


def committed(commit: Commit) -> Any:
    yield commit


def played(desk: Desk) -> tuple[list[int], list[int]]:
    """Let a worker do it all; return how many chunks each commit took out, and each scan read."""
    sizes, read, acts = list[int](), list[int](), desk.simulation.acts
    commit, scan = acts[Commit], acts[Scan]

    def committing(call: Commit) -> Any:
        if chunks := sum(key.kind == CHUNK for key, _ in call.deletes):
            sizes.append(chunks)
        return commit(call)

    def scanning(call: Scan) -> Any:
        chunks = scan(call)
        read.append(len(chunks))
        return chunks

    acts.update({Commit: committing, Scan: scanning})
    desk.do(desk.worker("counts"))
    acts.update({Commit: commit, Scan: scan})
    return sizes, read


def test_a_batch_takes_as_many_small_chunks_as_fill_it() -> None:
    """G8: the first ones tell that they are small; no batch has more records than it may."""
    desk = desk_of()
    put(desk, 300, at=200, records=4)
    sizes, read = played(desk)
    assert sizes == [20, 125, 125, 30]
    assert max(read) == 125
    assert len(desk.state("counts", "k")["seen"]) == 1 + 300 * 4
    assert desk.rows(CHUNK) == []


def test_a_batch_has_a_limit_of_chunks_however_small_they_are() -> None:
    """G8: a commit takes 500 rows."""
    desk = desk_of()
    put(desk, 450, at=200, records=1)
    assert played(desk)[0] == [20, 200, 200, 30]


def test_large_chunks_behind_small_ones_are_not_read_all_at_once() -> None:
    """G8: their names tell their sizes before they are read."""
    desk = desk_of()
    put(desk, 100, at=200, records=2)
    put(desk, 40, at=300, records=200)  # Two fill a batch.
    sizes, read = played(desk)
    assert sizes[:2] == [20, 81]
    assert max(read) == 81
    assert len(read) > 2
    assert len(desk.state("counts", "k")["seen"]) == 1 + 100 * 2 + 40 * 200


def test_who_reads_large_chunks_looks_at_no_names() -> None:
    desk, looks = desk_of(), []
    put(desk, 60, at=200, records=50)
    real = desk.simulation.acts[ScanKeysMany]
    desk.simulation.acts[ScanKeysMany] = lambda call: looks.append(call) or real(call)
    sizes, _ = played(desk)
    assert looks == []
    assert sum(sizes) == 60


@pytest.mark.parametrize("records", [1, 50])
def test_late_ones_are_taken_while_much_waits_in_time(records: int) -> None:
    """G4: they hold the watermark, and no scan would come to them."""
    desk = desk_of()
    put(desk, 230, at=200, records=records)
    put(desk, 1, at=50, records=1, lane=LATE)
    played(desk)
    seen = desk.state("counts", "k")["seen"]
    assert seen.index("1 50.0.0") < len(seen) - records * 100


@pytest.mark.parametrize(
    ("sizes", "fit"),
    [
        ([], 0),
        ([(1, 100)] * 300, 300),
        ([(500, 1_000)] * 5, 4),
        ([(2_001, 1_000)] * 5, 0),
        ([(1, CHUNK_BYTES)] * 200, MAX_BYTES // CHUNK_BYTES),
        ([(1, 60)] * 90 + [(1, CHUNK_BYTES)] * 90, 90 + MAX_BYTES // CHUNK_BYTES),
    ],
)
def test_as_many_fit_as_have_enough_records_and_not_too_many_bytes(
    sizes: Sequence[tuple[int, int]], fit: int
) -> None:
    names = [f"p:c:0000:0:1:a{n}.0.{count}.{size}" for n, (count, size) in enumerate(sizes)]
    assert count_fitting(names, 2_000) == fit
