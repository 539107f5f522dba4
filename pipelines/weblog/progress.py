"""How far the pipeline is with the logs of a run, and whether every request is accounted for."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from models.weblog import AccessLogs, access_logs
from pipelines.weblog.board import DAY_MS, DAYS_KEPT
from pipelines.weblog.pipeline import WEBLOG
from pipelines.weblog.results import Results, results_of
from pipelines.weblog.source import Position, position_of
from rollforward.runtime import Clients

# A watermark that is further behind the last request than this only waits for the log's end.
MAX_LAG_MS = 3_600_000
SOURCE = "requests"


@dataclass(frozen=True)
class Counted:
    """What a computation has done: records it worked on, dropped late, given up, and written."""

    records: int = 0
    late: int = 0
    dead: int = 0
    written: int = 0


@dataclass(frozen=True)
class Totals:
    """What was counted since the pipeline began.

    `in_results` are the requests that the results of hits and visits say they are of.
    """

    requests: int = 0
    bad: int = 0
    computations: Mapping[str, Counted] = field(default_factory=dict)
    in_results: Mapping[str, int] = field(default_factory=dict)

    def since(self, before: Totals) -> Totals:
        """Return what was counted after that."""
        none = Counted()
        return Totals(
            self.requests - before.requests,
            self.bad - before.bad,
            {
                name: _difference(counted, before.computations.get(name, none))
                for name, counted in self.computations.items()
            },
            {name: n - before.in_results.get(name, 0) for name, n in self.in_results.items()},
        )


def _difference(now: Counted, before: Counted) -> Counted:
    return Counted(*(asdict(now)[name] - each for name, each in asdict(before).items()))


def totals_of(stored: Any) -> Totals:
    """Return totals that were stored as JSON."""
    computations = {name: Counted(**each) for name, each in stored["computations"].items()}
    return Totals(stored["requests"], stored["bad"], computations, stored["in_results"])


@dataclass(frozen=True)
class Observation:
    """One look at the pipeline: what there is, in no moment exactly as long as it moves.

    `status` is that of the pipeline, `board` the states of the board by key.
    """

    logs: AccessLogs
    position: Position
    status: Any
    board: Mapping[str, Any]

    @property
    def is_moving(self) -> bool:
        """Whether a line waits to be read, a record to be counted, or a window to end."""
        return self.position.log < self.logs.count or any(
            each.waiting or each.watermark < self.position.has_read
            for each in self.status.computations.values()
        )

    @property
    def totals(self) -> Totals:
        counted = {
            name: Counted(each.records, each.late, each.dead, each.produced)
            for name, each in self.status.computations.items()
        }
        kinds = dict.fromkeys(("hits", "visits"), 0)
        for key, state in self.board.items():
            if (kind := key.partition(".")[0]) in kinds:
                kinds[kind] += state.get("records", 0)
        return Totals(self.status.sources[SOURCE].records, self.position.bad, counted, kinds)


def observe(clients: Clients) -> Observation:
    """Look at the pipeline: some reads for each interval, however long a log is.

    The logs first, for a later look at the position cannot miss one that was read; the board last,
    for what was written before is in it then, or waits.
    """
    logs = access_logs()
    status = WEBLOG.status(clients)
    board = dict(WEBLOG.states(clients, "board"))
    return Observation(logs, position_of(status.sources[SOURCE].position), status, board)


@dataclass(frozen=True)
class Part:
    """A computation in a run.

    Attributes:
        counted: Since the run began.
        waiting: Records in its inbox (backlog).
        watermark, lag_ms: In the time of the stream; how far it is behind what was read.
        rate: Records a second, since the run began.
        version, phase: Of its code that runs, and what becomes of it ("running": nothing).
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
    """A computation that reads the requests, and what became of each of them.

    Attributes:
        waiting: What is in its inbox, at rest. While it moves, what came and is not counted: that
            was read last, so it may be more than was in the inbox a moment before.
        in_results: The requests that the written results are of; None: the run is so long that they
            are not all kept.
    """

    name: str
    came: int
    counted: Counted
    waiting: int
    in_results: int | None

    @property
    def missing(self) -> int:
        """How many requests are in no window, not late, not dead, not in flight."""
        counted = self.counted
        return self.came - counted.records - counted.late - counted.dead - self.waiting

    @property
    def is_complete(self) -> bool:
        """Whether at rest all adds up, and what was written says the same."""
        return self.missing == 0 and self.in_results in (None, self.counted.records)


@dataclass(frozen=True)
class Dates:
    """Leads from the time of the stream back to that of the logs."""

    known: Sequence[Sequence[int]] = ()

    def of(self, at: int) -> datetime.datetime | None:
        """Return a time as the log had it, in UTC; None: it is of no log that is known."""
        found = [(base, first) for base, first in self.known if base - DAY_MS <= at]
        if not found or not at:  # 0 is the watermark of nothing.
            return None
        base, first = found[-1]
        return datetime.datetime.fromtimestamp((at - base + first) / 1000, datetime.UTC)


@dataclass(frozen=True)
class Progress:
    """A run, as it is now, or as it ended.

    Attributes:
        started: None: no log was ever given.
        elapsed_s: Until now, or until the last result was written.
        share: Of the bytes of its logs, what is read.
        log: The log that is being read, or was read last; None: there is none.
        begin: Where the times of the run begin, in the time of the stream.
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
        """The reader to show for all: one that does not add up, if there is any."""
        return next((each for each in self.readers if not each.is_complete), self.readers[0])


def progress(clients: Clients) -> Progress:
    """Return how far the last run is."""
    seen, now_ms = observe(clients), clients.clock.now().timestamp() * 1000
    run = seen.logs.run or {"log": 0, "started_ms": now_ms, "before": None, "begin": 0}
    before = totals_of(run["before"]) if run["before"] else Totals()
    totals, position = seen.totals.since(before), seen.position
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
    total = sum(each["bytes"] for each in logs)
    return (sum(each["bytes"] for each in logs[:number]) + offset) / total if total else 1.0


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
    return [replace(each, waiting=each.waiting + each.missing) for each in readers]
