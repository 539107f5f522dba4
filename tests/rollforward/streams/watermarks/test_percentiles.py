"""Watermarks of most records: how they are found, and who goes by them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar

import pytest

from rollforward.streams import Computation, Context, Pipeline, PushSource, Record, Timer
from rollforward.streams.coordinator import tick
from rollforward.streams.exchange.delays import BUCKETS, MAX_DELAYS, delay_of, with_delays
from rollforward.streams.model.errors import TopologyError
from rollforward.streams.model.records import NEVER
from rollforward.streams.storage.schema import SourceRow
from rollforward.streams.topology.changes import detach, replace
from rollforward.streams.watermarks.cut_reader import read_cut
from rollforward.streams.watermarks.percentiles import of_inbox, of_source
from tests.infra.world import Services
from tests.rollforward.streams.harness import Hits, Minutes, hits, stream_world, windows
from tests.rollforward.streams.simulator.driver import Came, Desk

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
    assert (status.watermark, status.percentile_watermark) == (1, 61_000)
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


@pytest.mark.parametrize("delay_ms", [1, 2, 3, 50, 1_000, 10**6])
def test_a_delay_is_known_to_less_than_half_of_itself(delay_ms: int) -> None:
    """And never as less than it was: else records would be late."""
    delays = with_delays((), 10**7, [10**7 - delay_ms])

    assert delay_ms <= (delay_of(delays, 99) or 0) < delay_ms * 1.5


def test_a_source_is_as_far_as_most_of_its_records_and_processes() -> None:
    """Delays are kept by buckets of 1.41 times, and old ones count for less."""
    delays = with_delays((), 0, [1_000, *[1_000 + n for n in range(98)], 900])
    delay = delay_of(delays, 98)
    assert delay == 0
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
    def chunk(at: int, records: int, lane: int = 0) -> str:
        return f"p:c:0000:{lane}:{at:015d}:id.0.{records}.9"

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


class Fires(Computation):
    """Notes which of its timers have fired."""

    name = "fires"
    inputs: ClassVar = {"in": lambda value: value["k"]}
    percentile = 99

    def record(self, ctx: Context, record: Record) -> None:
        end = record.timestamp_ms // 1_000 * 1_000 + 1_000
        ctx.set_timer(str(end), end)

    def timer(self, ctx: Context, timer: Timer) -> None:
        ctx.state.list("fired").append(timer.at_ms)


class Exact(Fires):
    name = "fires"
    percentile = 100


class Exact2(Exact):
    name = "fires"
    version = 2
    reads = (1,)


class Neighbour(Computation):
    inputs: ClassVar = {"in": lambda value: value["k"]}


EXACT_IN_TIME = PushSource("in", disorder=timedelta(0))


def _pipeline(*computations: type[Computation], **options: Any) -> Pipeline:
    return Pipeline("p", Neighbour, *computations, sources=[EXACT_IN_TIME], intervals=1, **options)


def _begun() -> Desk:
    """Return a desk whose percentile watermark is ahead of the exact one."""
    desk = Desk(_pipeline(Fires))
    desk.simulation.max_steps = 3_000
    desk.push(Came("a", "k", 500), watermark=500)
    desk.push(Came("b", "k", 3_000), watermark=3_000)
    desk.run()
    return desk


def _deploy(desk: Desk, pipeline: Pipeline) -> None:
    desk.simulation.pipeline = desk.pipeline = pipeline
    for machine in desk.simulation.machines:
        machine.caches.clear()


def test_timers_go_by_all_records_when_a_percentile_is_taken_away() -> None:
    """G12, G4: by an edit of the same version; and the ticks come to rest."""
    desk = _begun()
    _deploy(desk, _pipeline(Exact))

    for at in (5_000, 20_000):
        desk.push(Came(f"x{at}", "k", at), watermark=at)
        desk.run()

    assert desk.state("fires", "k")["fired"] == [1_000, 4_000, 6_000]
    status = desk.status().computations["fires"]
    assert (status.watermark, status.percentile_watermark) == (20_000, None)


def test_what_was_detached_and_comes_back_knows_nothing_of_its_watermarks() -> None:
    """G12, G15: it begins as any other; a watermark of before would fire its timers too early."""
    desk = _begun()
    assert "fires" in desk.head.percentile_watermarks

    desk.do(detach(desk.environment, "fires", discard=True))
    desk.run()

    head = desk.head._replace(history=())
    assert not [field for field in head if "fires" in str(field)]


def test_a_tick_of_code_that_lacks_a_computation_moves_its_percentile_and_rests() -> None:
    """G12, G15: an older instance of a rolling deployment."""
    desk = _begun()
    older = desk.simulation.machines[1]
    older.pipeline = _pipeline()
    desk.push(Came("c", "k", 9_000), watermark=9_000)

    desk.do(desk.worker("fires"))
    desk.do(tick(desk.simulation.environment(older)))

    assert desk.head.percentile_watermarks["fires"] == 9_000
    cut = desk.do(read_cut(desk.simulation.environment(older)))
    assert not cut.has_moved


def test_a_version_with_another_percentile_is_refused_by_whatever_code() -> None:
    """G15: also if the code of the version that runs is gone."""
    desk = _begun()
    _deploy(desk, _pipeline(Exact2))

    with pytest.raises(TopologyError, match="another `percentile`"):
        desk.do(replace(desk.environment, "fires", 2))
