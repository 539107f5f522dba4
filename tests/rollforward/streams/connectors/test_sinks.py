"""Sinks on the services: what leaves a pipeline, and what becomes of what cannot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward.datastore.transactions import transact
from rollforward.registry import Registry
from rollforward.runtime import Clients
from rollforward.streams import Computation, Pipeline, PushedRecord, StreamTest
from rollforward.streams.connectors.sinks import EffectSink, TaskSink, ViewSink
from rollforward.streams.driver import Engine
from rollforward.streams.entities import StreamChunk, StreamInterval
from rollforward.streams.model.sink import Sink
from rollforward.streams.workers.sink_worker import SinkWorker
from rollforward.streams.workers.worker import RunResult
from rollforward.testing.injection import CRASH_AFTER, KINDS, OVERLAP, REPLY_LOST
from tests.infra.faults.explorer import Explorer
from tests.infra.world import Services, World
from tests.rollforward.streams.harness import is_drained, resumed, stream_world
from tests.rollforward.streams.scenarios.sink_pipeline import (
    CALLED,
    OUTLETS,
    VISITS,
    Note,
    OutletNote,
    OutletVisit,
    calls,
    forget,
    is_idle,
    marks,
    note_outlet,
    notes,
    outlets_world,
    rows,
    visits,
)

one_emulator = pytest.mark.parametrize("services", ["firestore"], indirect=True)
LABELS = ("a", "b", "c")


@pytest.fixture
def world(services: Services) -> Iterator[World]:
    CALLED.clear()
    yield outlets_world(services)
    CALLED.clear()


class Leaving:
    """Three records, of which some come twice, leave by four sinks."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.begun: set[str] = set()

    def begin(self, tag: str) -> None:
        if tag not in self.begun:
            self.begun.add(tag)
            with self.world.plan.unwatched():
                forget()
        for labels in (LABELS[:2], LABELS[1:]):
            OUTLETS.push(self.world.clients, "visits", visits(*labels))

    def is_done(self, tag: str) -> bool:
        is_applied = rows(self.world.clients) == {"/": (3, 30)}
        return is_idle() and is_applied and len(notes()) == len(calls()) == 3

    def check(self, tag: str, fault: str) -> None:
        once = Counter(LABELS)
        assert (notes(), marks(), calls()) == (once, once, once), fault
        assert rows(self.world.clients) == {"/": (3, 30)}, fault
        computations = OUTLETS.status(self.world.clients).computations
        assert {status.records for status in computations.values()} == {3}, fault


@one_emulator
def test_each_record_leaves_once_by_each_sink_with_a_fault_at_any_call(world: World) -> None:
    """G9: tasks, items and rows exactly; effects outside at least once, with the same id.

    A second worker of a sink finds the lease, or takes it.
    """
    Explorer(world, Leaving(world)).explore([*KINDS, OVERLAP], at_most=1)


def test_each_record_leaves_once_when_the_reply_to_a_sinks_transaction_is_lost(
    world: World,
) -> None:
    """G9: the transaction that is tried again finds the records gone."""
    explorer = Explorer(world, Leaving(world))
    explorer.play()
    calls = explorer.play()
    inside, commits = False, list[int]()
    for at, call in enumerate(calls):
        if call == "Commit" and inside:
            commits.append(at)
        inside = (inside or call == "BeginTransaction") and call != "Commit"
    fired = ""
    for fault in ((commits[0], REPLY_LOST), (commits[len(commits) // 2], CRASH_AFTER)):
        explorer.play(fault)
        fired += world.plan.fired
    assert "(Commit)" in fired


def test_a_sinks_worker_that_lost_its_interval_writes_nothing(world: World) -> None:
    """G9, G5: another one has come and gone, and then the first one makes its transaction."""
    clients = world.clients
    with world.context():
        OUTLETS.push(clients, "visits", visits(*LABELS))
        engine = Engine(clients, OUTLETS)
        steps = SinkWorker(engine.environment, "notes", 0).run()
        call = next(steps)
        while getattr(call, "delivery", None) is None:
            call = steps.send(engine._handle(call))
        world.clock.sleep(31)
    world.settle()
    with world.context():
        assert notes() == Counter(LABELS)
        ndb.delete_multi(OutletNote.query().fetch(keys_only=True))
        assert engine.run(resumed(steps, call)) is RunResult.LEASED
    world.settle()
    with world.context():
        assert notes() == Counter()


@one_emulator
def test_what_a_sink_cannot_write_is_a_dead_letter_and_its_neighbours_go_on(world: World) -> None:
    """G7, G9: also when it is found out only by the transaction."""
    clients = world.clients
    with world.context():
        OUTLETS.push(clients, "visits", visits("a"))
        OUTLETS.push(clients, "visits", visits("b", path="", size="no number"))
        OUTLETS.push(clients, "visits", visits("c"))
    world.settle()
    with world.context():
        assert is_drained()
        dead = {letter.computation: letter for letter in OUTLETS.dead_letters(clients)}
        assert set(dead) == {"marks", "rows"}
        assert dead["rows"].value["label"] == "b"
        assert notes() == calls() == Counter("abc")
        assert marks() == Counter("ac")
        assert rows(clients) == {"/": (2, 20)}
        assert OUTLETS.replay(clients, dead["rows"].id)
    world.settle()
    with world.context():
        assert [letter.computation for letter in OUTLETS.dead_letters(clients)].count("rows") == 1
        assert rows(clients) == {"/": (2, 20)}


@one_emulator
def test_the_result_that_replaces_the_others_stays_in_whatever_order_they_come(
    world: World,
) -> None:
    """Windows that speak early or late save one source several times."""
    with world.context():
        for id_, size in (("1", 5), ("2", 9), ("3", 7)):
            [pushed] = visits("a", size=size)
            OUTLETS.push(world.clients, "visits", [replace(pushed, id=id_)])
    world.settle()
    with world.context():
        assert rows(world.clients) == {"/": (1, 9)}


@one_emulator
@pytest.mark.parametrize("sizes", [(9, 5, 7), (5, 9, 7), (5, 7, 9)])
def test_the_result_that_replaces_the_others_stays_in_one_transaction_too(
    world: World, sizes: Sequence[int]
) -> None:
    """A record is compared with those before it in its transaction, and not with the row alone."""
    sink = ViewSink(
        "visits",
        VISITS,
        lambda record: None,  # type: ignore[arg-type, return-value]
        replaces=lambda stored, arriving: arriving.size >= stored.size,
    )
    with world.context():
        sources = [OutletVisit(id="a", path="/", size=size) for size in sizes]
        transact(lambda: sink.write(world.clients, sources))
    world.settle()

    with world.context():
        assert rows(world.clients) == {"/": (1, 9)}


class SunkLine(ndb.Model):
    """The entity of a custom sink."""

    text = ndb.TextProperty()


class Lines(Sink):
    """Writes an entity for each record, in the transaction that takes it out."""

    max_records = 4

    def write(self, clients: Clients, values: Sequence[Any]) -> None:
        if any(record.value == "bad" for record in values):
            raise ValueError("no line")
        if any(record.value == "lost" for record in values):
            raise rpc_errors.FailedPrecondition("no matching index found")
        for record in values:
            SunkLine(id=record.id, text=record.value).put()


LINES = Pipeline("lines", sinks=[Lines("lines")])


class LaterLines(Lines):
    """Writes them in a tasklet of ndb."""

    @ndb.tasklet
    def write(self, clients: Clients, values: Sequence[Any]) -> Any:
        for record in values:
            yield SunkLine.get_by_id_async(record.id)
        super().write(clients, values)


LATER = Pipeline("later-lines", sinks=[LaterLines("lines")])


@one_emulator
def test_a_sink_of_ones_own_writes_its_entities_with_the_transaction(services: Services) -> None:
    """G9: records that fail together are retried apart; a record that fails alone is dead.

    This also holds if the service refuses it with the error of a lost race.
    """
    world = stream_world(services, LINES)
    texts = [*(f"l{n}" for n in range(9)), "bad", "lost", "last"]
    with world.context():
        for text in texts:
            LINES.push(world.clients, "lines", [PushedRecord(text, text, 1)])
    world.settle()
    with world.context():
        assert StreamChunk.query().get() is None
        assert len(StreamInterval.query().fetch(keys_only=True)) == 1  # It has no key.
        written = Counter(row.text for row in SunkLine.query().fetch())
        dead = {letter.value: letter.error for letter in LINES.dead_letters(world.clients)}
    assert written == Counter(text for text in texts if text not in dead)
    assert dead == {
        "bad": "ValueError: no line",
        "lost": "FailedPrecondition: 400 no matching index found",
    }


@one_emulator
def test_a_sink_that_writes_in_a_tasklet_has_written_or_failed_at_its_commit(
    services: Services,
) -> None:
    """G9: as a tasklet returns at its first `yield`, its later error was lost, and the record."""
    world = stream_world(services, LATER)
    with world.context():
        records = [PushedRecord(text, text, 1) for text in ("l1", "bad", "l2")]
        LATER.push(world.clients, "lines", records)
    world.settle()
    with world.context():
        assert sorted(row.text for row in SunkLine.query().fetch()) == ["l1", "l2"]
        [letter] = LATER.dead_letters(world.clients)
        assert (letter.value, letter.error) == ("bad", "ValueError: no line")


@one_emulator
def test_an_effect_that_is_a_tasklet_has_failed_if_it_raises_late(world: World) -> None:
    """G9: its task was done at the first `yield`, and did not come again."""

    @ndb.tasklet
    def effect(clients: Clients, record: Any) -> Any:
        yield SunkLine.get_by_id_async(record)
        raise ValueError("no line")

    sink = EffectSink("in", effect)
    Pipeline("late-effects", sinks=[sink])
    with world.context():
        for call in (sink.act, sink.task.work):
            with pytest.raises(ValueError, match="no line"):
                call(world.clients, "x")  # type: ignore[arg-type]


def test_a_test_without_services_sees_what_a_sink_makes() -> None:
    """As its records came, and since it was last asked."""
    pipeline = Pipeline(
        "made", sinks=[TaskSink("visits", note_outlet, lambda r: Note(r.id, r.value["label"]))]
    )
    test = StreamTest(pipeline)
    for visit in visits("a", "b"):
        test.push("visits", visit.value, visit.timestamp_ms)
    assert [note.label for note in test.sink_output("visits-sink")] == ["a", "b"]
    test.push("visits", {"no": "label"}, 1)
    with pytest.raises(KeyError):
        test.sink_output("visits-sink")
    assert test.sink_output("visits-sink") == []


def test_a_test_without_services_sees_the_entities_of_a_sink() -> None:
    """A view's sink raised ContextError, since ndb makes keys in a context alone."""
    test = StreamTest(OUTLETS)
    for visit in visits("a", "b"):
        test.push("visits", visit.value, visit.timestamp_ms)
    assert [visit.key.id() for visit in test.sink_output("rows")] == ["a", "b"]


def test_records_of_a_test_have_ids_of_their_own_in_later_calls() -> None:
    """C: by repeated ones, the code under test dropped all but the first call's as duplicates."""
    sink = EffectSink("in", lambda clients, record: None, name="effects")
    test = StreamTest(Pipeline("numbered", sinks=[sink]))
    ids = []
    for at in (1, 2):
        test.push_all("in", [("a", at), ("b", at)])
        ids += [record.id for record in test.sink_output("effects")]
    assert len({*ids}) == len(ids) == 4


def test_a_sink_belongs_to_one_pipeline_and_brings_its_tasks() -> None:
    sink = TaskSink("visits", note_outlet, lambda r: Note(r.id, ""))
    Pipeline("first-of-two", sinks=[sink])
    with pytest.raises(TypeError, match="already belongs to first-of-two"):
        Pipeline("second-of-two", sinks=[sink])
    paths = Registry(OUTLETS).tasks
    assert "/tasks/streams/outlets/calls" in paths


class LaterEffect(EffectSink):
    version = 2


@one_emulator
def test_a_sink_is_attached_replaced_and_detached(services: Services) -> None:
    """G15, G9: each record leaves by the version that runs, once; each has tasks of its own."""
    called: list[tuple[int, str]] = []
    sinks = [
        kind("visits", lambda _, record, n=n: called.append((n, record.value["label"])), name="out")
        for n, kind in ((1, EffectSink), (2, LaterEffect))
    ]
    reader = type("Reader", (Computation,), {"inputs": {"visits": lambda visit: visit["label"]}})
    pipeline = Pipeline("sinks", reader, standby=sinks, intervals=1)
    world = stream_world(services, pipeline)

    def push(label: str) -> None:
        with world.context():
            pipeline.push(world.clients, "visits", [PushedRecord(label, {"label": label}, 1)])
        world.settle()

    push("a")
    with world.context():
        pipeline.attach(world.clients, "out", version=1)
    push("b")
    with world.context():
        pipeline.replace(world.clients, "out", version=2)
    push("c")
    with world.context():
        pipeline.detach(world.clients, "out")
    world.settle()
    push("d")
    assert called == [(1, "b"), (2, "c")]
    with world.context():
        assert pipeline.topology(world.clients).parts["out"].phase == "standby"
