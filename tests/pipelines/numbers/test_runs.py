"""Numbers: every probe is taken, whatever comes twice, and one run measures at a time."""

from __future__ import annotations

import datetime
from dataclasses import replace

import pytest
from google.cloud import ndb

from models.numbers import NumberScratch, NumbersRun, numbers_run_key
from pipelines.numbers import contention, echo, results, runs
from pipelines.numbers.probes import BY_NAME, PROBES, Probe
from pipelines.numbers.results import Finding, findings, percentile
from pipelines.numbers.runs import GIVEN_UP_AFTER_S, MAX_RUNS, RunGoesOnError
from rollforward.runtime import NoCache, naive_utc
from rollforward.testing.injection import CRASH_AFTER, Crash
from tests.infra.world import World

RUN, OTHER = "a" * 32, "b" * 32


def start(world: World, run_id: str = RUN) -> None:
    with world.context():
        runs.start(world.clients, run_id, stack="a test")


def found(world: World, run_id: str = RUN) -> dict[str, Finding]:
    with world.context():
        return {each.probe.name: each for each in findings(numbers_run_key(run_id).get())}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("doubles", [False, True])
def test_a_run_takes_every_probe(
    world: World, doubles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In background tasks, each delivered twice or not: samples of all, and of no place two."""
    # One emulator locks, and a race that is lost there costs seconds.
    monkeypatch.setattr(contention, "WRITERS", 2)
    monkeypatch.setattr(contention, "ENOUGH_S", 1.0)
    world.doubles = doubles
    start(world)
    world.settle()

    rows = found(world)
    assert all(row.samples_ms and not row.note for row in rows.values())
    assert len(rows["enqueue-to-run"].samples_ms) == echo.ECHOES - 1
    least, most = contention.WRITERS, contention.WRITERS * contention.INCREMENTS
    assert least <= len(rows["contended"].samples_ms) <= most
    assert least <= len(rows["sharded"].samples_ms) <= most
    with world.context():
        run = numbers_run_key(RUN).get()
        assert runs.is_complete(run)
        assert not runs.is_moving(world.clients, run)
        assert run.machine["stack"] == "a test"
        counted = [row.count for row in NumberScratch.query() if "sharded" in row.key.id()]
    assert sum(counted) >= len(rows["sharded"].samples_ms)
    assert 1 < len(counted) <= contention.SHARDS


def test_two_runs_do_not_measure_each_other(world: World) -> None:
    """The second is refused until the first has ended, or has been given up."""
    start(world)
    start(world)
    with pytest.raises(RunGoesOnError) as refused:
        start(world, OTHER)
    assert refused.value.run_id == RUN

    world.clock.sleep(GIVEN_UP_AFTER_S + 1)
    start(world, OTHER)
    with world.context():
        assert runs.newest().key.id() == OTHER  # type: ignore[union-attr]
        assert runs.before(runs.newest()).key.id() == RUN  # type: ignore[union-attr, arg-type]
        assert len(NumbersRun.query().fetch(keys_only=True)) == 2


@pytest.mark.parametrize("services", ["datastore"], indirect=True)
def test_a_crash_at_the_start_leaves_no_run_without_its_tasks(world: World) -> None:
    """Run and job commit together; what a dead worker did not enqueue is woken by the sweep."""
    world.plan.reset(CRASH_AFTER, next_call="Commit")
    with world.clients.context(), world.plan.watched(), pytest.raises(Crash):
        runs.start(world.clients, RUN, stack="a test")
    world.bury()
    world.plan.reset()

    def is_measuring() -> bool:
        return bool(numbers_run_key(RUN).get().results)

    world.heal(is_measuring)
    assert len(found(world)["put"].samples_ms) == 40


@pytest.mark.parametrize("services", ["datastore"], indirect=True)
def test_what_is_away_is_said_and_not_measured(world: World) -> None:
    """Without memcached its row has a reason, and no number."""
    clients = replace(world.clients, cache=NoCache())
    with world.context():
        runs.start(clients, RUN, stack="a test")
        number = list(BY_NAME).index("memcached") + 1
        with runs.measure_numbers.side_effect(clients, runs.MeasureArgs(RUN)) as take:
            take(number)
    assert found(world)["memcached"] == Finding(BY_NAME["memcached"], [], "memcached is away")


@pytest.mark.parametrize("services", ["datastore"], indirect=True)
def test_a_sample_has_a_place_that_is_filled_once(world: World) -> None:
    """A task that comes again, too late, or for a run that is gone, changes nothing."""
    start(world)
    with world.context():
        for place, sample_s in [(0, 0.001), (0, 0.5), (1, 0.002), (3, 0.5), (1, 0.5)]:
            results.append(RUN, "enqueue-to-run", sample_s, place=place, at=world.clock.now())
        results.append(OTHER, "enqueue-to-run", 0.5, place=0, at=world.clock.now())
        assert numbers_run_key(OTHER).get() is None
    assert found(world)["enqueue-to-run"].samples_ms == [1.0, 2.0]


@pytest.mark.parametrize("services", ["datastore"], indirect=True)
def test_old_runs_are_deleted_by_new_ones(world: World) -> None:
    """The last fifty stay."""
    began = naive_utc(world.clock.now()) - datetime.timedelta(days=1)
    with world.context():
        ndb.put_multi(
            NumbersRun(id=f"{i:032x}", started=began + datetime.timedelta(seconds=i), machine={})
            for i in range(MAX_RUNS + 5)
        )
    start(world)
    with world.context():
        assert len(NumbersRun.query().fetch(keys_only=True)) == MAX_RUNS
        assert numbers_run_key(f"{5:032x}").get() is None
        assert numbers_run_key(f"{6:032x}").get() is not None


def test_a_finding_is_told_beside_the_run_before_and_the_talk() -> None:
    """How many times as long as the last run's median, and as the talk's number."""
    probe = Probe("p", "P", "p", "", None, then_ms=10.0, then="10 ms (2008)")
    row = Finding(probe, [1.0, 2.0, 3.0, 40.0], before_ms=4.0)

    assert (row.p50_ms, row.p95_ms, row.change, row.times_then) == (2.0, 40.0, 0.5, 0.2)
    nothing = Finding(probe, [], before_ms=4.0)
    assert (nothing.p50_ms, nothing.change, nothing.times_then) == (None, None, None)


def test_percentiles_are_samples() -> None:
    """The smallest that so large a share does not exceed."""
    samples = [float(i) for i in range(1, 21)]
    assert [percentile(samples, share) for share in (0.0, 0.5, 0.95, 1.0)] == [1, 10, 19, 20]


def test_what_the_talk_says_is_told_with_its_year() -> None:
    """A number of then has the talk's own words beside it, and no other number has."""
    for probe in PROBES:
        assert (probe.then_ms is None) == (not probe.then)
        assert not probe.then or probe.then.endswith(("(2008)", "(2010)"))
    assert len(BY_NAME) == len(PROBES)
