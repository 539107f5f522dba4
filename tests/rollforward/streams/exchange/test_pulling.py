"""Reads of a pull source that become one commit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, ClassVar

import pytest

from rollforward.streams import Computation, Context, Pipeline, Pulled, PullSource, Record
from rollforward.streams.connectors.sinks import EffectSink
from rollforward.streams.coordinator import tick
from rollforward.streams.exchange.pulling import GATHER_MS, MAX_GATHERED_BYTES, MAX_PULLED, pull
from rollforward.streams.model.errors import BadRecordError
from rollforward.streams.storage.remote_calls import Commit, CreateTasks, Fetch, Read, StoredRow
from rollforward.streams.storage.schema import SourceRow
from tests.rollforward.streams.simulator.driver import Desk

READ = 100


class Counted(Computation):
    inputs: ClassVar = {"lines": lambda line: line["k"]}

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.counter("seen").add(1)


class Lines:
    """A source that returns a fixed number of lines a read, until it has no more for now.

    Attributes:
        limits: The limit of each read.
    """

    def __init__(self, count: int, size: int = READ, padding: int = 0) -> None:
        self.count, self.size, self.text = count, size, "x" * padding
        self.limits: list[int] = []
        self.broken_at: int | None = None

    def read(self, clients: Any, position: int | None, limit: int) -> Pulled:
        begin = position or 0
        self.limits.append(limit)
        if begin == self.broken_at:
            raise OSError(f"nothing can be read at {begin}")
        end = min(begin + min(self.size, limit), self.count)
        return Pulled([({"k": "k", "text": self.text}, n) for n in range(begin, end)], end)


def pipeline_of(lines: Lines, **options: Any) -> Pipeline:
    return Pipeline("pulled", Counted, sources=[PullSource("lines", lines.read)], **options)


def source_row(desk: Desk) -> SourceRow:
    stored: StoredRow = desk.simulation.store.rows[desk.environment.names.source("lines", "")]
    row: SourceRow = stored.body
    return row


def commits(desk: Desk, on_commit: Callable[[Any], None] = lambda call: None) -> list[int]:
    """Pull; return how many records each commit of the source had."""
    sizes, acts = list[int](), desk.simulation.acts
    commit, fetch, rows = acts[Commit], acts[Fetch], desk.simulation.store.rows
    key = desk.environment.names.source("lines", "")

    def counted(call: Any) -> Any:
        count = source_row(desk).records if key in rows else 0
        versions = commit(call)
        sizes.append(source_row(desk).records - count)
        return versions

    def fetched(call: Any) -> Any:
        pulled = fetch(call)
        on_commit(call)
        return pulled

    acts[Commit], acts[Fetch] = counted, fetched
    try:
        desk.do(pull(desk.environment, "lines"))
    finally:
        acts[Commit], acts[Fetch] = commit, fetch
    return [size for size in sizes if size]


def test_a_source_that_has_more_has_twice_as_many_reads_in_its_next_commit() -> None:
    """G1: ... up to the limit of a commit, and no record is lost or doubled."""
    lines = Lines(1_650)
    desk = Desk(pipeline_of(lines))

    assert commits(desk) == [READ, 2 * READ, 4 * READ, MAX_PULLED, 450]

    desk.run()
    assert desk.state("counted", "k") == {"seen": 1_650}
    assert max(lines.limits) == MAX_PULLED
    lines.count += 250
    assert commits(desk) == [READ, 150], "who comes later begins with one read again"


def test_a_reader_may_change_its_position_in_place() -> None:
    """G1: it seemed not to have moved over a page without records, and was never read again."""

    def read(clients: Any, position: dict[str, int] | None, limit: int) -> Pulled:
        position = position or {"next": 0}
        begin, end = position["next"], min(position["next"] + READ, 3 * READ)
        position["next"] = end
        skipped = range(READ, 2 * READ)
        records = [({"k": "k"}, n) for n in range(begin, end) if n not in skipped]
        return Pulled(records, position)

    desk = Desk(Pipeline("pulled", Counted, sources=[PullSource("lines", read)]))
    desk.do(pull(desk.environment, "lines"))
    desk.run()

    assert desk.state("counted", "k") == {"seen": 2 * READ}
    assert source_row(desk).position == {"next": 3 * READ}


def test_the_watermark_of_a_last_read_without_records_counts() -> None:
    """G3: a source without `poll` ignored it, so its last window stayed open."""
    lines = Lines(3)

    def read(clients: Any, position: int | None, limit: int) -> Pulled:
        pulled = lines.read(clients, position, limit)
        return pulled if pulled.records else replace(pulled, watermark=60_000)

    desk = Desk(Pipeline("pulled", Counted, sources=[PullSource("lines", read)]))
    assert not desk.do(pull(desk.environment, "lines"))
    reads = len(lines.limits)
    desk.run()

    assert source_row(desk).watermark == desk.head.inputs["counted"] == 60_000
    assert len(lines.limits) == reads, "no task reads on: it has no poll"


@pytest.mark.parametrize("watermark", [1_790_000_000_000_000, 1.79e12, float("nan")])
def test_a_reader_whose_watermark_is_no_time_ends_no_stream(watermark: Any) -> None:
    """A watermark in microseconds is beyond FOREVER: the source waits for another reader."""
    lines, watermarks = Lines(250), [watermark]

    def read(clients: Any, position: int | None, limit: int) -> Pulled:
        pulled = lines.read(clients, position, limit)
        return replace(pulled, watermark=watermarks[0])

    desk = Desk(Pipeline("pulled", Counted, sources=[PullSource("lines", read)]))
    with pytest.raises(BadRecordError, match="whole milliseconds"):
        desk.do(pull(desk.environment, "lines"))
    watermarks[0] = 7
    assert not desk.do(pull(desk.environment, "lines"))
    desk.run()
    assert desk.state("counted", "k") == {"seen": 250}
    assert source_row(desk).watermark == 7


def test_reads_of_other_sizes_never_exceed_what_a_commit_lets_in() -> None:
    """A source may have pages of its own size: it is not asked for less than a page."""
    lines = Lines(3_000, size=190)

    assert max(commits(Desk(pipeline_of(lines)))) == 2 * 190
    assert min(lines.limits) == MAX_PULLED - 190


def test_what_is_large_is_not_gathered() -> None:
    """A commit has a limit in bytes, which reads of any size that fit alone do not come near."""
    lines = Lines(900, padding=MAX_GATHERED_BYTES // READ // 3)

    assert max(commits(Desk(pipeline_of(lines)))) == 2 * READ


def test_a_slow_read_is_not_waited_for_by_what_another_has_found() -> None:
    """After a slow read its records are committed without a second read."""
    desk = Desk(pipeline_of(Lines(500)))

    assert commits(desk, lambda call: desk.wait((GATHER_MS + 1) / 1000)) == [READ] * 5


def test_a_task_that_has_pulled_for_its_time_hands_over_to_another() -> None:
    """G1: its delivery has a deadline, and a source may never be idle."""
    lines = Lines(1_000)
    desk = Desk(pipeline_of(lines))

    assert commits(desk, lambda call: desk.wait(6)) == [READ] * 4, "run_ms is 20 seconds"
    desk.run()
    assert desk.state("counted", "k") == {"seen": 1_000}


def test_what_can_be_read_comes_in_although_what_is_behind_it_cannot() -> None:
    """G1: each attempt begins with one read, so it comes up to the place that fails."""
    lines = Lines(1_000)
    lines.broken_at = 600
    desk = Desk(pipeline_of(lines))
    for _ in range(4):
        with pytest.raises(OSError, match="nothing can be read at 600"):
            commits(desk)
    assert source_row(desk).records == 600

    lines.broken_at = None
    commits(desk)
    desk.run()
    assert desk.state("counted", "k") == {"seen": 1_000}


def test_a_record_keeps_its_name_when_another_number_of_reads_is_committed() -> None:
    """G14: a reader dies with two reads handed on to a weak sink; the next one begins with one."""
    sink = EffectSink("lines", lambda clients, record: None, weak=True)
    desk = Desk(pipeline_of(Lines(10, size=2), sinks=[sink]))
    steps = pull(desk.environment, "lines")
    desk.until(steps, Commit, of=3)  # The first one makes the rows.
    died_with = len(desk.simulation.handed)

    desk.do(pull(desk.environment, "lines"))

    assert (died_with, source_row(desk).records) == (6, 10)
    names = {record.timestamp_ms: record.id for _, record in desk.simulation.handed}
    assert len(names) == len(set(names.values())) == 10
    assert all(names[record.timestamp_ms] == record.id for _, record in desk.simulation.handed)


def test_a_poll_without_news_reads_two_rows_and_causes_no_tick() -> None:
    """G3: each one raised a tick, which reads all intervals and writes the head."""
    source = PullSource("lines", Lines(3).read, poll=timedelta(seconds=1))
    desk = Desk(Pipeline("pulled", Counted, sources=[source]))
    desk.do(pull(desk.environment, "lines"))
    for _ in range(3):
        desk.do(tick(desk.environment))
    calls, acts = list[Any](), desk.simulation.acts
    for kind in (Read, Commit, CreateTasks):
        acts[kind] = noted(acts[kind], calls)
    desk.do(pull(desk.environment, "lines"))

    assert [type(call) for call in calls] == [Read, Read, Commit, CreateTasks]
    assert [wake.target for wake in calls[-1].wakes] == [("lines", -1)]


def noted(act: Callable[[Any], Any], calls: list[Any]) -> Callable[[Any], Any]:
    def note(call: Any) -> Any:
        calls.append(call)
        return act(call)

    return note
