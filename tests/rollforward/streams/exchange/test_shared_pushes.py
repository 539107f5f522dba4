"""Pushes of one process to one source that share a commit."""

from __future__ import annotations

import random
import threading
from collections import Counter
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from rollforward.datastore import bodies
from rollforward.streams import Computation, Context, Pipeline, PushedRecord, PushSource, Record
from rollforward.streams.connectors.sinks import EffectSink
from rollforward.streams.entities import StreamChunk
from rollforward.streams.exchange.ingest import inbound_record, ingest, ingest_group
from rollforward.streams.exchange.ingest_attempt import IngestRequest, IngestResult
from rollforward.streams.model.errors import (
    BackpressureError,
    PartlyAcceptedError,
    UnknownStreamError,
)
from rollforward.streams.pushes import MAX_PUSHED
from rollforward.streams.storage.remote_calls import Attempt
from rollforward.streams.storage.schema import CHUNK, SOURCE
from rollforward.tasks.errors import Retry
from tests.infra.world import World
from tests.rollforward.streams.simulator.driver import Came, Desk
from tests.rollforward.streams.simulator.store import answered

KEYS = 3
PUSHERS, PUSHES = 6, 8


class Counted(Computation):
    inputs: ClassVar = {"in": lambda value: value["k"]}

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.counter("late" if ctx.late else "in time").add(1)


class Handed(Computation):
    weak = idempotent = True
    inputs: ClassVar = {"in": lambda value: value["k"]}
    outputs = ("handed",)

    def record(self, ctx: Context, record: Record) -> None:
        ctx.produce("handed", record.value)


class Behind(Counted):
    inputs: ClassVar = {"handed": lambda value: value["k"]}


PIPELINE = Pipeline("shared", Counted, sources=[PushSource("in")], intervals=2)
WEAK = Pipeline("shared-weak", Handed, Behind, sources=[PushSource("in")], intervals=1)


def request(desk: Desk, *records: Came, watermark: int | None = None) -> IngestRequest:
    inbound = [
        inbound_record(desk.environment, "in", {"k": each.key}, each.at, each.id)
        for each in records
    ]
    return IngestRequest("in", "", inbound, watermark)


def requests_of(desk: Desk, chance: random.Random) -> list[IngestRequest]:
    """Return requests whose records overlap in time, so that some are late."""
    requests = []
    for number in range(chance.randint(2, 5)):
        records = [
            Came(f"{number}.{n}", f"k{chance.randrange(KEYS)}", chance.randrange(100))
            for n in range(chance.randrange(4))
        ]
        watermark = chance.randrange(100) if chance.random() < 0.5 else None
        requests.append(request(desk, *records, watermark=watermark))
    return requests


def sent(desk: Desk) -> Counter[Any]:
    """Return the records in all inboxes, each with its lane and what it is late behind."""
    rows = desk.simulation.store.rows.items()
    chunks = [(key.name.split(":"), row.body) for key, row in rows if key.kind == CHUNK]
    return Counter(
        (computation, lo, lane, at if lane == "1" else "", record)
        for (_, computation, lo, lane, at, _), body in chunks
        for record in body
    )


def source(desk: Desk) -> Any:
    """Return the source's row without what counts its commits."""
    row = desk.simulation.store.rows[desk.environment.names.source("in", "")].body
    return row._replace(seq=0, last=(), sent=None)


def what(result: IngestResult) -> tuple[int, int, int]:
    return result.records, result.late, result.watermark


@pytest.mark.parametrize("seed", range(30))
def test_pushes_that_share_a_commit_are_as_if_one_had_followed_another(seed: int) -> None:
    """G1, G3: the watermark of one decides what of the next is late."""
    together, apart = Desk(PIPELINE), Desk(PIPELINE)
    for desk in (together, apart):
        desk.push(Came("first", "k0", 20))
    results = together.do(
        ingest_group(together.environment, requests_of(together, random.Random(seed)))
    )
    requests = requests_of(apart, random.Random(seed))
    each = [apart.do(ingest(apart.environment, request)) for request in requests]
    assert [what(result) for result in results] == [what(result) for result in each]
    assert (sent(together), source(together)) == (sent(apart), source(apart))
    assert together.rows(SOURCE) == apart.rows(SOURCE)


def test_pushes_that_cannot_share_a_commit_leave_nothing_behind() -> None:
    """G1: each then has a commit of its own, and one fails no other."""
    desk = Desk(PIPELINE)
    desk.push(Came("first", "k0", 1))
    before = sent(desk), source(desk)
    desk.simulation.store.takes = lambda commit: (
        not any(record.id == "bad" for _, body in commit.inserts for record in body)
    )
    requests = [request(desk, Came("good", "k0", 2)), request(desk, Came("bad", "k0", 3))]
    assert desk.do(ingest_group(desk.environment, requests)) is None
    assert (sent(desk), source(desk)) == before


def test_a_push_without_records_is_not_refused_with_those_of_a_paused_source() -> None:
    """Its watermark must go on."""
    desk = Desk(PIPELINE)
    desk.push(Came("first", "k0", 1))
    name = desk.environment.names.head
    head = desk.simulation.store.rows[name]
    paused = head.body._replace(paused={"in:": "a test pauses it"})
    desk.simulation.store.rows[name] = head._replace(body=paused)
    desk.wait(1)
    requests = [request(desk, watermark=9), request(desk, Came("2", "k0", 2))]
    assert desk.do(ingest_group(desk.environment, requests)) is None
    assert desk.do(ingest(desk.environment, requests[0])).watermark == 9
    with pytest.raises(BackpressureError):
        desk.do(ingest(desk.environment, requests[1]))


def test_each_push_that_shares_a_commit_counts_its_own_attempts() -> None:
    """G7: what kills the process of its source is repeated in other company."""
    desk = Desk(WEAK)
    desk.push(Came("first", "k0", 1))
    requests = [request(desk, Came(f"{n}", "k0", n)) for n in range(3)]
    requests.append(request(desk, watermark=1))  # All that have no records would be one subject.
    counted = []

    def answer(call: Any) -> Any:
        if isinstance(call, Attempt):
            counted.append(call.subject)
        return (yield from ())

    desk.do(answered(ingest_group(desk.environment, requests), answer))
    alone = len(set(counted))
    desk.do(answered(ingest_group(desk.environment, [*requests[:2], requests[3]]), answer))
    assert (alone, len(set(counted)), len(counted)) == (3, 3, 5)


def test_pushes_to_a_stream_that_nobody_reads_share_no_commit() -> None:
    """One without records is accepted all the same: it closes a source that was detached."""
    desk = Desk(PIPELINE)
    desk.push(Came("first", "k0", 1))
    requests = [request(desk, watermark=9), request(desk, Came("2", "k0", 2))]
    requests = [replace(each, stream="nowhere") for each in requests]
    assert desk.do(ingest_group(desk.environment, requests)) is None
    with pytest.raises(UnknownStreamError):
        desk.do(ingest(desk.environment, requests[1]))


# On services


def test_an_effect_that_pushes_to_its_own_source_waits_for_nobody(world: World) -> None:
    """G1: it would wait for the commit that waits for it, and act again after the time-out."""
    done = Counter[str]()

    def echo(clients: Any, record: Any) -> None:
        if not record.value.get("echo"):
            value = {"k": "k0", "echo": 1}
            loop.push(clients, "in", [PushedRecord(f"echo-{record.id}", value, 10)])
        done[record.id] += 1

    sink = EffectSink("in", echo, name="outside", weak=True)
    loop = Pipeline("loop", Counted, sources=[PushSource("in")], sinks=[sink], intervals=1)
    for number in range(3):
        loop.push(world.clients, "in", [PushedRecord(f"{number}", {"k": "k0"}, 10 + number)])
    with world.clients.context():
        names = [key.id() for key in StreamChunk.query().fetch(keys_only=True)]
    assert [name for name in names if ":outside:" in name] == []
    assert sorted(done.values()) == [1] * 6


def test_pushes_of_many_threads_are_all_accepted_by_fewer_commits(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G1: each push gets its own result, and none loses a race against another of its process."""
    clients = world.clients
    pipeline = Pipeline("shared-live", Counted, sources=[PushSource("in")], intervals=1)
    pipeline.push(clients, "in", [PushedRecord("first", {"k": "k0"}, 1)])
    commits, commit = list[Any](), bodies.commit

    def counted(*args: Any, **writes: Any) -> Any:
        commits.append(writes)
        return commit(*args, **writes)

    monkeypatch.setattr(bodies, "commit", counted)
    results, errors = list[tuple[int, int]](), list[Exception]()
    begin = threading.Barrier(PUSHERS)

    def push(number: int) -> None:
        begin.wait()
        for n in range(PUSHES):
            size = 1 + (number + n) % 3
            records = [
                PushedRecord(f"{number}.{n}.{each}", {"k": "k0"}, 10 + n) for each in range(size)
            ]
            try:
                results.append((pipeline.push(clients, "in", records).records, size))
            except (Retry, PartlyAcceptedError) as error:
                errors.append(error)

    threads = [threading.Thread(target=push, args=[number]) for number in range(PUSHERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert all(records == size for records, size in results)
    assert len(results) == PUSHERS * PUSHES
    assert len(commits) < PUSHERS * PUSHES
    pushed = sum(size for _, size in results) + 1
    assert pipeline.status(clients).sources["in"].records == pushed <= MAX_PUSHED
