"""Progress of a run, and the accounting of each of its requests."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from models.weblog import AccessLogs, access_logs
from pipelines.times import DAY_MS
from pipelines.weblog.board import DAYS_KEPT
from pipelines.weblog.pipeline import WEBLOG
from pipelines.weblog.results import Results, results_of
from pipelines.weblog.source import Position, position_of
from rollforward.runtime import Clients

# A watermark that lags further behind the last request waits for the log's end.
MAX_LAG_MS = 3_600_000
SOURCE = "requests"


@dataclass(frozen=True)
class Counted:
    """Records of a computation: processed, dropped as late, dead, and written."""

    records: int = 0
    late: int = 0
    dead: int = 0
    written: int = 0


@dataclass(frozen=True)
class Totals:
    """Counts since the pipeline began.

    `in_results` are the requests that the results of hits and visits include.
    """

    requests: int = 0
    bad: int = 0
    computations: Mapping[str, Counted] = field(default_factory=dict)
    in_results: Mapping[str, int] = field(default_factory=dict)

    def since(self, earlier: Totals) -> Totals:
        """Return the difference to earlier totals."""
        none = Counted()
        return Totals(
            self.requests - earlier.requests,
            self.bad - earlier.bad,
            {
                name: _difference(counted, earlier.computations.get(name, none))
                for name, counted in self.computations.items()
            },
            {name: n - earlier.in_results.get(name, 0) for name, n in self.in_results.items()},
        )


def _difference(total: Counted, earlier: Counted) -> Counted:
    return Counted(*(asdict(total)[name] - count for name, count in asdict(earlier).items()))


def totals_of(stored: Any) -> Totals:
    """Return totals that were stored as JSON."""
    computations = {name: Counted(**counts) for name, counts in stored["computations"].items()}
    return Totals(stored["requests"], stored["bad"], computations, stored["in_results"])


@dataclass(frozen=True)
class Observation:
    """One observation of the pipeline: not a consistent snapshot while it is moving.

    `status` is the pipeline's status, `board` the states of the board by key.
    """

    logs: AccessLogs
    position: Position
    status: Any
    board: Mapping[str, Any]

    @property
    def is_moving(self) -> bool:
        """Whether lines wait to be read, records to be processed, or windows to end."""
        return self.position.log < self.logs.count or any(
            computation.waiting or computation.watermark < self.position.has_read
            for computation in self.status.computations.values()
        )

    @property
    def totals(self) -> Totals:
        counted = {
            name: Counted(status.records, status.late, status.dead, status.produced)
            for name, status in self.status.computations.items()
        }
        kinds = dict.fromkeys(("hits", "visits"), 0)
        for key, state in self.board.items():
            if (kind := key.partition(".")[0]) in kinds:
                kinds[kind] += state.get("records", 0)
        return Totals(self.status.sources[SOURCE].records, self.position.bad, counted, kinds)


def observe(clients: Clients) -> Observation:
    """Observe the pipeline: some reads for each interval, however long a log is.

    The logs are read first, so that the later position misses no log. The board is read last, so
    that every earlier result is in it, or still waits.
    """
    logs = access_logs()
    status = WEBLOG.status(clients)
    board = dict(WEBLOG.states(clients, "board"))
    return Observation(logs, position_of(status.sources[SOURCE].position), status, board)


@dataclass(frozen=True)
class Part:
    """A computation in a run.

    Attributes:
        counted: Its records since the run began.
        waiting: Records in its inbox (backlog).
        watermark, lag_ms: Watermark in the time of the stream; lag behind the source.
        rate: Records a second, since the run began.
        version, phase: Its running version, and the phase of that ("running": no change).
    """

    name: str
    counted: Counted
    waiting: int
    watermark: int
    lag_ms: int
    rate: float
    version: int
    phase: str


@dataclass(frozen=True)
class Reader:
    """A computation that reads the requests, and the accounting of its records.

    Attributes:
        waiting: When idle, the records in its inbox. While it moves, the received records that are
            not counted yet, which may be more than the inbox had a moment before.
        in_results: The requests that the written results include; None: the run is too long to
            keep all results.
    """

    name: str
    received: int
    counted: Counted
    waiting: int
    in_results: int | None

    @property
    def missing(self) -> int:
        """Number of requests in no window, not late, not dead, not in flight."""
        counted = self.counted
        return self.received - counted.records - counted.late - counted.dead - self.waiting

    @property
    def is_complete(self) -> bool:
        """Whether all requests are accounted for, and the written results agree."""
        return self.missing == 0 and self.in_results in (None, self.counted.records)


@dataclass(frozen=True)
class Dates:
    """Mapping from the time of the stream back to the time of the logs."""

    starts: Sequence[Sequence[int]] = ()

    def of(self, at: int) -> datetime.datetime | None:
        """Return a time in the time of its log, in UTC; None: the log is unknown."""
        earlier = [(base, begin) for base, begin in self.starts if base - DAY_MS <= at]
        if not earlier or not at:  # 0 is the watermark of nothing.
            return None
        base, begin = earlier[-1]
        return datetime.datetime.fromtimestamp((at - base + begin) / 1000, datetime.UTC)


@dataclass(frozen=True)
class Progress:
    """Progress of the last run.

    Attributes:
        started: None: no log was ever added.
        elapsed_s: Until now, or until the last result was written.
        share: Share of the bytes of its logs that is read.
        log: The current log, or the last one; None: there is none.
        begin: The beginning of the run, in the time of the stream.
    """

    started: datetime.datetime | None
    elapsed_s: float
    is_moving: bool
    totals: Totals
    share: float
    logs: Sequence[Mapping[str, Any]]
    log: Mapping[str, Any] | None
    begin: int
    latest: int
    parts: Sequence[Part]
    readers: Sequence[Reader]
    results: Results
    dates: Dates

    @property
    def worst(self) -> Reader:
        """The reader to show: an incomplete one, if there is any."""
        return next((reader for reader in self.readers if not reader.is_complete), self.readers[0])


def progress(clients: Clients) -> Progress:
    """Return the progress of the last run."""
    seen, now_ms = observe(clients), clients.clock.now().timestamp() * 1000
    run = seen.logs.run or {"log": 0, "started_ms": now_ms, "before": None, "begin": 0}
    totals_before = totals_of(run["before"]) if run["before"] else Totals()
    totals, position = seen.totals.since(totals_before), seen.position
    results = results_of(seen.board, run["begin"], run["started_ms"])
    ended_ms = now_ms if seen.is_moving else results.last_ms
    elapsed_s = max(0.0, (ended_ms - run["started_ms"]) / 1000)
    logs = seen.logs.logs[max(0, run["log"] - seen.logs.first_number) :]
    current = logs[: position.log - run["log"] + 1][-1:]
    return Progress(
        _moment(run["started_ms"]) if seen.logs.run else None,
        elapsed_s,
        seen.is_moving,
        totals,
        _share(logs, position.log - run["log"], position.offset),
        logs,
        current[0] if current else None,
        run["begin"],
        position.latest,
        _parts(seen, totals, elapsed_s),
        _readers(seen, totals, results, position.base - run["begin"]),
        results,
        Dates(position.dates),
    )


def _moment(ms: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC)


def _share(logs: Sequence[Mapping[str, Any]], number: int, offset: int) -> float:
    total = sum(log["bytes"] for log in logs)
    return (sum(log["bytes"] for log in logs[:number]) + offset) / total if total else 1.0


def _parts(seen: Observation, totals: Totals, elapsed_s: float) -> list[Part]:
    far = seen.position.latest + MAX_LAG_MS
    front = min(far, seen.status.sources[SOURCE].watermark)
    return [
        Part(
            name,
            counted := totals.computations[name],
            seen.status.computations[name].waiting,
            watermark := seen.status.computations[name].watermark,
            max(0, front - watermark),
            (counted.records + counted.late + counted.dead) / elapsed_s if elapsed_s else 0.0,
            seen.status.computations[name].version,
            seen.status.computations[name].phase,
        )
        for name in WEBLOG.graph.order
    ]


def _readers(seen: Observation, totals: Totals, results: Results, span_ms: int) -> list[Reader]:
    rated = sum(requests for requests, _ in results.series.values())
    in_results = {
        "hits": totals.in_results["hits"],
        "sessions": totals.in_results["visits"],
        "errors-by-shard": rated if span_ms < DAYS_KEPT * DAY_MS else None,
    }
    readers = [
        Reader(
            name,
            totals.requests,
            totals.computations[name],
            seen.status.computations[name].waiting,
            in_results[name],
        )
        for name, _ in WEBLOG.graph.readers[SOURCE]
    ]
    if not seen.is_moving:
        return readers
    return [replace(reader, waiting=reader.waiting + reader.missing) for reader in readers]
