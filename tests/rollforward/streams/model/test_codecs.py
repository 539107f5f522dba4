"""Values as bytes: what is stored, what is refused, and what becomes of bytes nobody can decode."""

from __future__ import annotations

import base64
import json
from typing import Any, ClassVar

import pytest

from rollforward.streams import Computation, Context, Pipeline, PushSource, Record, StreamTest
from rollforward.streams.model.codecs import (
    JSON_VALUES,
    MAX_PREVIEW_BYTES,
    NO_CODECS,
    Codecs,
    Encoded,
    encoded_of,
)
from rollforward.streams.model.errors import BadRecordError, MissingCodeError, NotIdempotentError
from rollforward.streams.model.records import MAX_VALUE_BYTES, inbound_value, value_text
from rollforward.streams.operators.fused import Fused
from rollforward.streams.publications.publication import LogRecord
from rollforward.streams.storage.schema import CHUNK, DEAD, LOG, DeadRow, InboxRecord, LogRow
from rollforward.streams.storage.serde import dump, load
from tests.rollforward.streams.packed import PACKED, Packed
from tests.rollforward.streams.publications.publishing import Couple
from tests.rollforward.streams.simulator.driver import Came, Desk

pytestmark = pytest.mark.fast

NEXT = Packed("packed-2")


class Bytes:
    """Bytes as they are."""

    name = "bytes"

    def encode(self, value: Any) -> Any:
        return value

    def decode(self, data: bytes) -> bytes:
        return data


BYTES = Bytes()


class Parse(Computation):
    """Counts records, and hands them on."""

    inputs: ClassVar = {"in": lambda value: value["k"]}
    outputs = ("parsed",)

    def record(self, ctx: Context, record: Record) -> None:
        record.value["n"] = ctx.state.counter("n").add(1)
        ctx.produce("parsed", record.value)


class Sum(Computation):
    """Lists the records of a key; some are poison."""

    inputs: ClassVar = {"parsed": lambda value: value["k"]}
    late = "drop"
    late_stream = "late"

    def record(self, ctx: Context, record: Record) -> None:
        if record.value.pop("poison", False):
            raise ValueError("poison")
        ctx.state.list("seen").append(record.value["n"])


class Late(Computation):
    inputs: ClassVar = {"late": lambda value: value["k"]}

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.list("late").append(record.value["n"])


def pipeline(*computations: Any, codecs: Any = None) -> Pipeline:
    computations = computations or (Parse, Sum, Late)
    return Pipeline("coded", *computations, sources=[PushSource("in")], codecs=codecs, intervals=1)


ALL = dict.fromkeys(("in", "parsed", "late"), PACKED)


def chunks(desk: Desk) -> list[dict[str, Any]]:
    """Return the rows of all chunks, as they are stored."""
    rows = desk.simulation.store.rows
    return [json.loads(dump(CHUNK, row.body)) for key, row in rows.items() if key.kind == CHUNK]


def test_a_value_is_stored_as_the_bytes_of_its_codec_and_names_it() -> None:
    """G23: in base64, once for all records of a chunk that have the same codec."""
    desk = Desk(pipeline(codecs={"in": PACKED}))
    desk.push(Came("1", "a", 1), Came("2", "b", 2))

    [chunk] = chunks(desk)

    assert chunk["codec"] == "packed-1"
    stored = [PACKED.decode(base64.b64decode(text)) for text in chunk["text"]]
    assert stored == [{"k": "a"}, {"k": "b"}]


def test_what_has_no_codec_is_stored_as_before() -> None:
    """G23: no byte of a row of JSON has changed."""
    record = InboxRecord("a", 1, "in", "r", '{"k":"a"}')

    assert dump(CHUNK, (record,)) == (
        b'{"key":["a"],"timestamp_ms":[1],"stream":"in","id":"r","text":["{\\"k\\":\\"a\\"}"]}'
    )
    dead = json.loads(dump(DEAD, DeadRow("c", "a", "e", 1, record)))
    assert dead["record"] == ["a", 1, "in", "r", '{"k":"a"}']
    log = json.loads(dump(LOG, LogRow(0, 0, 9, [(1, {"k": "a"})])))
    assert log["records"] == [[1, {"k": "a"}]]


@pytest.mark.parametrize("texts", [("1", "[]"), ("P", "Q"), ("1", "P", "2", "Q")])
def test_rows_of_both_kinds_of_values_are_read_as_they_were_written(texts: tuple[str, ...]) -> None:
    """G23."""
    coded = {"P": value_text(1, PACKED), "Q": value_text([2], NEXT)}
    records = tuple(
        InboxRecord("a", n, "in", "", coded.get(text, text)) for n, text in enumerate(texts)
    )
    entries = [(n, encoded_of(record.text) or 7) for n, record in enumerate(records)]

    assert load(CHUNK, dump(CHUNK, records)) == records
    for record in records:
        row = DeadRow("c", "a", "e", 1, record)
        assert load(DEAD, dump(DEAD, row)) == row
    assert load(LOG, dump(LOG, LogRow(0, 0, 9, entries))).records == entries


def test_values_reach_hooks_late_streams_and_fused_parts_decoded() -> None:
    """G23: an inner stream has the codec that is declared for it, too."""
    fused = Fused("both", Parse, Sum)
    for computations, name in (((Parse, Sum, Late), "sum"), ((fused, Late), "both")):
        test = StreamTest(pipeline(*computations, codecs=ALL))
        test.push("in", {"k": "a"}, 10)
        test.push("in", {"k": "a", "poison": 1}, 11)
        test.advance_watermark(20)
        test.push("in", {"k": "a"}, 5)
        state = test.state(name, "a")
        n = 3 if name == "sum" else 2  # A failed part undoes the count of the part before it.
        assert state.get("sum", state)["seen"] == [1]
        assert test.state("late", "a") == {"late": [n]}
        assert [failure.error for _, failure in test.dead] == ["ValueError: poison"]
        [(_, failure)] = test.dead
        assert encoded_of(failure.input.text).codec == "packed-1"  # type: ignore[union-attr]


def test_a_weak_computation_with_a_codec_that_writes_other_bytes_each_time_is_noticed() -> None:
    class Restless(Packed):
        def encode(self, value: Any) -> bytes:
            self.count = getattr(self, "count", 0) + 1
            return super().encode({**value, "count": self.count})

    class Passing(Computation):
        weak = idempotent = True
        inputs: ClassVar = {"in": lambda value: value["k"]}
        outputs = ("parsed",)

        def record(self, ctx: Context, record: Record) -> None:
            ctx.produce("parsed", record.value)

    with pytest.raises(NotIdempotentError):
        StreamTest(pipeline(Passing, codecs={"parsed": Restless()})).push("in", {"k": "a"}, 1)


@pytest.mark.parametrize("bytes_", [0, 1, 2, 3, 255])
def test_any_bytes_are_read_as_they_were_written(bytes_: int) -> None:
    data = bytes(range(bytes_))
    assert Codecs({"in": BYTES}).value(value_text(data, BYTES)) == data


def test_a_value_has_as_many_bytes_as_are_stored_of_it() -> None:
    """G8, G23: in base64, with the name of its codec."""
    most = (MAX_VALUE_BYTES - len("\1bytes:")) // 4 * 3
    text = value_text(bytes(most), BYTES)
    assert MAX_VALUE_BYTES - 4 < len(text) <= MAX_VALUE_BYTES
    with pytest.raises(BadRecordError, match=f"at most {MAX_VALUE_BYTES} bytes"):
        value_text(bytes(most + 1), BYTES)

    codecs = Codecs({"in": BYTES})
    assert inbound_value(codecs, "in", Encoded(bytes(most))) == (text, bytes(most))
    with pytest.raises(BadRecordError, match=f"at most {MAX_VALUE_BYTES} bytes"):
        inbound_value(codecs, "in", Encoded(bytes(most + 1)))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (object(), "must be encoded by packed-1: TypeError"),
        (Encoded(b"x", "packed-3"), "must have a codec 'packed-3', it has"),
        (Encoded(b"x"), "packed-1 cannot decode the value: "),
        (Encoded(b"{", "json"), "a value must be JSON"),
    ],
)
def test_what_a_codec_does_not_take_is_refused(value: Any, message: str) -> None:
    codecs = Codecs({"in": (PACKED, JSON_VALUES)})
    with pytest.raises(BadRecordError, match=message):
        inbound_value(codecs, "in", value)


def test_a_codec_must_return_bytes() -> None:
    with pytest.raises(BadRecordError, match="bytes must return bytes, got a str"):
        value_text("text", BYTES)
    with pytest.raises(BadRecordError, match="in must have a codec ''"):
        inbound_value(NO_CODECS, "in", Encoded(b"x"))


@pytest.mark.parametrize(
    ("codecs", "message"),
    [
        ({"none": PACKED}, "`codecs` must name streams, got 'none'"),
        ({"in": ()}, "must have at least one codec"),
        ({"in": Packed("Packed 1")}, "name must consist of"),
        ({"in": object()}, "name must consist of"),
        ({"in": PACKED, "parsed": Packed()}, "must not have one name, 'packed-1'"),
        ({"in": Packed("json")}, "must not have one name, 'json'"),
    ],
)
def test_declarations_that_cannot_be_are_refused(codecs: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        pipeline(codecs=codecs)


def test_a_value_that_cannot_be_decoded_is_a_dead_letter_and_its_neighbours_go_on() -> None:
    """G7, G23: at once, with its bytes; and again when its codec can decode it."""
    desk = Desk(pipeline(codecs=ALL))
    desk.push(Came("1", "a", 1))
    desk.push(Came("2", "a", 2), garbled=1)
    desk.push(Came("3", "a", 3))
    desk.run()

    rows = desk.simulation.store.rows
    [dead] = [row.body for key, row in rows.items() if key.kind == DEAD]
    assert dead.error == "packed-1 cannot decode the value: ValueError: garbled"
    assert (dead.key, dead.record.stream) == ("a", "in")
    assert encoded_of(dead.record.text) == Encoded(
        PACKED.encode({"k": "a", "garbled": 1}), "packed-1"
    )
    assert desk.state("parse", "a") == {"n": 2}


def test_old_and_new_code_side_by_side() -> None:
    """G15, G23: old code leaves bytes to new code, which reads what old code has written."""
    desk = Desk(pipeline(codecs=ALL))
    old_machine = desk.simulation.machines[1]
    old_machine.pipeline = pipeline()
    desk.push(Came("1", "a", 1))
    with pytest.raises(MissingCodeError, match="encoded by packed-1"):
        desk.do(desk.worker("parse", machine=1))
    assert not desk.rows(DEAD)
    desk.do(desk.worker("parse"))
    with pytest.raises(MissingCodeError, match="encoded by packed-1"):
        desk.do(desk.worker("sum", machine=1))
    assert not desk.rows(DEAD)

    desk.simulation.pipeline, new = old_machine.pipeline, desk.simulation.pipeline
    desk.push(Came("2", "a", 2))
    desk.simulation.pipeline, old_machine.pipeline = new, None
    desk.run()
    assert desk.state("sum", "a") == {"seen": [1, 2]}
    assert not desk.rows(DEAD)


def test_a_codec_is_replaced_in_two_deployments() -> None:
    """G15, G23: the first one reads both, the second one writes the next."""
    desk = Desk(pipeline(codecs={"in": PACKED}))
    desk.push(Came("1", "a", 1))
    for codecs in ((PACKED, NEXT), (NEXT, PACKED), (JSON_VALUES, NEXT, PACKED)):
        desk.simulation.pipeline = pipeline(codecs={"in": codecs})
        desk.push(Came(f"after {codecs[0].name}", "a", 2))
    assert [chunk.get("codec") for chunk in chunks(desk)] == [
        "packed-1", "packed-1", "packed-2", None,
    ]  # fmt: skip
    desk.run()
    assert desk.state("parse", "a") == {"n": 4}


def test_what_is_shown_of_bytes_is_short_and_harmless() -> None:
    assert str(Encoded(b"<b>\0", "packed-1")) == "packed-1, 4 bytes: 3c 62 3e 00"
    shown = str(Encoded(bytes(MAX_PREVIEW_BYTES + 1), "packed-1"))
    assert shown.endswith("00 00...")
    assert len(shown) < 3 * MAX_PREVIEW_BYTES + 30


# Publications


def test_a_subscriber_reads_a_published_stream_with_its_codec() -> None:
    """G20, G23: the log has the bytes, and the subscriber the codec of the publication."""
    couple = Couple(start="earliest", codecs={"hits": (PACKED, JSON_VALUES)})
    couple.publish(1_000, 2_000)

    [row] = [
        row.body for key, row in couple.publisher.simulation.store.rows.items() if key.kind == LOG
    ]
    assert [value.codec for _, value in row.records] == ["packed-1"] * 2
    couple.pull()
    assert {chunk["codec"] for chunk in chunks(couple.subscriber)} == {"packed-1"}
    couple.read()
    assert couple.seen() == [1_000, 2_000]


def test_a_subscriber_without_the_codec_of_a_record_waits_for_other_instances() -> None:
    """G20, G23: and reads it when it has the codec; nothing is lost, and nothing is dead."""
    couple = Couple(start="earliest", codecs={"hits": PACKED})
    couple.publish(1_000)
    published = couple.publication.codecs
    couple.publication.codecs = NO_CODECS
    with pytest.raises(MissingCodeError, match="encoded by packed-1"):
        couple.read()
    couple.publication.codecs = published
    couple.read()

    assert couple.seen() == [1_000]
    assert not couple.subscriber.rows(DEAD)


def test_a_published_record_that_cannot_be_decoded_is_a_dead_letter_with_its_bytes() -> None:
    """G7, G20: of the subscriber; the next ones follow."""
    couple = Couple(start="earliest", codecs={"hits": PACKED})
    couple.publish(1_000)
    couple.publication.codecs = Codecs({"hits": Packed(garbled="k")})
    couple.read()
    couple.publication.codecs = Codecs({"hits": PACKED})
    couple.publish(2_000)
    couple.read()

    assert couple.seen() == [2_000]
    rows = couple.subscriber.simulation.store.rows
    [dead] = [row.body for key, row in rows.items() if key.kind == DEAD]
    assert encoded_of(dead.record.text).codec == "packed-1"  # type: ignore[union-attr]
    assert dead.record.timestamp_ms == 1_000


def test_a_log_record_knows_its_size_as_it_is_stored() -> None:
    couple = Couple(codecs={"hits": PACKED})
    record = couple.log_record({"k": "a"})

    assert record == LogRecord(1, Encoded(PACKED.encode({"k": "a"}), "packed-1"), record.size)
    assert record.size == len(value_text({"k": "a"}, PACKED))
