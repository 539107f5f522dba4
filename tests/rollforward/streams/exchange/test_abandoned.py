"""Pull sources whose task is gone: the sweep and a change of the topology begin their readers."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from rollforward.streams import Pipeline, PullSource, sweep
from rollforward.streams.coordinator import tick
from rollforward.streams.exchange.pulling import pull
from rollforward.streams.graph.environment import Environment
from rollforward.streams.graph.head import read_head
from rollforward.streams.model.limits import Limits
from rollforward.streams.storage.remote_calls import (
    Commit,
    CreateTasks,
    Read,
    Steps,
    UnworkableError,
    Wake,
)
from rollforward.streams.topology.changes import attach, detach
from tests.rollforward.streams.exchange.test_partitions import Logs, desk_of, read_all
from tests.rollforward.streams.exchange.test_pulling import (
    READ,
    Counted,
    Lines,
    pipeline_of,
    source_row,
)
from tests.rollforward.streams.simulator.driver import Desk

MINUTE_S, DAY_MINUTES = 60, 24 * 60


class CountedToo(Counted):
    """The same, attached later."""

    name = "counted-too"
    inputs = {"others": lambda line: line["k"]}  # noqa: RUF012


def dies_after_a_commit(desk: Desk, stream: str = "lines") -> None:
    """Let a reader commit its first read, and die before it creates its next task."""
    desk.do(read_head(desk.environment))
    steps = pull(desk.environment, stream)
    call = desk.until(steps, Commit)
    desk.simulation.acts[Commit](call)
    steps.close()


def swept(desk: Desk, minutes: int, *, every: int = 1) -> list[Wake]:
    """Sweep every so many minutes; return the tasks that were created, each name once."""
    created: dict[Any, Wake] = {}
    create = desk.simulation.acts[CreateTasks]
    desk.simulation.acts[CreateTasks] = lambda call: created.update(
        {wake.name: wake for wake in call.wakes if wake.target[1] < 0}
    )
    for _ in range(0, minutes, every):
        desk.wait(every * MINUTE_S)
        desk.do(sweep.wake_sources(desk.environment))
    desk.simulation.acts[CreateTasks] = create
    return [*created.values()]


def test_a_reader_whose_tasks_waited_for_hours_and_were_purged_goes_on() -> None:
    """G1: the queue stands for two hours and is purged; names of its tasks stay taken."""
    desk = Desk(pipeline_of(Lines(500)))
    dies_after_a_commit(desk)
    assert source_row(desk).records == READ

    purged = swept(desk, 120)
    assert {wake.name for wake in purged} & {wake.name for wake in swept(desk, 1)} == set()
    taken = {wake.name for wake in purged}
    later = [wake for wake in swept(desk, 240) if wake.name not in taken]
    assert later

    desk.do(pull(desk.environment, "lines"))
    assert source_row(desk).records == 500


def test_a_source_without_a_reader_is_looked_after_ever_less_often() -> None:
    """G1: a source that has no more records costs next to nothing."""
    desk = Desk(pipeline_of(Lines(READ)))
    desk.do(pull(desk.environment, "lines"))

    assert len(swept(desk, DAY_MINUTES)) <= DAY_MINUTES.bit_length()


def test_a_reader_that_raises_has_few_tasks_until_it_is_mended() -> None:
    """G1: each of them is retried for most of an hour, so one a minute would fill the queue."""
    source = PullSource("lines", Lines(500).read, poll=timedelta(seconds=1))
    desk = Desk(Pipeline("pulled", Counted, sources=[source]))
    dies_after_a_commit(desk)  # And no later task gets through.

    names = {wake.name for wake in swept(desk, 60)}
    assert len(names) == 7  # After 1, 2, 4, 8, 16, 32 and 48 minutes.
    assert [wake for wake in swept(desk, 16) if wake.name not in names]


def test_a_partition_whose_reader_raises_from_its_first_read_on_has_few_tasks() -> None:
    """G1: its row tells no time, so it gets one each quarter of an hour."""
    logs = Logs("a", "b")
    desk = desk_of(logs.source(poll=timedelta(seconds=10)))
    desk.do(read_head(desk.environment))
    read_all(desk, "a")

    unread = [wake for wake in swept(desk, 60) if wake.target == ("log/b", -1)]
    assert 4 <= len(unread) <= 5


def test_a_source_is_looked_after_however_rarely_cron_comes() -> None:
    """G1: minutes that are powers of two are none of those of a sweep every ten minutes."""
    desk = Desk(pipeline_of(Lines(500)))
    dies_after_a_commit(desk)

    assert swept(desk, 60, every=10)
    assert len(swept(desk, DAY_MINUTES, every=10)) >= 4


def test_a_stranded_record_that_cannot_be_put_back_keeps_no_source_from_its_reader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """G1: recovery fails in each sweep, until a person has looked at the record."""
    desk = Desk(pipeline_of(Lines(500)))
    dies_after_a_commit(desk)

    def recover(environment: Environment) -> Steps[int]:
        yield Read([environment.names.head])
        raise UnworkableError

    monkeypatch.setattr(sweep, "recover", recover)
    desk.simulation.sweeps = False
    desk.wait(MINUTE_S)
    with pytest.raises(UnworkableError):
        desk.do(sweep.sweep(desk.environment))
    desk.run()

    assert source_row(desk).records == 500


def test_a_source_that_was_paused_at_its_end_costs_no_more() -> None:
    """G11: it was paused after its last record, so no commit of it follows the pause."""
    desk = Desk(pipeline_of(Lines(READ), intervals=1, limits=Limits(waiting_rows=1)))
    for _ in range(2):
        desk.do(pull(desk.environment, "lines"))
        lines = desk.pipeline.source("lines").read.__self__  # type: ignore[union-attr]
        lines.count += READ
    lines.count -= READ
    desk.wait(1)
    desk.do(tick(desk.environment))
    assert desk.head.paused
    desk.run()
    assert not desk.head.paused
    assert source_row(desk).records == 2 * READ

    assert len(swept(desk, DAY_MINUTES)) <= DAY_MINUTES.bit_length()


def test_a_source_goes_on_when_its_reader_is_attached_again() -> None:
    """G15: what it has not read yet, it reads, however long nobody was there."""
    others = Lines(500)
    pipeline = Pipeline(
        "pulled", Counted, standby=[CountedToo], intervals=1,
        sources=[PullSource("lines", Lines(1).read), PullSource("others", others.read)],
    )  # fmt: skip
    desk = Desk(pipeline)
    desk.do(attach(desk.environment, "counted-too", None))
    desk.run()
    dies_after_a_commit(desk, "others")
    desk.do(detach(desk.environment, "counted-too", discard=False))
    desk.run()
    desk.wait(5 * 60 * MINUTE_S)

    desk.do(attach(desk.environment, "counted-too", None))
    desk.run()
    assert swept(desk, 2)
    desk.do(pull(desk.environment, "others"))
    desk.run()

    assert desk.state("counted-too", "k") == {"seen": 500 - READ}
