"""Functions of an app that end by what is no Exception: their record is a dead letter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from rollforward.runtime import Clients
from rollforward.streams import (
    Computation,
    Context,
    Pipeline,
    PushedRecord,
    Record,
    StreamTest,
    Timer,
)
from rollforward.streams.connectors.readers import file, lines
from rollforward.streams.model.sink import Sink, SinkRecord
from tests.infra.world import Services
from tests.rollforward.streams.harness import stream_world
from tests.rollforward.tasks.reminders import one_emulator

pytestmark = pytest.mark.fast

ENDING: list[type[BaseException]] = []


class TimedOut(BaseException):
    """As packages have it that limit the time of a call."""


@pytest.fixture(params=[SystemExit, TimedOut], ids=lambda ending: ending.__name__)
def error(request: pytest.FixtureRequest) -> Iterator[str]:
    """Return how an operator sees the error by which functions of the app end in a test."""
    ENDING.append(request.param)
    yield f"{request.param.__name__}: 2"
    ENDING.clear()


def exit_at(place: str, value: Any) -> Any:
    if value["exits"] == place:
        raise ENDING[-1](2)
    return value


class Exiting(Computation):
    """Counts records; some exit at a place."""

    inputs: ClassVar = {"in": lambda value: exit_at("key", value)["k"]}
    outputs = ("out",)

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.counter("records").add()
        ctx.set_timer(record.value["exits"], record.timestamp_ms + 10)
        exit_at("record", record.value)

    def timer(self, ctx: Context, timer: Timer) -> None:
        exit_at("timer", {"exits": timer.tag})


class Exits(Sink):
    """Keeps what it writes; some records exit at a place."""

    written: ClassVar[list[str]] = []

    def make(self, record: SinkRecord) -> Any:
        return exit_at("make", record.value)

    def write(self, clients: Clients, values: Sequence[Any]) -> None:
        self.written += [exit_at("write", value)["k"] for value in values]


class PackedCodec:
    """JSON, of which some exits."""

    name = "packed-1"

    def encode(self, value: Any) -> bytes:
        return str(exit_at("encode", value)["k"]).encode()

    def decode(self, data: bytes) -> Any:
        return exit_at("decode", {"k": data.decode(), "exits": data.decode()})


@pytest.mark.parametrize("place", ["key", "record", "timer"])
def test_a_hook_or_key_function_that_exits_is_a_dead_letter(place: str, error: str) -> None:
    """A: it is undone alone, and the records beside it count."""
    test = StreamTest(Pipeline("exiting", Exiting))
    test.push_all("in", [({"k": "a", "exits": exits}, 1) for exits in ("no", place, "never")])
    test.close()

    assert [failure.error for _, failure in test.dead] == [
        f"no key: {error}" if place == "key" else error
    ]
    assert test.state("exiting", "a") == {"records": 3 if place == "timer" else 2}


def test_a_codec_that_exits_makes_a_dead_letter(error: str) -> None:
    test = StreamTest(Pipeline("packing", Exiting, codecs={"in": PackedCodec()}))
    with pytest.raises(ValueError, match=f"must be encoded by packed-1: {error}"):
        test.push("in", {"k": "a", "exits": "encode"}, 1)
    test.push("in", {"k": "decode", "exits": ""}, 1)

    assert [failure.error for _, failure in test.dead] == [
        f"packed-1 cannot decode the value: {error}"
    ]


def test_a_line_whose_function_exits_lets_the_source_go_on(tmp_path: Path, error: str) -> None:
    """A: the source stood still for good."""

    def parse(line: bytes) -> tuple[str, int]:
        if line == b"2":
            raise ENDING[-1](2)
        return line.decode(), 0

    path = tmp_path / "log"
    path.write_bytes(b"1\n2\n3\n")
    first, unreadable, last = lines(file(path), parse)(None, None, 10).records  # type: ignore[arg-type]

    assert (first, last) == (("1", 0), ("3", 0))
    assert unreadable.error == error  # type: ignore[union-attr]


@one_emulator
@pytest.mark.parametrize("place", ["make", "write"])
def test_a_sink_that_exits_writes_the_other_records(
    services: Services, place: str, error: str
) -> None:
    """A: the records waited for five leases, as if five workers had died."""
    Exits.written.clear()
    pipeline = Pipeline("exits", sinks=[Exits("in", name="exits")])
    world = stream_world(services, pipeline)
    with world.context():
        pushed = [{"k": k, "exits": place if k == "b" else ""} for k in "abc"]
        records = [PushedRecord(value["k"], value, 1) for value in pushed]
        pipeline.push(world.clients, "in", records)
    world.settle()
    with world.context():
        [dead] = pipeline.dead_letters(world.clients)

    assert (dead.value["k"], dead.error.removeprefix("NotAnExceptionError: ")) == ("b", error)
    assert {*Exits.written} == {"a", "c"}
