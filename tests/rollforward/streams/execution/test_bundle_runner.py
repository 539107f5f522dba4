"""Bundles: their records and values, the rows they change, and the memory they leave."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Collection, Iterator, Sequence
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollforward.streams import Computation, Context, Pipeline, PushSource, Record, Timer
from rollforward.streams.execution.bundle_runner import MAX_PRODUCED_BYTES, run_bundle
from rollforward.streams.model.bundle import KeyedRecord, derived_id
from rollforward.streams.model.key_state import NOTHING, KeyState, SetTimer, SlabBody
from rollforward.streams.model.records import NEVER
from rollforward.streams.model.state import TIMER_BYTES
from rollforward.streams.operators.fused import Fused
from rollforward.streams.storage.inbox import Bundle, gather, inputs_of
from rollforward.streams.storage.remote_calls import Commit, StoredRow, TooLargeError
from rollforward.streams.storage.schema import CHUNK, LATE, InboxRecord, Slab, fingerprint
from rollforward.streams.storage.serde import dump, load
from rollforward.streams.storage.state_cache import size_of
from rollforward.streams.storage.state_store import summary
from tests.rollforward.streams.simulator.driver import Came, Desk, is_batch
from tests.rollforward.streams.simulator.store import answered

TIMES = st.integers(0, 10**15)
RECORDS = st.lists(
    st.builds(
        InboxRecord,
        st.text(min_size=1, max_size=5),
        TIMES,
        st.sampled_from(("in", "out")),
        st.sampled_from(("", "", "a", "b", "c")),
        st.sampled_from(('{"k":"\\u20ac"}', "null", "1.5", '"\\""', "[1,2]")),
    ),
    max_size=7,
).map(tuple)


# Inbox records


@given(RECORDS)
def test_a_chunk_is_read_as_it_was_written(records: tuple[InboxRecord, ...]) -> None:
    """Also a chunk in the form before columns."""
    for written in (dump(CHUNK, records), json.dumps(records).encode()):
        loaded = load(CHUNK, written)
        assert loaded == records
        assert all(type(record) is InboxRecord for record in loaded)


@given(
    st.lists(st.tuples(st.booleans(), RECORDS), max_size=4),
    st.sets(st.sampled_from(("in a", "in b", "out c"))),
    st.integers(1, 20),
)
def test_a_batch_has_what_is_new_up_to_a_number(
    written: list[tuple[bool, tuple[InboxRecord, ...]]], ids: set[str], limit: int
) -> None:
    """It also removes exactly these records from the inbox."""
    chunks = [
        (f"p:c:0000:{int(is_late)}:{n + 1:015d}:id.{n}.1.1", StoredRow(body, n))
        for n, (is_late, body) in enumerate(written)
        if body
    ]
    accepted = {fingerprint(id_) for id_ in ids}

    bundle, expected = gather(chunks, accepted, limit), one_by_one(chunks, accepted, limit)

    assert bundle.inputs == expected.inputs
    assert [type(record) for record in bundle.inputs] == [KeyedRecord] * len(bundle.inputs)
    for count in range(len(bundle.inputs) + 1):
        commit, expected_commit = Commit(), Commit()
        assert bundle.take(count, commit) == expected.take(count, expected_commit)
        assert commit == expected_commit
        assert bundle.is_truncated(count) == expected.is_truncated(count)


def one_by_one(
    chunks: Sequence[tuple[str, StoredRow]], accepted: Collection[str], limit: int
) -> Bundle:
    """Gather records one by one."""
    bundle, chosen_ids = Bundle(chunks), set[str]()
    for number, (name, row) in enumerate(chunks):
        for place, record in enumerate(row.body):
            if len(bundle.inputs) >= limit:
                bundle.end = number, place
                return bundle
            id_ = fingerprint(f"{record.stream} {record.id}") if record.id else ""
            if id_ and (id_ in accepted or id_ in chosen_ids):
                bundle.repeated.append((number, place))
                continue
            chosen_ids.add(id_)
            _, _, _, lane, at, _ = name.split(":")
            late_at, value = int(lane == str(LATE)) * int(at), json.loads(record.text)
            bundle.inputs.append(
                KeyedRecord(*record[:1], value, *record[1:3], late_at, record.id, record.text)
            )
            bundle.ids.append(id_)
            bundle.places.append((number, place))
        bundle.end = number, len(row.body)
    return bundle


def test_chunks_without_ids_share_the_limit_of_a_bundle() -> None:
    """Else a commit would have more records than its pipeline allows."""
    rows = [[InboxRecord("a", n, "in", "", "1") for n in range(3)] for _ in range(2)]
    chunks = [(f"p:c:0:0:0:{n}", StoredRow(row, 1)) for n, row in enumerate(rows)]

    bundle = gather(chunks, (), limit=4)

    assert (len(bundle.inputs), bundle.end, bundle.is_truncated(4)) == (4, (1, 1), True)


# Hooks


def key_of(value: Any) -> Any:
    return value["k"]


class Spoiling(Computation):
    """Changes its records."""

    inputs: ClassVar = {"in": key_of}

    def record(self, ctx: Context, record: Record) -> None:
        record.value["n"] = record.value.get("n", 0) + 1
        ctx.state.list("seen").append(record.value["n"])


def test_a_batch_that_is_worked_on_again_has_its_records_as_they_came() -> None:
    """Although its commit was too large, and its chunks are not read again."""
    desk = Desk(Pipeline("p", Spoiling, sources=[PushSource("in")], intervals=1))
    desk.push(*(Came(f"{n}", "a", n) for n in range(4)))
    refused = []

    def answer(call: Any) -> Iterator[Any]:
        yield from ()
        if is_batch(call) and len(refused) < 2:
            refused.append(call)
            raise TooLargeError
        return None

    desk.do(answered(desk.worker("spoiling"), answer))

    assert len(refused) == 2
    assert desk.state("spoiling", "a") == {"seen": [1, 1, 1, 1]}


@pytest.mark.parametrize("failures", [1, 2, 3])
def test_a_hook_that_ends_well_in_the_end_has_counted_once(failures: int) -> None:
    """Each attempt finds the state as it was, also through what an earlier one was given."""
    calls = []

    class Flaky(Computation):
        inputs: ClassVar = {"in": key_of}
        outputs = ("out",)

        def record(self, ctx: Context, record: Record) -> None:
            calls.append(ctx.state)
            ctx.state.counter("seen").add(1)
            ctx.produce("out", dict(ctx.state))
            if len(calls) <= failures:
                raise ValueError

    stored = {"k": KeyState('{"seen":4}')}
    inputs = inputs_of([InboxRecord("k", 1, "in", "", "{}")], late_at=0)

    effects = run_bundle(Flaky(), stored, inputs, watermark=0, now_ms=0)

    assert (effects.counts.records, effects.counts.produced, effects.counts.dead) == (1, 1, 0)
    assert effects.keys == {"k": KeyState('{"seen":5}')}
    assert [production.text for production in effects.productions] == ['{"seen":5}']


def test_what_failed_attempts_have_written_leaves_no_less_room() -> None:
    """A hook that writes much and fails leaves the limits of its bundle to later records."""

    class Wordy(Computation):
        inputs: ClassVar = {"in": key_of}
        outputs = ("out",)

        def record(self, ctx: Context, record: Record) -> None:
            for _ in range(10):
                ctx.produce("out", "x" * (MAX_PRODUCED_BYTES // 20))
            if record.timestamp_ms == 1:
                raise ValueError

    inputs = inputs_of([InboxRecord("k", at, "in", "", "{}") for at in (1, 2)], late_at=0)

    effects = run_bundle(Wordy(), {}, inputs, watermark=0, now_ms=0)

    assert (effects.consumed, effects.counts.records, effects.counts.dead) == (2, 1, 1)


def test_a_batch_fires_one_timer_however_late_it_begins() -> None:
    """A worker that never has time left still fires all timers in the end."""
    state = KeyState("", {str(at): SetTimer(at, False, at, False) for at in (1, 2)})
    fired = []

    class Alarm(Spoiling):
        def timer(self, ctx: Context, timer: Timer) -> None:
            fired.append(timer.at_ms)

    for at in (1, 2):
        effects = run_bundle(
            Alarm(), {"k": state}, watermark=3, now_ms=0, due=["k"], is_over=lambda: True
        )
        assert fired[at - 1 :] == [at]
        state = effects.keys["k"]

    assert state.is_empty


@pytest.mark.parametrize("key", [["a"], {}, 7, True, None, "", "x" * 501])
def test_what_is_no_key_is_said(key: Any) -> None:
    [target] = Pipeline("p", Spoiling).graph.route("in", {"k": key})
    assert (target.computation, target.key) == ("spoiling", "")
    assert target.error.startswith("no key: BadRecordError: a key ")


# What has changed


class Looking(Computation):
    """Looks at its state, and changes it if a record says so."""

    inputs: ClassVar = {"in": key_of}
    outputs = ("out",)

    def record(self, ctx: Context, record: Record) -> None:
        if "set" in record.value:
            ctx.state["set"] = record.value["set"]
        ctx.produce("out", ctx.state.value("set").get())


class Listing(Computation):
    inputs: ClassVar = {"out": lambda value: "all"}

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.list("out").append(record.value)


def test_a_slab_in_which_nothing_has_changed_is_not_written() -> None:
    """A state that a hook only reads stays unchanged, in memory and in its row."""
    desk = Desk(Pipeline("p", Looking, Listing, sources=[PushSource("in")], intervals=1))
    slab = desk.environment.names.slab("looking", 0)
    versions = []

    for n, fields in enumerate(({}, {"set": 1}, {}, {"set": 1}, {"set": 2})):
        desk.push(Came(f"{n}", "a", n), **fields)
        desk.run()
        row = desk.simulation.store.rows.get(slab)
        versions.append(row and row.version)

    assert versions[0] is None
    assert versions[1] == versions[2] == versions[3]
    assert versions[3] != versions[4]
    assert desk.state("looking", "a") == {"set": 2}
    assert desk.state("listing", "all") == {"out": [None, 1, 1, 1, 2]}


TIMERS = st.dictionaries(
    st.text(max_size=3), st.builds(SetTimer, TIMES, st.booleans(), TIMES, st.booleans()), max_size=3
)
STATES = st.builds(KeyState, st.text(max_size=9), TIMERS, st.one_of(st.just(NEVER), TIMES))


@given(st.dictionaries(st.text(max_size=5), STATES, max_size=4))
def test_an_interval_knows_what_each_slab_has_to_do_and_its_worker_how_large_it_is(
    keys: dict[str, KeyState],
) -> None:
    body, states = SlabBody(keys), [NOTHING, *keys.values()]
    timers = [timer for state in states for timer in state.timers.values()]
    assert summary(7, body) == Slab(
        7,
        min([NEVER, *(timer.hold for timer in timers if not timer.is_late)]),
        min(
            [
                *(state.expires for state in states),
                *(timer.at_ms for timer in timers if not timer.is_processing_time),
            ]
        ),
        min([NEVER, *(timer.at_ms for timer in timers if timer.is_processing_time)]),
        sum(not timer.is_hold for timer in timers),
    )
    texts = sum(len(key) + len(state.text) for key, state in keys.items())
    assert size_of(body) == texts + TIMER_BYTES * (len(keys) + len(timers))


@given(
    st.dictionaries(st.text(max_size=2), STATES, max_size=4),
    st.dictionaries(st.text(max_size=2), STATES | st.none(), max_size=4),
)
def test_the_size_of_a_later_slab_is_that_of_one_that_was_read(
    before: dict[str, KeyState], changes: dict[str, KeyState | None]
) -> None:
    """It follows from the keys that have changed: added, replaced, or gone (none)."""
    after = {key: state for key, state in {**before, **changes}.items() if state is not None}
    later = SlabBody(before).with_changed(changes, after)
    assert later.size == SlabBody(after).size


# What is left behind


class Fragile(Computation):
    """Notes the backend of its context; fails for poison."""

    inputs: ClassVar = {"in": str}
    seen: ClassVar[list[weakref.ref[Any]]] = []

    def record(self, ctx: Context, record: Record) -> None:
        backend: Any = ctx._backend
        self.seen.append(weakref.ref(getattr(backend, "_backend", backend)))
        if record.value == "poison":
            raise ValueError


class Behind(Fragile):
    """A part that gets nothing."""

    inputs: ClassVar = {"nothing": str}


@pytest.mark.parametrize("computation", [Fragile(), Fused("fused", Fragile, Behind)])
def test_a_batch_leaves_nothing_for_the_garbage_collector(computation: Computation) -> None:
    """It has thousands of objects: to look for them took an eighth of a stream's time."""
    Fragile.seen.clear()
    gc.disable()
    try:
        for value in ("good", "poison"):
            inputs = inputs_of([InboxRecord("k", 1, "in", "", json.dumps(value))], late_at=0)
            run_bundle(computation, {}, inputs, watermark=0, now_ms=0)
        assert len(Fragile.seen) == 5  # Poison is tried once, and then carefully.
        assert all(reference() is None for reference in Fragile.seen)
    finally:
        gc.enable()


class Twice(Computation):
    weak = True
    idempotent = True
    inputs: ClassVar = {"in": lambda value: "k"}
    outputs = ("out", "other")

    def record(self, ctx: Context, record: Record) -> None:
        for stream in ("out", "other", "out"):
            ctx.produce(stream, record.value)


def test_the_ids_of_a_weak_computation_s_outputs_are_those_of_all_versions() -> None:
    """G14: a record that is worked on again after a deployment is known by them."""
    record = KeyedRecord("k", 1, 5, "in", 0, "r-1", "1")
    outputs = run_bundle(Twice(), {}, [record], watermark=0, now_ms=0).productions
    places = [("out", 1), ("other", 1), ("out", 2)]
    expected = [(stream, derived_id("in", "r-1", "twice", place)) for stream, place in places]
    assert [(output.stream, output.id) for output in outputs] == expected
