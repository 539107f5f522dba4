"""Unworkable records: each becomes a dead letter, and its neighbours continue.

For errors of hooks see test_computations.py and test_values.py. Here code outside of hooks raises,
or the service refuses a row.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from rollforward.streams import (
    Computation,
    Context,
    Pipeline,
    Pulled,
    PullSource,
    PushedRecord,
    PushSource,
    Record,
    StreamTest,
    Timer,
)
from rollforward.streams.exchange.outgoing import Outbound
from rollforward.streams.exchange.pulling import pull
from rollforward.streams.execution.bundle_runner import _BundleRunner
from rollforward.streams.model.errors import BadRecordError
from rollforward.streams.model.records import check_key, value_text
from rollforward.streams.model.sink import Sink
from rollforward.streams.pushes import check_pushed
from rollforward.streams.storage import inbox
from rollforward.streams.storage.remote_calls import Commit
from rollforward.streams.storage.schema import CHUNK, DEAD, DeadRow
from rollforward.streams.workers.sink_worker import SinkWorker
from tests.rollforward.streams.simulator.accidents import UnavailableError
from tests.rollforward.streams.simulator.driver import Came, Desk, is_batch
from tests.rollforward.streams.simulator.store import answered
from tests.rollforward.streams.test_failures import tally

HALF = "\ud83d"  # Of an emoji.


def key_of(value: Any) -> Any:
    return value["k"]


class Handing(Computation):
    """Counts and forwards its records."""

    inputs: ClassVar = {"in": key_of, "log": key_of}
    outputs = ("out",)

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.counter("seen").add(1)
        ctx.produce("out", record.value)


class Waiting(Computation):
    """Does so a little later."""

    name = "handing"
    inputs: ClassVar = {"in": key_of}
    outputs = ("out",)

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state[f"t{record.timestamp_ms}"] = record.value
        ctx.set_timer(f"t{record.timestamp_ms}", record.timestamp_ms)

    def timer(self, ctx: Context, timer: Timer) -> None:
        ctx.state.counter("seen").add(1)
        ctx.produce("out", ctx.state.pop(timer.tag))


class Reading(Computation):
    inputs: ClassVar = {"out": lambda value: value.get("to", "x")}

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.counter("seen").add(1)


def desk_of(*computations: Any, **options: Any) -> Desk:
    sources = options.pop("sources", [PushSource("in")])
    return Desk(Pipeline("p", *computations, sources=sources, intervals=1))


def dead(desk: Desk) -> list[DeadRow]:
    rows = desk.simulation.store.rows
    return [row.body for key, row in rows.items() if key.kind == DEAD]


def is_bad(text: str) -> bool:
    return '"bad"' in text


# Errors outside of hooks, and refusals: each makes one record fail permanently.


def undecoded(desk: Desk, patch: pytest.MonkeyPatch) -> None:
    """A record cannot be decoded."""
    real = inbox.inputs_of

    def inputs_of(records: Any, codecs: Any, *, late_at: int, are_decoded: bool = True) -> Any:
        if are_decoded and any(is_bad(record.text) for record in records):
            raise RecursionError("maximum recursion depth exceeded")
        return real(records, codecs, late_at=late_at, are_decoded=are_decoded)

    patch.setattr(inbox, "inputs_of", inputs_of)


def untaken(desk: Desk, patch: pytest.MonkeyPatch) -> None:
    """The runner raises outside of hooks."""
    real: Callable[..., None] = _BundleRunner._take

    def take(self: Any, record: Any) -> None:
        if is_bad(record.text):
            raise KeyError("bad")
        real(self, record)

    patch.setattr(_BundleRunner, "_take", take)


def unsent(desk: Desk, patch: pytest.MonkeyPatch) -> None:
    """An output cannot be sent."""
    real = Outbound.send

    def send(self: Any, target: Any, letter: Any, *, late_at: int) -> None:
        if target.computation == "reading" and is_bad(letter.text):
            raise UnicodeEncodeError("utf-8", HALF, 0, 1, "surrogates not allowed")
        real(self, target, letter, late_at=late_at)

    patch.setattr(Outbound, "send", send)


def refused(desk: Desk, patch: pytest.MonkeyPatch) -> None:
    """The service refuses the row of an output."""

    def takes(commit: Commit) -> bool:
        chunks = [
            body for key, body in commit.inserts if key.kind == CHUNK and ":reading:" in key.name
        ]
        return not any(is_bad(record.text) for records in chunks for record in records)

    desk.simulation.store.takes = takes


FAILURES = [
    *((Handing, fails) for fails in (undecoded, untaken, unsent, refused)),
    *((Waiting, fails) for fails in (unsent, refused)),
]


@pytest.mark.parametrize(("kind", "fails"), FAILURES, ids=lambda value: value.__name__)
def test_what_nobody_can_work_on_is_a_dead_letter_and_the_others_go_on(
    kind: Any, fails: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """G7: by one run of its worker, without an error of its task."""
    desk = desk_of(kind, Reading)
    fails(desk, monkeypatch)
    for n in range(60):
        desk.push(Came(f"r{n}", "a", n), to="bad" if n == 41 else "x")
    desk.push(watermark=1_000)

    desk.run()

    [letter] = dead(desk)
    assert (letter.computation, letter.key) == ("handing", "a")
    assert letter.error
    if letter.record is None:
        assert (letter.tag, letter.timestamp_ms) == ("t41", 41)
    else:
        assert json.loads(letter.record.text) == {"k": "a", "to": "bad"}
        assert (letter.record.id, letter.record.timestamp_ms) == ("r41", 41)
    assert desk.state("handing", "a")["seen"] == 59
    assert desk.state("reading", "x") == {"seen": 59}
    assert desk.rows(CHUNK) == []
    assert desk.interval("handing").crash_count == 0


def test_a_batch_with_one_bad_record_costs_a_bounded_number_of_commits() -> None:
    desk = desk_of(Handing, Reading)
    desk.push(*(Came(f"r{n}", "bad" if n == 200 else "a", n) for n in range(400)))
    desk.simulation.store.takes = lambda commit: (
        not any(
            is_bad(letter.text)
            for key, body in commit.inserts
            if key.kind == CHUNK
            for letter in body
        )
    )
    tried = []

    def answer(call: Any) -> Any:
        tried.append(is_batch(call))
        yield from ()

    desk.do(answered(desk.worker("handing"), answer))

    assert desk.state("handing", "a") == {"seen": 399}
    assert sum(tried) < 40


def test_a_sink_goes_on_behind_a_record_that_cannot_be_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Printing(Sink):
        def write(self, clients: Any, values: Any) -> None:
            raise NotImplementedError

    desk = desk_of(Printing("in", name="printing"))
    desk.simulation.worker = SinkWorker
    undecoded(desk, monkeypatch)
    desk.push(*(Came(f"r{n}", "bad" if n == 3 else "a", n) for n in range(9)))

    desk.run()

    interval = desk.interval("printing")
    assert (interval.records, interval.dead, desk.rows(CHUNK)) == (8, 1, [])
    [letter] = dead(desk)
    assert letter.record is not None
    assert letter.record.id == "r3"


def test_a_worker_without_memory_is_held_to_have_died() -> None:
    """The cause is unknown, so no record is quarantined immediately."""

    class Greedy(Computation):
        inputs: ClassVar = {"in": key_of}
        calls: ClassVar[list[int]] = []

        def record(self, ctx: Context, record: Record) -> None:
            self.calls.append(record.timestamp_ms)
            if len(self.calls) < 3:
                raise MemoryError
            ctx.state.counter("seen").add(1)

    desk = desk_of(Greedy)
    desk.push(Came("r1", "a", 1))
    for crash_count in (0, 1):
        with pytest.raises(MemoryError):
            desk.do(desk.worker("greedy"))
        assert desk.interval("greedy").crash_count == crash_count
        desk.wait(60)
    desk.run()

    assert (desk.state("greedy", "a"), dead(desk)) == ({"seen": 1}, [])


# At the door


def test_a_key_with_half_a_character_is_none() -> None:
    for key in (HALF, f"{'x' * 200}{HALF}"):
        with pytest.raises(BadRecordError, match="a key must be whole characters"):
            check_key(key)


def test_an_id_with_half_a_character_is_refused() -> None:
    with pytest.raises(BadRecordError, match="an id must be whole characters"):
        check_pushed([PushedRecord("a", {}, 1), PushedRecord(f"r{HALF}", {}, 1)])


def test_a_record_with_such_an_id_that_is_in_already_is_worked_on() -> None:
    desk = desk_of(Handing, Reading)
    for _ in range(2):
        desk.push(*(Came(id_, "a", 1) for id_ in ("r1", f"r{HALF}", "r3")))
        desk.run()

    assert (desk.state("handing", "a"), desk.interval("handing").repeated) == ({"seen": 3}, 3)


def test_what_a_hook_writes_under_half_a_character_is_a_dead_letter_of_its_reader() -> None:
    desk = desk_of(Handing, Reading)
    desk.push(Came("r1", "a", 1), to=HALF)
    desk.push(Came("r2", "a", 2), to="x")
    desk.run()

    assert [letter.computation for letter in dead(desk)] == ["reading"]
    assert (desk.state("handing", "a"), desk.state("reading", "x")) == ({"seen": 2}, {"seen": 1})


def nested(depth: int) -> Any:
    value: Any = "]"
    for _ in range(depth):
        value = [value]
    return value


def test_a_value_that_could_not_be_read_again_everywhere_is_refused() -> None:
    """Brackets in its texts do not count."""
    assert value_text([["["] * 300, nested(199)])
    for depth in (201, 900, 100_000):
        with pytest.raises(BadRecordError):
            value_text(nested(depth))

    class Deep(Computation):
        inputs: ClassVar = {"in": key_of}
        max_attempts = 1

        def record(self, ctx: Context, record: Record) -> None:
            ctx.state["deep"] = nested(250)

    test = StreamTest(Pipeline("p", Deep))
    test.push("in", {"k": "a"}, timestamp_ms=1)
    [(_, failure)] = test.dead
    assert "the depth of a value must be at most 200" in failure.error


@pytest.mark.parametrize(
    "bad",
    [
        ({"k": "a", "v": "x" * 200_001}, 10),
        ({"k": HALF}, 10),
        ({"k": "a"}, -1),
        ({"k": object()}, 10),
        (nested(5_000), 10),
        ("a line that nobody has split",),
        None,
    ],
    ids=["large", "half", "early", "object", "deep", "short", "none"],
)
def test_what_a_reader_finds_that_is_no_record_is_a_dead_letter_and_it_reads_on(bad: Any) -> None:
    """G7: with what can be said of it."""
    rows = [*(({"k": "a"}, n) for n in range(10)), bad, *(({"k": "b"}, n) for n in range(20, 30))]

    def read(clients: Any, position: Any, limit: int) -> Pulled:
        start = position or 0
        return Pulled(rows[start : start + 5], min(start + 5, len(rows)))

    desk = desk_of(Handing, Reading, sources=[PullSource("log", read), PushSource("in")])
    desk.do(pull(desk.environment, "log"))
    desk.run()

    assert [desk.state("handing", key)["seen"] for key in "ab"] == [10, 10]
    [letter] = dead(desk)
    assert (letter.computation, letter.key) == ("handing", "")
    assert "no record: " in letter.error or "no key: " in letter.error
    assert letter.record is not None
    assert len(json.dumps(json.loads(letter.record.text))) < 200_000
    assert desk.status().sources["log"].records == 21


def test_who_fails_forgets_no_workers_that_died_before_it() -> None:
    """I, G7: an error that gives the interval back ends no row of deaths."""
    desk = tally()
    desk.push(Came("1", "a", 1), watermark=1)
    desk.simulation.acts[Commit](desk.until(desk.worker("tally"), Commit))
    desk.wait(16)
    steps = desk.worker("tally")
    desk.until(steps, Commit, of=2)
    assert desk.interval("tally").crash_count == 1

    with pytest.raises(UnavailableError):
        desk.finish(steps, steps.throw(UnavailableError()))

    assert (desk.interval("tally").owner, desk.interval("tally").crash_count) == ("", 1)
