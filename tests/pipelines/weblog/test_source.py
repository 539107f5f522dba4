"""The source of the requests: logs that are read one after the other; and on the services."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from pipelines.times import DAY_MS
from pipelines.weblog import source
from pipelines.weblog.lines import MAX_LINE_BYTES, read_log
from pipelines.weblog.loads import MAX_LOG_BYTES, PACES, BadLogError, add_log, add_sample, check_log
from pipelines.weblog.pipeline import WEBLOG
from pipelines.weblog.progress import Dates, observe, progress
from pipelines.weblog.sample import sample_log
from pipelines.weblog.source import PACED_S, cut_lines, read_logs
from tests.infra.world import Services
from tests.rollforward.streams.harness import stream_world

LINE = b'192.0.2.7 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 5120\n'


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Logs by their ids, without a service."""
    content: dict[str, bytes] = {}

    def read(log_id: str, offset: int) -> Iterator[bytes]:
        rest = content[log_id][offset:]
        yield from (rest[start : start + 100] for start in range(0, len(rest) + 1, 100))

    monkeypatch.setattr(
        source,
        "log_at",
        lambda number: dict(enumerate({"id": each} for each in content)).get(number),
    )
    monkeypatch.setattr(source, "read_upload", read)
    return content


def read_all(limit: int, position: Any = None) -> tuple[list[tuple[Any, int]], list[int], Any]:
    """Read until there is no more; return the records, the watermarks and the position."""
    records, watermarks = [], []
    while True:
        pulled = read_logs(None, position, limit)  # type: ignore[arg-type]
        if pulled.position == position:
            return records, watermarks, position
        records += pulled.records
        watermarks += [pulled.watermark] if pulled.watermark is not None else []
        position = pulled.position


@pytest.mark.parametrize("limit", [7, 500])
def test_a_log_is_read_in_pieces_and_each_line_once(logs: dict[str, bytes], limit: int) -> None:
    logs["a"] = b"".join(sample_log())
    log = read_log(sample_log())

    records, watermarks, position = read_all(limit)

    assert [value for value, _ in records] == [request.value for request in log.requests]
    shifts = {at - request.at for (_, at), request in zip(records, log.requests, strict=True)}
    assert len(shifts) == 1
    assert shifts.pop() % DAY_MS == 0
    assert (position["bad"], position["lines"]) == (log.bad, log.bad + len(log.requests))
    assert watermarks[0] > max(at for _, at in records) + DAY_MS


@pytest.mark.parametrize("behind", [b"", b"\n", b"bad\n" * 9])
def test_the_end_of_a_log_comes_with_its_last_requests(
    logs: dict[str, bytes], behind: bytes
) -> None:
    """Also when they are as many as one read takes: a read without any would be the last one."""
    logs["a"] = LINE * 6 + behind

    first = read_logs(None, None, 3)  # type: ignore[arg-type]
    second = read_logs(None, first.position, 3)  # type: ignore[arg-type]

    assert (len(first.records), first.watermark) == (3, None)
    assert len(second.records) == 3
    assert second.watermark is not None
    assert (second.position["log"], second.position["bad"]) == (1, behind.count(b"bad"))


def test_a_log_that_is_read_later_lies_behind_the_watermark_of_the_one_before(
    logs: dict[str, bytes],
) -> None:
    """Also the same log again, and one that goes back to the day before."""
    logs["a"] = logs["b"] = LINE + LINE.replace(b"17/May", b"16/May")
    records, watermarks, position = read_all(1)
    logs["c"] = LINE
    more, _, _ = read_all(1, position)

    ats = [at for _, at in [*records, *more]]
    assert len(ats) == 5
    assert max(ats[:2]) < watermarks[0] <= min(ats[2:4])
    assert max(ats[2:4]) < watermarks[1] <= ats[4]


def test_a_line_with_a_broken_clock_is_bad_and_moves_no_watermark(logs: dict[str, bytes]) -> None:
    logs["a"] = LINE + LINE.replace(b"2015", b"2099") + LINE.replace(b"2015", b"1999") + LINE

    records, watermarks, position = read_all(500)

    assert (len(records), position["bad"]) == (2, 2)
    assert watermarks[0] < 5 * DAY_MS


def test_a_log_without_requests_is_read_over(logs: dict[str, bytes]) -> None:
    logs.update(a=b"\n", b=b"bad\n", c=LINE)

    records, watermarks, position = read_all(500)

    assert (len(records), position["log"], position["bad"]) == (1, 3, 1)
    assert all(a <= b for a, b in itertools.pairwise(watermarks))


def test_the_times_of_the_stream_lead_back_to_the_dates_of_each_log(logs: dict[str, bytes]) -> None:
    """Also of a line from the day before the first one."""
    logs["a"] = logs["b"] = LINE + LINE.replace(b"17/May", b"16/May")
    records, _, position = read_all(500)

    dates = Dates(position["dates"])
    found = [f"{dates.of(at):%F %T}" for _, at in records]
    assert found == ["2015-05-17 10:05:03", "2015-05-16 10:05:03"] * 2
    assert dates.of(0) is None


def test_a_log_that_is_watched_is_read_some_lines_at_a_time(
    logs: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    logs["a"] = LINE * 200
    given = {"id": "a", "pace": PACES["watch"]}
    monkeypatch.setattr(source, "log_at", lambda number: None if number else given)
    slept: list[float] = []
    clients: Any = SimpleNamespace(clock=SimpleNamespace(sleep=slept.append))

    sizes = []
    position = None
    while (pulled := read_logs(clients, position, 500)).position != position:
        sizes.append(len(pulled.records))
        position = pulled.position

    assert sizes == [50, 50, 50, 50]
    assert slept == [PACED_S] * 4


def test_lines_are_cut_where_they_end_and_too_long_ones_somewhere() -> None:
    content = b"one\r\n\n" + b"x" * (3 * MAX_LINE_BYTES) + b"\nlast"
    chunks = [content[start : start + 1_000] for start in range(0, len(content), 1_000)]

    lines = list(cut_lines(iter(chunks)))

    assert b"".join(lines) == content
    assert lines[:2] == [b"one\r\n", b"\n"]
    assert lines[-1] == b"last"
    assert max(map(len, lines)) <= MAX_LINE_BYTES + 1_000


@pytest.mark.parametrize(
    "content", [b"", b"\n\n", b"bad\n" * 30 + LINE, LINE + b"x" * MAX_LOG_BYTES]
)
def test_what_is_no_log_is_refused(content: bytes) -> None:
    with pytest.raises(BadLogError):
        check_log(content)


def test_a_line_that_is_too_far_ahead_to_be_read_is_not_the_end_of_a_log() -> None:
    first = LINE.replace(b"17/May/2015", b"01/Jan/1970")
    begin, end = check_log(first + LINE)
    assert begin == end
    begin, end = check_log(LINE + LINE.replace(b"17/May", b"18/May"))
    assert end == begin + DAY_MS


@pytest.mark.parametrize("services", ["datastore"], indirect=True)
def test_the_sample_is_counted_on_the_services_once_for_its_form(services: Services) -> None:
    """Records in are those that were worked on, for each reader; nothing is late, dead or left."""
    world = stream_world(services, WEBLOG)
    with world.context():
        assert add_sample(world.clients, "form-1")
        assert not add_sample(world.clients, "form-1")
    world.settle()
    with world.context():
        add_log(world.clients, "form-2", "mine", LINE)
    world.settle()

    requests = len(read_log(sample_log()).requests) + 1
    with world.context():
        status = WEBLOG.status(world.clients)
        found = observe(world.clients)
        last = progress(world.clients)
    assert status.sources["requests"].records == requests
    assert not found.is_moving
    for name in ("hits", "sessions", "errors-by-shard"):
        assert found.totals.computations[name] == replace(
            found.totals.computations[name], records=requests, late=0, dead=0
        )
    assert found.totals.in_results == {"hits": requests, "visits": requests}
    assert [(each.received, each.missing, each.in_results) for each in last.readers] == [
        (1, 0, 1)
    ] * 3
    assert last.worst.is_complete
    assert [f"{last.dates.of(start):%F %R}" for start in last.results.series] == [
        "2015-05-17 10:05"
    ]
