"""A pipeline as the console shows it: what limits its watermarks."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from operator import itemgetter
from typing import Any, ClassVar

import pytest

from rollforward.look.words import when
from rollforward.streams import (
    FOREVER,
    Computation,
    Context,
    Pipeline,
    PushedRecord,
    PushSource,
    Record,
)
from rollforward.streams.listing import pipeline_details, replay_dead_letters
from rollforward.streams.model.limits import Limits
from rollforward.streams.operators.joins import IntervalJoin
from rollforward.tasks.runs import RunRefusedError
from tests.infra.world import Services, World
from tests.rollforward.streams.harness import stream_world
from tests.rollforward.streams.model.test_holds import COUNTED, Pairs

one_emulator = pytest.mark.parametrize("services", ["firestore"], indirect=True)
SHOPS = Pipeline(
    "listed-shops", Pairs, COUNTED, intervals=2,
    sources=[PushSource("in", processes=("x", "y", "z"), disorder=timedelta(0))],
    limits=Limits(max_drift=timedelta(minutes=1)),
)  # fmt: skip


def push(world: World, process: str, at: int, *keys: str) -> None:
    records = [PushedRecord(f"{process}{key}{at}", {"k": key, "n": 1}, at) for key in keys]
    with world.context():
        SHOPS.push(world.clients, "in", records, process=process, watermark=at)
    world.settle()


def shown(world: World) -> tuple[dict[str, Any], Mapping[str, Mapping[str, Any]]]:
    """Return the facts of the pipeline, and its table by computation."""
    with world.context():
        details = pipeline_details(world.clients, SHOPS)
    return dict(details.numbers), {str(row["computation"]): row for row in details.rows}


@one_emulator
def test_a_pipeline_says_which_source_and_which_computation_limit_its_watermarks(
    services: Services,
) -> None:
    """The slowest process, idle and paused ones, and the hold of a key."""
    world = stream_world(services, SHOPS)
    nothing = shown(world)[0]
    for process, at in (("x", 5_000), ("y", 7_000), ("z", 9_000)):
        push(world, process, at, process)
    numbers, table = shown(world)

    assert nothing == {"computations": 0}
    assert numbers["slowest_source"] == "in/x"
    assert numbers["its_watermark_at"] == 5
    assert numbers["its_last_write_at"] == pytest.approx(world.clock.now().timestamp(), abs=5)
    assert {"idle_sources", "paused_sources"}.isdisjoint(numbers)
    assert numbers["silence_of_in"] == (
        "a process is left out after 0:01:00; if all are silent, the watermark stops"
    )
    assert (table["pairs"]["held_at"], table["counted"]["held_at"]) == (5, "")

    push(world, "z", 90_000, "z")
    paused = shown(world)[0]["paused_sources"]
    assert paused == "in:z: it is over 0:01:00 ahead of in:x"
    for _ in range(3):
        world.clock.sleep(40)
        push(world, "y", 8_000)
    numbers = shown(world)[0]
    assert (numbers["slowest_source"], numbers["idle_sources"]) == ("in/y", "in/x")
    assert "silent_sources" not in numbers
    world.clock.sleep(120)
    assert shown(world)[0]["silent_sources"] == "in/y"

    for process in "xyz":
        push(world, process, FOREVER)
    numbers, table = shown(world)
    assert {"slowest_source", "idle_sources"}.isdisjoint(numbers)
    assert table["pairs"]["watermark_at"] == "the end"
    assert table["pairs"]["held_at"] == ""


class First(Computation):
    """Takes nothing before it is fixed, and its dead letters are listed first."""

    inputs: ClassVar = {"in": lambda value: value["k"]}
    max_attempts = 1
    is_fixed: ClassVar = False

    def record(self, ctx: Context, record: Record) -> None:
        if not self.is_fixed:
            raise ValueError("poison")
        ctx.state.counter("seen").add(1)


class Second(First):
    """The same, behind it in the list."""


POISONED = Pipeline("listed-poison", First, Second, intervals=1, sources=[PushSource("in")])


@one_emulator
def test_dead_letters_of_a_detached_computation_hold_up_no_others(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G7: they stay, also where they fill the first pages of the list."""
    monkeypatch.setattr("rollforward.streams.listing.MAX_REPLAYED", 2)
    world = stream_world(services, POISONED)
    clients = world.clients
    with world.context():
        records = [PushedRecord(str(n), {"k": "a"}, n) for n in range(5)]
        POISONED.push(clients, "in", records)
    world.settle()
    with world.context():
        POISONED.detach(clients, "first", discard=True)
    world.settle()
    monkeypatch.setattr(First, "is_fixed", True)

    for _ in range(3):
        with world.context():
            assert replay_dead_letters(clients, POISONED, "retry") == POISONED.name
        world.settle()

    with world.context():
        assert POISONED.state(clients, "second", "a") == {"seen": 5}
        assert POISONED.state(clients, "second", "\ud800") == {}
        assert POISONED.states_of(clients, "second", ["a", "\ud800"]) == {"a": {"seen": 5}}
        assert not POISONED.replay(clients, "second:\ud800")
        assert not POISONED.discard(clients, "second:\ud800")
        assert [letter.computation for letter in POISONED.dead_letters(clients)] == ["first"] * 5
        with pytest.raises(RunRefusedError, match="first does not run any more"):
            replay_dead_letters(clients, POISONED, "retry")


@one_emulator
def test_a_hold_later_than_all_dates_is_shown(services: Services) -> None:
    """The page of a pipeline failed whose join never forgets, as soon as it had a record."""
    join = IntervalJoin(
        "listed-join", inputs={"in": itemgetter("k"), "other": itemgetter("k")}, output="pairs",
        lower=timedelta(0), upper=timedelta.max,
    )  # fmt: skip
    pipeline = Pipeline("listed-joins", join)
    world = stream_world(services, pipeline)
    with world.context():
        pipeline.push(world.clients, "in", [PushedRecord("1", {"k": "a"}, 1_000)])
    world.settle()
    with world.context():
        [row] = pipeline_details(world.clients, pipeline).rows

    assert row["timers"] == 1
    assert ">in 29" in when(row["held_at"], 0)  # type: ignore[arg-type]


class Splitter(Computation):
    weak = True
    idempotent = True
    inputs: ClassVar = {"in": itemgetter("k")}
    outputs = ("parts",)

    def record(self, ctx: Context, record: Record) -> None:
        ctx.produce("parts", record.value)


class Picky(Computation):
    inputs: ClassVar = {"parts": itemgetter("k")}
    max_attempts = 1

    def record(self, ctx: Context, record: Record) -> None:
        if "bad" in record.value:
            raise ValueError("bad")


@one_emulator
def test_the_table_counts_what_senders_ran_inline_and_names_what_died_so_far(
    services: Services,
) -> None:
    """A weak computation looked idle, and letters that were gone looked dead."""
    pipeline = Pipeline("listed-weak", Splitter, Picky, intervals=1)
    world = stream_world(services, pipeline)
    values = [{"k": "a"}, {"k": "b", "bad": 1}]
    with world.context():
        records = [PushedRecord(value["k"], value, 1_000) for value in values]  # type: ignore[arg-type]
        pipeline.push(world.clients, "in", records)
    world.settle()
    with world.context():
        [letter] = pipeline.dead_letters(world.clients)
        pipeline.discard(world.clients, letter.id)
        table = {row["computation"]: row for row in pipeline_details(world.clients, pipeline).rows}

        numbers = pipeline_details(world.clients, Pipeline("listed-weak", Splitter)).numbers

    assert numbers["missing_code"] == "picky 1"
    assert (table["splitter"]["records"], table["picky"]["records"]) == (2, 1)
    assert table["picky"]["dead_so_far"] == 1
