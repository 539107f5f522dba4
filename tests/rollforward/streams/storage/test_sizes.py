"""Rows and commits that are too large: they are cut, and a single record becomes a dead letter.

The simulator's store refuses a row, or a commit, that the services would refuse.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar

import pytest

from rollforward.datastore.batched import MAX_COMMIT_BYTES
from rollforward.streams import (
    Computation,
    Context,
    Pipeline,
    Pulled,
    PullSource,
    PushedRecord,
    PushSource,
    Record,
)
from rollforward.streams.exchange.ingest import IngestRequest, inbound_record, ingest
from rollforward.streams.exchange.outgoing import MAX_CHUNK_BYTES
from rollforward.streams.exchange.pulling import pull
from rollforward.streams.model import state
from rollforward.streams.model.errors import BadRecordError, PartlyAcceptedError
from rollforward.streams.model.records import MAX_VALUE_BYTES
from rollforward.streams.model.slots import slot_of
from rollforward.streams.scaling.resharding import split
from rollforward.streams.storage import state_store
from rollforward.streams.storage.remote_calls import (
    Commit,
    FullError,
    OutcomeUnknownError,
    TooLargeError,
)
from rollforward.streams.storage.schema import CHUNK, DEAD, INTERVAL, SLAB, Interval, Slab
from rollforward.streams.storage.serde import (
    MAX_COMMIT_ROWS,
    MAX_ROW_BYTES,
    check_sizes,
    dump,
)
from rollforward.streams.storage.state_cache import size_of
from tests.infra.world import Services
from tests.rollforward.streams.harness import stream_world
from tests.rollforward.streams.simulator.driver import Came, Desk

EMOJI = "\U0001f600"


def key_of(value: Any) -> Any:
    return value["k"]


class Last(Computation):
    """Keeps the last record of each key."""

    inputs: ClassVar = {"in": key_of, "log": key_of}

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state["last"] = record.value
        ctx.state.counter("seen").add(1)
        if ctx.late:
            ctx.state.counter("late").add(1)


def readers(count: int) -> list[Computation]:
    computations: list[Computation] = []
    for n in range(count):
        computations.append(Last())
        computations[-1].name = f"last-{n}"
    return computations


def desk_of(*computations: Any, **options: Any) -> Desk:
    sources = options.pop("sources", [PushSource("in")])
    return Desk(Pipeline("p", *computations, sources=sources, intervals=1))


def largest(desk: Desk, kind: str) -> int:
    rows = desk.simulation.store.rows.items()
    return max(len(dump(kind, row.body)) for key, row in rows if key.kind == kind)


def commits(desk: Desk) -> list[Commit]:
    """Return a list to which all further commits are added."""
    noted, judge = list[Commit](), desk.simulation.store.on_commit

    def note(commit: Commit, replaced: Any) -> None:
        noted.append(commit)
        judge(commit, replaced)

    desk.simulation.store.on_commit = note
    return noted


# What an interval writes


def test_a_slab_is_cut_until_all_of_its_parts_are_small() -> None:
    """G8: one commit of 2.9 MB; in two parts each would be larger than a row may be."""
    desk = desk_of(Last)
    for part in range(7):
        keys = [f"k{n}" for n in range(part * 100, part * 100 + 100)]
        desk.push(*(Came(key, key, 1) for key in keys), text="x" * 3_600)
    done = commits(desk)
    desk.run()

    assert max(len(commit.inserts) for commit in done) > 30  # By one commit.
    rows = desk.simulation.store.rows
    slabs = [row.body for key, row in rows.items() if key.kind == SLAB]
    for body in slabs:
        assert size_of(body) <= state_store.MAX_SLAB_BYTES or len(set(map(slot_of, body.keys))) == 1
    assert sum(len(body.keys) for body in slabs) == 700
    assert all(desk.state("last", f"k{n}")["seen"] == 1 for n in range(0, 700, 50))


class Reminders(Computation):
    """Sets a hundred timers for each record."""

    inputs: ClassVar = {"in": key_of}
    max_attempts = 1

    def record(self, ctx: Context, record: Record) -> None:
        for n in range(100):
            ctx.set_timer(f"{record.value['id']}:{n}", record.timestamp_ms + n)


def test_a_slab_of_one_slot_has_its_states_in_rows_of_their_own_once_it_is_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """G8: it cannot be cut, and 17 million keys of 4 KB fill all slots."""
    monkeypatch.setattr(state_store, "slot_of", lambda key: 0)
    desk, keys = desk_of(Last), [f"k{n}" for n in range(400)]

    for start in range(0, len(keys), 50):
        part = keys[start : start + 50]
        desk.push(*[Came(f"r-{key}", key, 1_000) for key in part], text="x" * 3_500)
        desk.run()
    desk.push(*[Came(f"again-{key}", key, 2_000) for key in keys], text="short")
    desk.run()

    assert desk.rows(DEAD) == []
    assert largest(desk, SLAB) < MAX_ROW_BYTES / 2
    assert {desk.state("last", key)["seen"] for key in keys} == {2}


def test_a_key_with_more_timers_than_a_row_can_hold_refuses_further_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """G8, G7: that record is a dead letter; other keys and existing timers continue."""
    monkeypatch.setattr(state, "MAX_TIMERS_BYTES", 50_000)
    desk = desk_of(Reminders)
    for n in range(12):
        desk.push(Came(f"r{n}", "a", 1_000), id=f"{n:06}", watermark=0)
    desk.push(Came("b", "b", 1_000), id="b", watermark=0)
    desk.run()

    assert 0 < len(desk.rows(DEAD)) < 12
    assert largest(desk, SLAB) < 100_000
    alive = 13 - len(desk.rows(DEAD))
    assert desk.interval("reminders").timers == 100 * alive

    desk.push(watermark=10_000)
    desk.run()
    assert desk.interval("reminders").fired == 100 * alive


def test_an_interval_of_many_slabs_has_larger_ones() -> None:
    """G8: its own row has room for what gigabytes of states need."""
    assert state_store.max_slab_bytes(1) == state_store.MAX_SLAB_BYTES
    assert state_store.max_slab_bytes(10_000) > 5 * state_store.MAX_SLAB_BYTES
    at = 1_767_225_600_000
    interval = Interval(2**16, slabs=tuple(Slab(lo, at, at, at, 9) for lo in range(12_000)))
    assert len(dump(INTERVAL, interval)) < MAX_ROW_BYTES


def test_an_interval_that_is_full_says_so_and_buries_nothing() -> None:
    desk = desk_of(Last)
    desk.push(Came("r", "a", 1))
    desk.do(desk.worker("last"))
    name = desk.environment.names.interval("last", 0)
    row = desk.simulation.store.rows[name]
    at = 1_767_225_600_000
    slabs = tuple(Slab(lo, at, at, at, 9) for lo in range(20_000))
    desk.simulation.store.rows[name] = row._replace(body=row.body._replace(slabs=slabs))
    desk.push(Came("r2", "a", 1))

    with pytest.raises(FullError, match="the row StreamInterval p:last:0000 must have at most"):
        desk.do(desk.worker("last"))

    assert desk.rows(DEAD) == []
    assert len(desk.rows(CHUNK)) == 1


def test_a_chunk_has_room_for_the_ids_and_keys_of_its_records() -> None:
    """G8: with the longest ones, of emoji."""
    desk = desk_of(Last)
    desk.push(*(Came(f"{n:03}{EMOJI * 197}", f"{n:03}{EMOJI * 100}", 1) for n in range(500)))

    assert largest(desk, CHUNK) <= 2 * MAX_CHUNK_BYTES
    desk.run()
    assert desk.interval("last").records == 500


def test_what_a_left_inbox_holds_goes_on_in_as_many_commits_as_it_takes() -> None:
    """Texts of quotes take twice as much in a row: eight chunks are more than a commit."""
    desk = desk_of(Last)
    text = json.dumps([{"a": "", "b": "x", "t": 1}] * 50)
    for part in range(9):
        ids = [f"{part}.{n}" for n in range(100)]
        desk.push(*(Came(id_, id_, 1) for id_ in ids), text=text)
    desk.do(split(desk.environment, "last", 2**15))

    desk.run()

    assert desk.status().computations["last"].records == 900


def test_what_a_left_inbox_holds_goes_on_although_commits_take_little() -> None:
    """G8, G10: a worker tries fewer chunks each time, until a commit takes them."""
    desk = desk_of(Last)
    for part in range(20):
        desk.push(*(Came(f"{part}.{n}", f"{part}.{n}", 1) for n in range(3)))
    desk.do(split(desk.environment, "last", 2**15))
    commit, desk.simulation.max_steps = desk.simulation.acts[Commit], 5_000

    def small(call: Commit) -> Any:
        if len(call.deletes) > 2:
            raise TooLargeError
        return commit(call)

    desk.simulation.acts[Commit] = small
    desk.run()

    assert desk.status().computations["last"].records == 60


# What sources bring


def test_a_push_whose_reply_is_lost_is_known_behind_others() -> None:
    """G6: several of them may have come in before it looks."""
    desk = desk_of(Last)
    desk.push(Came("0", "a", 1), watermark=1)
    environment = desk.environment
    steps = ingest(
        environment,
        IngestRequest("in", "", [inbound_record(environment, "in", {"k": "a"}, 1, "1")]),
    )
    desk.simulation.acts[Commit](desk.until(steps, Commit))
    for id_ in "234":
        desk.push(Came(id_, "a", 1))

    desk.finish(steps, steps.throw(OutcomeUnknownError()))

    assert desk.status().sources["in"].records == 5


def test_a_push_that_one_commit_cannot_hold_is_let_in_by_several() -> None:
    """G8, G3: on-time records stay on time, in any order within the push."""
    desk = desk_of(*readers(2))
    done = commits(desk)
    times = [5_000 if n % 2 else 90_000 for n in range(480)]
    result = desk.push(
        *(Came(f"r{n}", "a", at) for n, at in enumerate(times)), text="x" * 4_000, watermark=100_000
    )
    desk.run()

    assert len(done) > 3
    assert (result.records, result.late) == (480, 0)
    assert result.row.body.watermark == 100_000
    for name in ("last-0", "last-1"):
        counts = desk.state(name, "a")
        assert (counts["seen"], "late" in counts) == (480, False)


def test_a_record_that_no_commit_can_hold_is_refused() -> None:
    """Once for each of its readers it is more than a commit takes."""
    desk = desk_of(*readers(10))
    value = {"k": "a", "text": '"' * (MAX_VALUE_BYTES // 2 - 100)}
    request = IngestRequest("in", "", [inbound_record(desk.environment, "in", value, 1, "r")])

    with pytest.raises(BadRecordError, match="a record cannot be written: a commit must have"):
        desk.do(ingest(desk.environment, request))

    assert desk.rows(CHUNK) == []


def test_records_beside_one_that_no_commit_can_hold_are_worked_on_at_once() -> None:
    """G8: without a sweep; and who has pushed them is not told that none was accepted."""
    desk = desk_of(*readers(10))
    desk.simulation.sweeps = False
    small = [
        inbound_record(desk.environment, "in", {"k": "a", "text": ""}, n, f"r{n}") for n in range(4)
    ]
    value = {"k": "a", "text": '"' * (MAX_VALUE_BYTES // 2 - 100)}
    large = inbound_record(desk.environment, "in", value, 1, "large")

    with pytest.raises(PartlyAcceptedError, match="a record cannot be written"):
        desk.do(ingest(desk.environment, IngestRequest("in", "", [*small, large])))
    desk.run()

    assert desk.state("last-0", "a")["seen"] == 4


def pulled_desk(count: int, rows: list[Any], limits: list[int]) -> Desk:
    def read(clients: Any, position: Any, limit: int) -> Pulled:
        limits.append(limit)
        start = position or 0
        end = min(start + limit, len(rows))
        return Pulled(rows[start:end], end, 0)

    return desk_of(*readers(count), sources=[PullSource("log", read), PushSource("in")])


def test_a_pull_that_one_commit_cannot_hold_reads_less_and_remembers_that() -> None:
    """G8: 500 records of 2.4 KB, with three readers."""
    limits: list[int] = []
    desk = pulled_desk(3, [({"k": "a", "text": "x" * 2_400}, n) for n in range(1_200)], limits)
    desk.do(pull(desk.environment, "log"))
    desk.run()

    assert limits[0] == 500
    assert max(limits[2:]) < 500
    assert all(desk.state(f"last-{n}", "a")["seen"] == 1_200 for n in range(3))


def test_a_record_that_is_pulled_and_that_no_commit_can_hold_is_a_dead_letter() -> None:
    """G7: one for each of its readers; the source continues after it."""
    large = {"k": "a", "text": '"' * (MAX_VALUE_BYTES // 2 - 100)}
    rows: list[Any] = [({"k": "a"}, n) for n in range(5)]
    desk = pulled_desk(10, [*rows, (large, 5), *rows], [])
    desk.do(pull(desk.environment, "log"))
    desk.run()

    assert [desk.state(f"last-{n}", "a")["seen"] for n in range(10)] == [10] * 10
    letters = [row.body for key, row in desk.simulation.store.rows.items() if key.kind == DEAD]
    assert sorted(dead.computation for dead in letters) == sorted(f"last-{n}" for n in range(10))
    assert all("cannot be ingested: a commit must have" in dead.error for dead in letters)


# What is checked


def test_rows_and_commits_are_checked_against_what_the_services_take() -> None:
    key = Desk(Pipeline("p", Last)).environment.names.slab("last", 0)
    check_sizes([(key, b"x" * MAX_ROW_BYTES)] * (MAX_COMMIT_BYTES // MAX_ROW_BYTES))
    for rows in ([b"x" * (MAX_ROW_BYTES + 1)], [b"x" * MAX_ROW_BYTES] * 4):
        with pytest.raises(Exception, match="must have at most"):
            check_sizes([(key, row) for row in rows])
    check_sizes([(key, b"x")] * (MAX_COMMIT_ROWS - 9), deletes=9)
    with pytest.raises(TooLargeError, match="must have at most 500 rows, got 501"):
        check_sizes([(key, b"x")] * (MAX_COMMIT_ROWS - 9), deletes=10)


@pytest.mark.parametrize("services", ["firestore"], indirect=True)
def test_many_new_keys_and_long_ids_are_let_in_and_worked_on_by_the_services(
    services: Services,
) -> None:
    """G8: what one row, and one commit for two readers, could not hold."""
    pipeline = Pipeline("sizes", *readers(2), sources=[PushSource("in")], intervals=1)
    world = stream_world(services, pipeline)
    records = [
        PushedRecord(f"{n:03}{EMOJI * 197}", {"k": f"k{n}", "text": "x" * 3_600}, 1_000)
        for n in range(500)
    ]
    with world.context():
        pipeline.push(world.clients, "in", records)
    world.settle()
    with world.context():
        status = pipeline.status(world.clients)
        assert {part.records for part in status.computations.values()} == {500}
        assert pipeline.dead_letters(world.clients) == []
