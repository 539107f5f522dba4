"""The pipeline: it counts queries in buckets, compares them with a model, and raises alerts.

    queries ── counter ── model ─┬─ detector ── board
    (feeds)                      └─ history

A record of `queries` has a query and its number of requests: {"query": text, "n": number}. The
counter emits an early count when it has grown, and the complete count of a bucket when the
watermark has passed its end. The model adds its prediction, and then learns from complete counts.
The detector reports spikes at once, and dips of complete buckets. While a feed is held back, the
watermark does not advance, no bucket completes, and there is no dip; in an outage it advances.

A query that has begun is counted in each bucket, even if the count is zero, until a record
announces a gap in the measurement: {"query": text, "until": time, or null for ever}.

Source: the Zeitgeist pipeline of the MillWheel paper, 2013.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import timedelta
from typing import Any

from pipelines.zeitgeist.detector import Alert, Detector
from pipelines.zeitgeist.model import Expected, Model
from pipelines.zeitgeist.series import BUCKET_MS, DAY_MS, MAX_SPAN_MS
from rollforward.streams import FOREVER, Computation, Context, Pipeline, PushSource, Record, Timer
from rollforward.streams.model.limits import Limits

# The processes that push records; the watermark of the stream is the lowest of theirs.
FEEDS = ("tokyo", "paris", "austin")
# A feed without a push for this time is idle, and the watermark advances without it.
GIVEN_UP_AFTER = timedelta(hours=1)
# In the time of the watermark: the states of a query expire after this time without a request.
FORGOTTEN_AFTER = timedelta(days=28)
# Shown and compared part of a series: all days of the longest, and some of the next playback.
SHOWN_FOR = timedelta(milliseconds=MAX_SPAN_MS) + FORGOTTEN_AFTER
# Growth of an incomplete count before it is emitted again.
GROWTH = 1.25
# Distance above the mean below which an incomplete count cannot be a spike.
MIN_PARTIAL = 1.0
MAX_ALERTS = 50
# Maximum lead of a feed over the slowest one. It bounds the open buckets, which one state of a
# query has: two weeks of them take less than a third of the limit of a state.
MAX_AHEAD = timedelta(days=14)
# Limit of each computation: some thousand records. Feeds wait then, so that the lag is seconds.
MAX_WAITING_BYTES = 500_000

KeyOf = Callable[[Any], str]


def by_query(value: Any) -> str:
    """Return the query of a record."""
    query = value["query"]
    if not isinstance(query, str):
        raise TypeError(f"query must be a text, got {query!r:.50}")
    return query


def by_query_and_day(value: Any) -> str:
    """Return the key of a query's history of one day."""
    return f"{value['query']}|{value['start'] // DAY_MS}"


class Counter(Computation):
    """Counts of a query by bucket, early and complete."""

    inputs: Mapping[str, KeyOf] = {"queries": by_query}
    outputs = ("counts",)
    ttl = FORGOTTEN_AFTER

    def record(self, ctx: Context, record: Record) -> None:
        start = record.timestamp_ms // BUCKET_MS * BUCKET_MS
        if start + BUCKET_MS <= ctx.watermark:
            ctx.drop_late()
            return
        if "until" in record.value:
            until = record.value["until"]
            ctx.state.map("gaps").set(str(start), FOREVER if until is None else int(until))
        else:
            self._count(ctx, start, record.value["n"])
        self._wake(ctx, start)

    def _count(self, ctx: Context, start: int, n: float) -> None:
        if not (isinstance(n, int | float) and n >= 0):
            raise ValueError(f"n must be a number from 0 on, got {n!r:.50}")
        counts, written = ctx.state.map("counts"), ctx.state.map("written")
        so_far = counts.add(str(start), n)
        if so_far > GROWTH * written.get(str(start), 0):
            written.set(str(start), so_far)
            ctx.produce("counts", _count(ctx.key, start, so_far, is_complete=False))

    def timer(self, ctx: Context, timer: Timer) -> None:
        """Emit the bucket that is complete now, and set the timer for the next one."""
        start = timer.at_ms - BUCKET_MS
        del ctx.state["next"]
        until = ctx.state.map("gaps").pop(str(start))
        ctx.state.map("written").pop(str(start))
        count = ctx.state.map("counts").pop(str(start), 0)
        if until is None:
            ctx.produce("counts", _count(ctx.key, start, count, is_complete=True))
            self._wake(ctx, start + BUCKET_MS)
        elif until < FOREVER:
            self._wake(ctx, max(start + BUCKET_MS, until))

    def _wake(self, ctx: Context, start: int) -> None:
        """Set the timer for the end of a bucket, unless an earlier one is set or all is counted."""
        if ctx.is_over and not self._has_counts_from(ctx, start):
            return
        if start < ctx.state.get("next", FOREVER):
            ctx.state["next"] = start
            ctx.set_timer("end", start + BUCKET_MS)

    def _has_counts_from(self, ctx: Context, start: int) -> bool:
        stored = [*ctx.state.map("counts").items(), *ctx.state.map("gaps").items()]
        return any(int(bucket) >= start for bucket, _ in stored)


def _count(query: str, start: int, count: float, *, is_complete: bool) -> dict[str, Any]:
    return {"query": query, "start": start, "count": count, "is_complete": is_complete}


class Usual(Computation):
    """Model of each query; adds its prediction to each count."""

    name = "model"
    inputs: Mapping[str, KeyOf] = {"counts": by_query}
    outputs = ("measured",)
    ttl = FORGOTTEN_AFTER

    def record(self, ctx: Context, record: Record) -> None:
        start, count = record.value["start"], record.value["count"]
        model = Model.of(ctx.state.get("model"))
        expected = model.expected(start)
        if record.value["is_complete"]:
            model.learn(start, count)
            ctx.state["model"] = model.kept()
        elif expected is None or expected.distance(count) <= MIN_PARTIAL:
            return
        ctx.produce("measured", record.value | (asdict(expected) if expected else {}))


class Watcher(Computation):
    """Detector of each query: reports spikes and dips."""

    name = "detector"
    reads: Sequence[int] = (2,)
    inputs: Mapping[str, KeyOf] = {"measured": by_query}
    outputs = ("alerts",)
    ttl = FORGOTTEN_AFTER

    def record(self, ctx: Context, record: Record) -> None:
        measured = record.value
        if "mean" not in measured:
            return
        start, count = measured["start"], measured["count"]
        expected = Expected(measured["mean"], measured["spread"])
        detector = self.load_detector(ctx)
        if measured["is_complete"]:
            alerts = detector.complete(start, count, expected)
        else:
            alerts = detector.partial(start, record.timestamp_ms, count, expected)
        self.keep(ctx, detector)
        for alert in alerts:
            fields = asdict(replace(alert, version=self.version))
            ctx.produce("alerts", {"query": ctx.key, **fields})

    def load_detector(self, ctx: Context) -> Detector:
        return Detector.of(ctx.state.get("detector"))

    def keep(self, ctx: Context, detector: Detector) -> None:
        ctx.state["detector"] = detector.kept()

    def upgrade(self, state: dict[str, Any], version: int) -> dict[str, Any]:
        return {"detector": Detector.of_named(state.get("named")).kept()}


class NewWatcher(Watcher):
    """Version 2 of the detector: another form of state, to replace version 1 while it runs."""

    name = "detector"
    version = 2
    reads = (1,)

    def load_detector(self, ctx: Context) -> Detector:
        return Detector.of_named(ctx.state.get("named"))

    def keep(self, ctx: Context, detector: Detector) -> None:
        ctx.state["named"] = detector.named()

    def upgrade(self, state: dict[str, Any], version: int) -> dict[str, Any]:
        return {"named": Detector.of(state.get("detector")).named()}


class History(Computation):
    """Buckets of a day of a query: time of day, count, and the band of usual counts."""

    inputs: Mapping[str, KeyOf] = {"measured": by_query_and_day}
    ttl = SHOWN_FOR

    def record(self, ctx: Context, record: Record) -> None:
        measured = record.value
        if measured["is_complete"]:
            ctx.state.list("buckets").append(_point(measured))


def _point(measured: Mapping[str, Any]) -> Sequence[float | None]:
    number = measured["start"] % DAY_MS // BUCKET_MS
    if "mean" not in measured:
        return [number, measured["count"]]
    expected = Expected(measured["mean"], measured["spread"])
    return [number, measured["count"], *(round(expected.count(x), 2) for x in (-BAND, 0, BAND))]


# Half width of the band of usual counts in a chart, in spreads.
BAND = 3


class Board(Computation):
    """The last alerts of each query."""

    inputs: Mapping[str, KeyOf] = {"alerts": by_query}
    ttl = SHOWN_FOR

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.counter(record.value["kind"]).add(1)
        alerts = ctx.state.list("alerts")
        alerts.set([*alerts.get(), record.value][-MAX_ALERTS:])


ZEITGEIST = Pipeline(
    "zeitgeist",
    *(Counter, Usual, Watcher, History, Board),
    sources=[
        PushSource("queries", disorder=timedelta(0), processes=FEEDS, idle=GIVEN_UP_AFTER),
    ],
    standby=[NewWatcher],
    limits=Limits(waiting_bytes=MAX_WAITING_BYTES, max_drift=MAX_AHEAD),
)
"""The whole pipeline."""


def alert_of(value: Mapping[str, Any]) -> Alert:
    """Return an alert from its record in the board."""
    return Alert(**{name: value[name] for name in value if name != "query"})
