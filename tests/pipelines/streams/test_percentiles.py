"""Watermarks of most records: how they are found, and who goes by them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pipelines.streams import Computation, Pipeline, PushSource
from pipelines.streams.percentiles import (
    BUCKETS,
    MAX_DELAYS,
    delay_of,
    of_inbox,
    of_source,
    with_delays,
)
from pipelines.streams.records import NEVER
from pipelines.streams.rows import SourceRow
from tests.pipelines.streams.harness import Hits, Minutes, hits, stream_world, windows
from tests.world import Services

one_emulator = pytest.mark.parametrize("services", ["firestore"], indirect=True)


class MostHits(Hits):
    name = "hits"
    percentile = 99


MOST = Pipeline(
    "most", MostHits, Minutes, intervals=1,
    sources=[PushSource("requests", processes=("fast", "slow"))],
)  # fmt: skip


@one_emulator
def test_windows_close_without_the_slowest_hundredth_which_is_in_time_downstream(
    services: Services,
) -> None:
    """G12: the watermark of all records stays exact; the straggler is counted."""
    world = stream_world(services, MOST)
    records = hits(*[(f"f{n}", "/", 1_000 + n) for n in range(200)])
    with world.context():
        MOST.push(world.clients, "requests", hits(("s1", "/", 1)), process="slow", watermark=1)
        MOST.push(world.clients, "requests", records, process="fast", watermark=1_000)
        ahead = [*hits(("f", "/", 61_000))]
        MOST.push(world.clients, "requests", ahead, process="fast", watermark=61_000)
    world.settle()
    with world.context():
        status = MOST.status(world.clients).computations["hits"]
    assert (status.watermark, status.early) == (1, 61_000)
    assert windows(world, MOST) == {"0": [["/", 201]]}

    with world.context():
        MOST.push(world.clients, "requests", hits(("s2", "/", 2)), process="slow", watermark=3)
        for process in ("fast", "slow"):
            MOST.close(world.clients, "requests", process=process)
    world.settle()
    with world.context():
        done = MOST.status(world.clients).computations
    assert windows(world, MOST) == {"0": [["/", 201]], "60000": [["/", 1]]}
    assert (done["hits"].late, done["minutes"].late) == (1, 0)


def test_a_source_is_as_far_as_most_of_its_records_and_processes() -> None:
    """Delays are kept by buckets of 1.41 times, and old ones count for less."""
    delays = with_delays((), 0, [1_000, *[1_000 + n for n in range(98)], 900])
    found = delay_of(delays, 98)
    assert found == 0
    assert 198 <= (delay_of(delays, 99.5) or 0) < 198 * 1.42
    assert delay_of((), 99) is None
    beyond = with_delays((), 10**8, [1])
    assert delay_of(beyond, 99) is None  # Who knows how late the others are?
    assert sum(with_delays((MAX_DELAYS, *[0] * (BUCKETS - 1)), 0, [1])) == MAX_DELAYS // 2

    fast = SourceRow(watermark=10, latest=1_000, records=99, delays=delays)
    slow = SourceRow(watermark=10, latest=20, records=1)
    assert of_source([fast, slow], 10, 98) == 1_000
    assert of_source([fast, slow], 10, 99.9) == 10
    assert of_source([], 10, 99) == 10


def test_the_oldest_part_of_an_inbox_is_left_out() -> None:
    def chunk(at: int, letters: int, lane: int = 0) -> str:
        return f"p:c:0000:{lane}:{at:015d}:id.0.{letters}.9"

    inbox = [chunk(5, 1), chunk(80, 98), chunk(90, 1), chunk(1, 1_000, lane=1)]
    assert of_inbox(inbox, 98) == 80
    assert of_inbox(inbox, 99.5) == 5
    assert of_inbox([chunk(1, 7, lane=1)], 99) == NEVER


@pytest.mark.parametrize("percentile", [0, 101])
def test_what_is_no_percentile_is_refused(percentile: float) -> None:
    class Wrong(Hits):
        pass

    Wrong.percentile = percentile
    with pytest.raises(TypeError, match="percentile"):
        Pipeline("wrong", Wrong)


def test_what_is_forgotten_waits_for_all_records() -> None:
    class Forgetful(Computation):
        inputs = Hits.inputs
        percentile = 99
        ttl = timedelta(hours=1)

    with pytest.raises(TypeError, match="ttl"):
        Pipeline("forgetful", Forgetful)
