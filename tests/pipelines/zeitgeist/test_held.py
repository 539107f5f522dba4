"""A feed that is held back while a long series is played: the others wait for it in the end."""

from __future__ import annotations

import json

from pipelines.zeitgeist.pipeline import MAX_AHEAD, ZEITGEIST
from pipelines.zeitgeist.series import BUCKET_MS, DAY_MS
from rollforward.streams.coordinator import tick
from rollforward.streams.exchange.ingest import IngestRequest, inbound_record, ingest
from rollforward.streams.model.errors import BackpressureError
from rollforward.streams.model.state import MAX_STATE_BYTES
from tests.rollforward.streams.simulator.driver import Desk

BEGIN = 19_000 * DAY_MS
DAYS = 60
COUNT = 123_456_789.25  # Counts of any length are let in.


def push_day(desk: Desk, feed: str, day: int) -> None:
    """Push a day of one query, and look at the watermarks."""
    starts = range(BEGIN + day * DAY_MS, BEGIN + (day + 1) * DAY_MS, BUCKET_MS)
    arrivals = [
        inbound_record(desk.environment, "queries", {"query": "q", "n": COUNT}, at, f"{feed}-{at}")
        for at in starts
    ]
    request = IngestRequest("queries", feed, arrivals, starts.stop)
    desk.do(ingest(desk.environment, request))
    desk.do(tick(desk.environment))


def go_on_without_paris(desk: Desk) -> int:
    """Push the days of two feeds until they have to wait; return the first that is not pushed."""
    for day in range(1, DAYS):
        try:
            for feed in ("tokyo", "austin"):
                push_day(desk, feed, day)
        except BackpressureError:
            return day
        desk.run()
    return DAYS


def test_feeds_wait_for_one_that_is_held_before_a_state_is_full() -> None:
    """G11: a query's open buckets are one state; what it had no room for was a dead letter each."""
    desk = Desk(ZEITGEIST)
    for feed in ("tokyo", "paris", "austin"):
        push_day(desk, feed, 0)
    desk.run()

    days = go_on_without_paris(desk)

    assert MAX_AHEAD.days <= days <= MAX_AHEAD.days + 2
    assert len(json.dumps(desk.state("counter", "q"))) < MAX_STATE_BYTES / 3
    for day in range(1, days):
        push_day(desk, "paris", day)
        desk.run()
    push_day(desk, "tokyo", days)
    assert desk.rows("StreamDead") == []
