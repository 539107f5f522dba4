"""The pipeline of zeitgeist: it tells what the detector tells, and no delayed feed is a dip."""

from __future__ import annotations

import pytest

from pipelines.zeitgeist.detector import SPIKE
from pipelines.zeitgeist.pipeline import FEEDS, ZEITGEIST
from pipelines.zeitgeist.quality.scores import Zeitgeist
from pipelines.zeitgeist.sample import QUERIES, made_up_count
from pipelines.zeitgeist.series import BUCKET_MS, DAY_MS, MINUTE_MS
from rollforward.streams import PushedRecord, StreamTest
from tests.infra.world import Services, World
from tests.rollforward.streams.harness import stream_world

DAY = DAY_MS // BUCKET_MS
QUERY = QUERIES[0]
NAME = QUERY.name


def counts(begin: int, end: int, times: float = 1.0) -> list[tuple[int, int]]:
    """Return buckets of the sample's first query, without its events, each with its count."""
    days = 4 * DAY_MS  # Before that nothing happens to it.
    return [
        (
            number * BUCKET_MS,
            sum(
                made_up_count(QUERY, feed, number * BUCKET_MS % days, times=times) for feed in FEEDS
            ),
        )
        for number in range(begin, end)
    ]


def push(test: StreamTest, buckets: list[tuple[int, int]], *, moves: bool = True) -> None:
    """Push counts of one feed; the watermark follows unless another feed is held back."""
    for start, count in buckets:
        test.push("queries", {"query": NAME, "n": count}, timestamp_ms=start + MINUTE_MS)
        if moves:
            test.advance_watermark(start + BUCKET_MS)


def told(test: StreamTest) -> list[tuple[str, int]]:
    """Return what was told since the last look: the kind, and the number of the bucket."""
    return [
        (output.value["kind"], output.value["start"] // BUCKET_MS) for output in test.read("alerts")
    ]


def test_a_delayed_feed_is_no_dip_and_an_outage_is_one() -> None:
    """Held back for an hour, then there; then nothing is asked for; a late record is dropped."""
    test, now = StreamTest(ZEITGEIST), 4 * DAY + 120
    push(test, counts(0, now))
    assert told(test) == []

    # Another feed still counts a little, so buckets are open and far too small.
    push(test, counts(now, now + 12, times=0.1), moves=False)
    assert told(test) == []
    assert test.watermark("counter") == now * BUCKET_MS
    push(test, counts(now, now + 12, times=0.9), moves=False)
    test.advance_watermark((now + 12) * BUCKET_MS)
    assert told(test) == []

    now += 12
    push(test, [(start, 0) for start, _ in counts(now, now + 6)])
    [(kind, bucket)] = told(test)
    assert (kind, bucket - now < 3) == ("dip", True)

    test.push("queries", {"query": NAME, "n": 10_000}, timestamp_ms=now * BUCKET_MS)
    assert (test.late["counter"], told(test), test.dead) == (1, [], [])


def test_what_is_not_asked_for_any_more_counts_zero_without_a_record() -> None:
    """In an outage the watermark goes on, and no record need come."""
    test, now = StreamTest(ZEITGEIST), 4 * DAY + 120
    push(test, counts(0, now))
    test.advance_watermark((now + 6) * BUCKET_MS)

    assert [kind for kind, _ in told(test)] == ["dip"]


def test_the_pipeline_tells_what_model_and_detector_tell() -> None:
    """With a burst in a bucket that is open, and where nothing was measured for an hour."""
    test, plain = StreamTest(ZEITGEIST), Zeitgeist()
    now = 4 * DAY + 120
    buckets = counts(0, now) + counts(now + 12, now + 40, times=1.0)
    push(test, buckets[:now])
    test.push(
        "queries", {"query": NAME, "until": (now + 12) * BUCKET_MS}, timestamp_ms=now * BUCKET_MS
    )
    push(test, buckets[now:])
    assert told(test) == []
    expected = [alert for each in buckets for alert in plain.alerts(*each)]
    assert expected == []

    start = (now + 40) * BUCKET_MS
    test.push("queries", {"query": NAME, "n": 9 * buckets[-1][1]}, timestamp_ms=start + 1)
    assert told(test) == [("spike", now + 40)]
    [history] = [key for key in test.keys("history") if key.endswith("|4")]
    numbers = [number for number, *_ in test.state("history", history)["buckets"]]
    assert numbers == [*range(120), *range(132, 160)]
    assert test.state("model", NAME)["model"] == plain.model.kept()
    detector = test.state("detector", NAME)["detector"]
    plain.detector.sides[SPIKE].told_at = start + 1
    assert detector == plain.detector.kept()


def test_the_detector_is_replaced_between_two_buckets_and_tells_the_same() -> None:
    """G15: in the middle of what it gathers, and back again; each alert says who told it."""
    now = 4 * DAY + 120
    buckets = [*counts(0, now), *((start, 0) for start, _ in counts(now, now + 3))]
    plain, test = Zeitgeist(), StreamTest(ZEITGEIST)
    expected = [(alert.kind, alert.start) for each in buckets for alert in plain.alerts(*each)]
    assert [kind for kind, _ in expected] == ["dip"]

    push(test, buckets[:now])
    test.replace("detector", 2)
    push(test, buckets[now:])
    alerts = [output.value for output in test.read("alerts")]
    assert [(each["kind"], each["start"], each["version"]) for each in alerts] == [
        (kind, start, 2) for kind, start in expected
    ]
    test.replace("detector", 1)
    push(test, counts(now + 3, now + 4))
    plain.alerts(*counts(now + 3, now + 4)[0])
    assert test.state("detector", NAME)["detector"] == plain.detector.kept()


def test_all_days_of_a_long_series_are_kept_for_its_page() -> None:
    test, later = StreamTest(ZEITGEIST), 60 * DAY
    push(test, counts(0, 1))
    test.push("queries", {"query": NAME, "until": later * BUCKET_MS}, timestamp_ms=BUCKET_MS)
    push(test, counts(later, later + 2))
    assert [key for key in test.keys("history") if key.endswith(("|0", "|60"))] == [
        f"{NAME}|0",
        f"{NAME}|60",
    ]


def test_a_query_that_has_ended_leaves_no_timer_and_bad_records_are_dead() -> None:
    test = StreamTest(ZEITGEIST)
    push(test, counts(0, 3))
    test.push("queries", {"query": NAME, "until": None}, timestamp_ms=3 * BUCKET_MS)
    test.advance_watermark(DAY_MS)
    assert test.timers("counter", NAME) == []

    for bad in ({"query": 7, "n": 1}, {"query": NAME, "n": -1}, {"query": NAME}):
        test.push("queries", bad, timestamp_ms=DAY_MS)
    assert len(test.dead) == 3
    test.close()
    assert told(test) == []


def test_the_end_of_the_queries_completes_each_bucket_that_has_counts() -> None:
    """Several buckets are open at the end; the empty ones between them are counted, too."""
    test = StreamTest(ZEITGEIST)
    push(test, [(0, 5), (BUCKET_MS, 6), (3 * BUCKET_MS, 7)], moves=False)
    test.close()

    complete = [output.value for output in test.read("counts") if output.value["is_complete"]]
    counted = [(value["start"] // BUCKET_MS, value["count"]) for value in complete]
    assert counted == [(0, 5), (1, 6), (2, 0), (3, 7)]
    assert test.timers("counter", NAME) == []


# On the services


def push_by_feed(world: World, begin: int, end: int, watermark: int, **only: float) -> None:
    """Push buckets of each feed, with its watermark; of some feeds so many times, or not at all."""
    with world.context():
        for feed in FEEDS:
            times = only.get(feed, 1.0)
            if times < 0:
                continue
            records = [
                PushedRecord(
                    f"{feed}-{number}",
                    {"query": NAME, "n": made_up_count(QUERY, feed, number * BUCKET_MS, times)},
                    number * BUCKET_MS + MINUTE_MS,
                )
                for number in range(begin, end)
            ]
            for first in range(0, len(records), 400):
                ZEITGEIST.push(world.clients, "queries", records[first : first + 400], process=feed)
            ZEITGEIST.push(world.clients, "queries", [], process=feed, watermark=watermark)
    world.settle()


def kinds(world: World) -> list[str]:
    with world.context():
        state = ZEITGEIST.state(world.clients, "board", NAME)
    return [alert["kind"] for alert in state.get("alerts", ())]


@pytest.mark.parametrize("services", ["datastore"], indirect=True)
def test_on_the_services_a_delayed_feed_is_no_dip_and_an_outage_is_one(services: Services) -> None:
    """Two of three feeds go on for an hour, and the watermark stands where the third one is."""
    world, now = stream_world(services, ZEITGEIST), 4 * DAY
    push_by_feed(world, 0, now, now * BUCKET_MS)
    push_by_feed(world, now, now + 12, (now + 12) * BUCKET_MS, tokyo=-1)

    with world.context():
        status = ZEITGEIST.status(world.clients)
    assert status.sources["queries"].watermark == now * BUCKET_MS
    assert status.computations["counter"].watermark == now * BUCKET_MS
    assert kinds(world) == []

    push_by_feed(world, now, now + 12, (now + 12) * BUCKET_MS, paris=-1, austin=-1)
    assert kinds(world) == []

    push_by_feed(world, 0, 0, (now + 18) * BUCKET_MS)
    assert kinds(world) == ["dip"]
