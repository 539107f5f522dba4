"""Scans of inboxes by a tick: side by side, with few names, and failing as a whole."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from rollforward.streams import Computation, Context, Pipeline, PushSource, Record
from rollforward.streams.coordinator import tick
from rollforward.streams.model import limits
from rollforward.streams.model.limits import Limits
from rollforward.streams.storage.layout import RetiredInbox
from rollforward.streams.storage.remote_calls import Commit, ScanKeysMany
from rollforward.streams.storage.schema import LATE, ON_TIME, InboxRecord
from rollforward.streams.watermarks import inbox_scan
from tests.rollforward.streams.simulator.accidents import UnavailableError
from tests.rollforward.streams.simulator.driver import Came, Desk

LATE_AT = 7


class Counts(Computation):
    inputs: ClassVar = {"in": lambda value: str(value["k"])}
    outputs = ("out",)

    def record(self, ctx: Context, record: Record) -> None:
        ctx.produce("out", record.value)


class Ends(Computation):
    inputs: ClassVar = {"out": lambda value: str(value["k"])}

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.counter("seen").add(1)


def desk_of(*, intervals: int = 4, waiting_rows: int | None = 5_000) -> Desk:
    """Return a pipeline that was begun, and has nothing to do."""
    sources, most = [PushSource("in")], Limits(waiting_rows=waiting_rows)
    desk = Desk(Pipeline("looks", Counts, Ends, sources=sources, intervals=intervals, limits=most))
    desk.push(Came("first", "k", 1), watermark=100)
    desk.run()
    return desk


def put(
    desk: Desk, lo: int, *, count: int, at: int, lane: int = ON_TIME, created_in: int = 0
) -> None:
    """Put chunks into an inbox without waking its worker."""
    names = desk.environment.names
    records = (InboxRecord("k", at, "in", "", '{"k":"k"}'),)
    keys = [names.chunk("counts", lo, lane, at, f"t{n}.1.60", created_in) for n in range(count)]
    desk.do(committed(Commit(inserts=[(key, records) for key in keys])))


def committed(commit: Commit) -> Any:
    yield commit


def looked(desk: Desk) -> list[list[int]]:
    """Tick once; return how many names each look at inboxes has found, of each of its peeks."""
    counts, real = [], desk.simulation.acts[ScanKeysMany]

    def noted(call: ScanKeysMany) -> Any:
        answers = real(call)
        counts.append([len(names) for names in answers])
        return answers

    desk.simulation.acts[ScanKeysMany] = noted
    desk.do(tick(desk.environment))
    desk.simulation.acts[ScanKeysMany] = real
    return counts


def test_a_tick_looks_into_all_inboxes_by_one_call_where_it_reads_of_one_moment() -> None:
    """G3: stage by stage, of each all at once, where there are no snapshots."""
    desk = desk_of()
    put(desk, 0, count=2, at=200)
    assert looked(desk) == [[2, 0, 0, 0, 0, 0, 0, 0]]
    assert desk.head.waiting["counts"][0] == 2

    desk.simulation.has_snapshots = False
    assert looked(desk) == [[2, 0, 0, 0], [0, 0, 0, 0]]


def test_an_inbox_that_was_left_is_looked_into_before_those_that_came_later() -> None:
    """G3: its records move on to them, so without snapshots they could be in neither."""
    desk = desk_of(intervals=1)
    head, names = desk.head, desk.environment.names
    moved = head._replace(
        layout_version=3,
        created_in_by_place={"counts:0000": 3},
        retired={"counts": [list(RetiredInbox(0, 0, 3))]},
    )
    version = desk.simulation.store.rows[names.head].version
    desk.do(committed(Commit(puts=[(names.head, moved, version)])))
    put(desk, 0, count=1, at=200)
    put(desk, 0, count=3, at=200, created_in=3)

    desk.simulation.has_snapshots = False
    assert looked(desk)[:2] == [[1], [3]]


def test_late_ones_hold_the_watermark_however_many_wait_before_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """G3: no look at the first names comes to them."""
    monkeypatch.setattr(inbox_scan, "FIRST_NAMES", 5)
    desk = desk_of()
    watermark = desk.head.inputs["ends"]
    desk.push(watermark=10_000)
    put(desk, 0, count=9, at=500)
    put(desk, 0, count=1, at=LATE_AT, lane=LATE)
    counts = looked(desk)
    assert counts[0] == [5, 0, 0, 0, 0, 0, 0, 0]
    assert desk.head.inputs["counts"] == desk.head.inputs["ends"] == watermark


def test_a_tick_counts_no_more_than_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """G11: also in an inbox that has more than are read at first; the source has to wait."""
    monkeypatch.setattr(inbox_scan, "FIRST_NAMES", 5)
    desk = desk_of(waiting_rows=20)
    put(desk, 0, count=12, at=200)
    assert looked(desk) == [[5, 0, 0, 0, 0, 0, 0, 0], [0], [7]]
    assert desk.head.waiting["counts"][0] == 12
    assert desk.head.paused == {}

    put(desk, 2**14, count=40, at=200)
    counts = looked(desk)
    assert sum(map(sum, counts)) < 5 * 4 + 2 * 21
    assert desk.head.waiting["counts"][0] > 20
    assert desk.head.paused == {"in:": "counts has over 20 rows waiting"}


def test_a_tick_counts_as_much_as_may_wait_for_the_intervals_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """G11: with fewer it would never know that too much waits, and the source never paused."""
    monkeypatch.setattr(inbox_scan, "FIRST_NAMES", 5)
    monkeypatch.setattr(limits, "WAITING_ROWS", 10)
    monkeypatch.setattr(limits, "WAITING_ROWS_OF_AN_INTERVAL", 5)
    desk = desk_of(waiting_rows=None)
    put(desk, 0, count=20, at=200)
    looked(desk)
    assert (desk.head.waiting["counts"][0], desk.head.paused) == (20, {})

    put(desk, 2**14, count=9, at=200)
    looked(desk)
    assert desk.head.paused == {"in:": "counts has over 20 rows waiting"}


@pytest.mark.parametrize(
    "counts",
    [(40, 40, 40, 40), (6, 40, 6, 6), (6, 6, 6, 60), (5, 5, 5, 5), (9, 9, 9, 13), (10, 10, 10, 11)],
)
def test_full_inboxes_share_what_may_wait(
    monkeypatch: pytest.MonkeyPatch, counts: tuple[int, ...]
) -> None:
    """G11: a tick lists about as many names as may wait, and knows whether more do."""
    limit = 40
    monkeypatch.setattr(inbox_scan, "FIRST_NAMES", 5)
    desk = desk_of(waiting_rows=limit)
    for number, count in enumerate(counts):
        put(desk, number * 2**14, count=count, at=200)

    names = sum(map(sum, looked(desk)))

    waiting = desk.head.waiting["counts"][0]
    assert waiting == sum(counts) if sum(counts) <= limit else waiting > limit
    assert bool(desk.head.paused) == (sum(counts) > limit)
    assert names <= limit + 5 * len(counts)


def test_a_tick_whose_look_fails_publishes_nothing() -> None:
    """G3: no watermark follows from a partial read."""
    desk = desk_of()
    desk.push(watermark=10_000)
    put(desk, 0, count=1, at=200)
    head = desk.head

    def refused(call: ScanKeysMany) -> Any:
        raise UnavailableError

    desk.simulation.acts[ScanKeysMany] = refused
    with pytest.raises(UnavailableError):
        desk.do(tick(desk.environment))

    assert desk.head == head
