"""Access logs: their lines, and what the pipeline counts against a plain script over the file."""

from __future__ import annotations

import datetime
import itertools
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipelines.times import DAY_MS
from pipelines.weblog.board import DAYS_KEPT, Board
from pipelines.weblog.lines import (
    MAX_LINE_BYTES,
    MAX_NAMED,
    MAX_PATH_CHARS,
    BadLineError,
    Request,
    read_line,
    read_log,
)
from pipelines.weblog.pipeline import RATE_SIZE, SHARDS, WEBLOG, shard_of
from pipelines.weblog.results import results_of
from pipelines.weblog.sample import BROKEN, BROKEN_EVERY, sample_log
from pipelines.weblog.source import DISORDER
from rollforward.streams import Pipeline, StreamTest

MINUTE = 60_000
HOUR = 60 * MINUTE
# A log elsewhere that is counted, too.
REAL_LOG = os.environ.get("WEB_ACCESS_LOG", "")

COMMON = b'192.0.2.7 - ann [17/May/2015:10:05:03 +0000] "GET /cakes?page=2 HTTP/1.1" 200 5120'


def test_a_line_is_read_in_both_formats() -> None:
    request = Request("192.0.2.7", "/cakes", 200, 5120, 1_431_857_103_000)

    assert read_line(COMMON) == request
    assert (
        read_line(COMMON + b' "https://a.example/\\"" "Mozilla/5.0 (\xe3\x83\x91)"\r\n') == request
    )
    assert read_line(COMMON.replace(b"10:05:03 +0000", b"19:05:03 +0900")) == request
    assert read_line(COMMON.replace(b"ann", b"ann lee")) == request
    assert read_line(COMMON.replace(b"5120", b"-")).bytes == 0


def test_what_is_asked_for_is_cut_and_need_not_be_a_path() -> None:
    long = read_line(COMMON.replace(b"/cakes", b"/" + "パ".encode() * 2_000))
    assert len(long.path) == MAX_PATH_CHARS

    assert read_line(COMMON.replace(b"GET /cakes?page=2 HTTP/1.1", b"-")).path == "-"
    assert read_line(COMMON.replace(b"GET /cakes?page=2", rb"GET /\"a b\"")).path == r"/\"a b\""


@pytest.mark.parametrize(
    "line",
    [
        b"hello",
        COMMON.replace(b"17/May", b"31/Feb"),
        COMMON.replace(b"17/May", b"17/Mai"),
        COMMON.replace(b"2015", b"1969"),
        COMMON.replace(b"2015", b"9999"),
        COMMON.replace(b"10:05:03", b"24:05:03"),
        COMMON.replace(b"+0000", b"+9900"),
        COMMON.replace(b"200", b"2000"),
        COMMON.replace(b'HTTP/1.1"', b"HTTP/1.1"),
        COMMON + b" " + b"x" * MAX_LINE_BYTES,
    ],
)
def test_what_is_no_line_of_a_log_is_refused(line: bytes) -> None:
    with pytest.raises(BadLineError):
        read_line(line)


def test_bad_lines_are_counted_and_the_first_are_named() -> None:
    log = read_log([COMMON, b"\n", *[b"bad\n"] * 12, COMMON])

    assert (len(log.requests), log.bad) == (2, 12)
    assert [number for number, _ in log.named] == list(range(3, 3 + MAX_NAMED))


def test_the_sample_is_the_same_each_time_and_has_everything_a_log_has() -> None:
    lines = list(sample_log())
    log = read_log(lines)

    assert lines == list(sample_log())
    assert log.bad == len(lines) // (BROKEN_EVERY + 1) >= len(BROKEN)
    assert {200, 404, 500} <= {request.status for request in log.requests}
    assert any(a.at > b.at for a, b in itertools.pairwise(log.requests))


# Against a plain script


@dataclass
class Counts:
    """What there is to count in a log: by window, each with its bounds."""

    hits: dict[tuple[str, int], int]
    visits: list[tuple[str, int, int, int]]
    rates: dict[int, tuple[int, int]]
    tops: dict[int, list[list[Any]]]


def plain_lines(lines: Iterable[bytes]) -> list[tuple[str, str, int, int]]:
    """Return visitor, path, status and time of each line, by cutting it at its blanks."""
    found = []
    for line in lines:
        cells = line.decode("utf-8", "replace").split('"')
        before, after = cells[0].split(), cells[2].split() if len(cells) > 2 else []
        if len(before) != 5 or len(after) < 2:
            continue
        try:
            at = datetime.datetime.strptime(f"{before[3]} {before[4]}", "[%d/%b/%Y:%H:%M:%S %z]")
        except ValueError:
            continue
        path = cells[1].split(" ")[1].split("?")[0][:MAX_PATH_CHARS]
        found.append((before[0], path, int(after[0]), int(at.timestamp()) * 1000))
    return found


def plain_visits(seconds: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return start, end and number of requests of each visit of one visitor."""
    visits: list[list[int]] = []
    for at in sorted(seconds):
        if not visits or at - visits[-1][-1] >= 30 * MINUTE:
            visits.append([])
        visits[-1].append(at)
    return [(visit[0], visit[-1] + 30 * MINUTE, len(visit)) for visit in visits]


def plain_counts(lines: Iterable[bytes]) -> Counts:
    """Count everything in memory, in any order."""
    requests = plain_lines(lines)
    hits = Counter((path, at // MINUTE * MINUTE) for _, path, _, at in requests)
    by_visitor, rates = defaultdict(list), defaultdict(lambda: (0, 0))
    for visitor, _, status, at in requests:
        by_visitor[visitor].append(at)
        for ago in range(5):
            start = (at // MINUTE - ago) * MINUTE
            rates[start] = (rates[start][0] + 1, rates[start][1] + (status >= 500))
    by_hour: dict[int, Counter[str]] = defaultdict(Counter)
    for _, path, _, at in requests:
        by_hour[at // HOUR * HOUR][path] += 1
    return Counts(
        hits=dict(hits),
        visits=sorted(
            (who, *visit) for who, ats in by_visitor.items() for visit in plain_visits(ats)
        ),
        rates=dict(rates),
        tops={
            hour: [list(item) for item in sorted(each.items(), key=lambda i: (-i[1], i[0]))[:10]]
            for hour, each in by_hour.items()
        },
    )


def run(requests: Sequence[Request], disorder_ms: int) -> StreamTest:
    """Run the pipeline over a log, with a watermark that follows each 50 records, and the end."""
    test, latest = StreamTest(WEBLOG), 0
    for number, request in enumerate(requests, start=1):
        test.push("requests", request.value, timestamp_ms=request.at)
        latest = max(latest, request.at)
        if number % 50 == 0:
            test.advance_watermark(latest - disorder_ms)
    test.close()
    return test


def counted(test: StreamTest) -> Counts:
    """Return what the pipeline has written; each window once."""
    hits, visits, rates, tops = (
        [output.value for output in test.read(stream)]
        for stream in ("hits-per-minute", "visits", "rates", "tops")
    )
    found = Counts(
        hits={(each["key"], each["start"]): each["value"] for each in hits},
        visits=sorted((v["key"], v["start"], v["end"], v["value"]) for v in visits),
        rates={
            each["start"]: (each["value"]["requests"], each["value"]["errors"]) for each in rates
        },
        tops={each["start"]: each["value"] for each in tops},
    )
    assert [len(found.hits), len(found.rates), len(found.tops)] == [*map(len, (hits, rates, tops))]
    return found


def test_the_pipeline_counts_the_sample_as_a_plain_script_does() -> None:
    """Hits per path and minute, visits, error rates, top paths; nothing is late or left."""
    lines = list(sample_log())
    test = run(read_log(lines).requests, DISORDER // datetime.timedelta(milliseconds=1))

    assert counted(test) == plain_counts(lines)
    assert (sum(test.late.values()), test.dead) == (0, [])
    windowed = [name for name in WEBLOG.computations if name != "board"]
    assert [test.keys(name) for name in windowed] == [[]] * 6


def test_the_board_keeps_what_a_page_shows_and_no_key_of_it_gets_everything() -> None:
    """Every request is in results, and in one bar of the chart; counts are spread over keys."""
    requests = read_log(sample_log()).requests
    test = run(requests, DISORDER // datetime.timedelta(milliseconds=1))
    board = {key: test.state("board", key) for key in test.keys("board")}
    spread = {
        kind: [state["records"] for key, state in board.items() if key.startswith(kind)]
        for kind in ("hits", "visits")
    }

    assert {kind: sum(counts) for kind, counts in spread.items()} == dict.fromkeys(
        spread, len(requests)
    )
    assert all(max(counts) < len(requests) / 2 for counts in spread.values())
    assert len(spread["visits"]) == SHARDS
    found = results_of(board, 0, 0)
    plain = plain_counts(sample_log())
    assert found.series == {
        start: counts for start, counts in sorted(plain.rates.items()) if start % (5 * MINUTE) == 0
    }
    assert sum(found.seconds.values()) == len(plain.hits) + len(plain.visits) + len(
        plain.rates
    ) + len(plain.tops)
    newest = found.newest["tops"][0]
    assert (newest["start"], newest["value"]) == max(plain.tops.items())


def test_a_day_of_the_board_is_used_again_when_it_is_old() -> None:
    """What is kept is bounded: the same day of the ring forgets what it had."""
    test = StreamTest(Pipeline("board", Board(RATE_SIZE, shard_of)))
    for day in (1, 1 + DAYS_KEPT):
        at = day * DAY_MS
        value = {"requests": day, "errors": 0}
        result = {"key": "site", "start": at, "end": at + 5 * MINUTE, "records": 8, "value": value}
        test.push("rates", result, timestamp_ms=at)
    test.close()

    [key] = test.keys("board")
    state = test.state("board", key)
    assert state["series"] == {str((1 + DAYS_KEPT) * DAY_MS): [1 + DAYS_KEPT, 0]}
    assert (state["results"], len(state["last"])) == (1, 1)


def test_each_record_is_in_a_window_or_late_when_the_watermark_goes_ahead_too_fast() -> None:
    requests = read_log(sample_log()).requests
    test = run(requests, disorder_ms=0)
    found = counted(test)

    assert test.late["hits"] > 0
    assert sum(found.hits.values()) + test.late["hits"] == len(requests)
    assert sum(visit[3] for visit in found.visits) + test.late["sessions"] == len(requests)
    assert test.dead == []


@pytest.mark.skipif(not REAL_LOG, reason="WEB_ACCESS_LOG names no log")
def test_the_pipeline_counts_a_real_log_as_a_plain_script_does() -> None:
    with Path(REAL_LOG).open("rb") as file:
        lines = list(file)
    log = read_log(lines)
    test = run(log.requests, DISORDER // datetime.timedelta(milliseconds=1))

    assert counted(test) == plain_counts(lines)
    assert (sum(test.late.values()), test.dead, log.bad) == (0, [], 0)
