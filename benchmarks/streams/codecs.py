"""Values as JSON compared with bytes of a codec: rates of a worker, and bytes stored.

A record is a line of an access log. It passes through a stage into a count, both in this process;
the time of its push counts, too. The codec uses the standard library's `struct`, with texts after
the numbers, as in Avro. Only the emulator runs at the same time.
"""

from __future__ import annotations

import statistics
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.harness.results import Result
from benchmarks.streams.load import WrongError
from benchmarks.streams.lone_clients import lone_clients
from benchmarks.streams.workload import FIRST_MS
from rollforward.datastore import bodies
from rollforward.runtime import Clients
from rollforward.streams import Computation, Context, Pipeline, PushedRecord, Record
from rollforward.streams.driver import Engine
from rollforward.streams.graph.environment import StreamConfig
from rollforward.streams.model.codecs import ValueCodec
from rollforward.streams.storage.schema import CHUNK
from rollforward.streams.workers.worker import Worker

RECORDS, BATCH, ROUNDS = 5_000, 500, 5
FIELDS = ("path", "agent", "status", "bytes", "took_ms", "at_ms", "user", "latitude", "longitude")
_NUMBERS = struct.Struct("<HIIqIddHH")


def by_path(line: Mapping[str, Any]) -> str:
    return str(line["path"])


class LineCodec:
    """Encodes a line as its numbers, the lengths of its texts, and its texts."""

    name = "line-1"

    def encode(self, value: Mapping[str, Any]) -> bytes:
        path, agent, *numbers = (value[field] for field in FIELDS)
        texts = path.encode(), agent.encode()
        return _NUMBERS.pack(*numbers, *map(len, texts)) + b"".join(texts)

    def decode(self, data: bytes) -> dict[str, Any]:
        *numbers, path_bytes, _ = _NUMBERS.unpack_from(data)
        texts = data[_NUMBERS.size :]
        path, agent = texts[:path_bytes].decode(), texts[path_bytes:].decode()
        return dict(zip(FIELDS, (path, agent, *numbers), strict=True))


class Pass(Computation):
    """Passes each line on."""

    inputs = {"in": by_path}  # noqa: RUF012 - As its users write it.
    outputs = ("passed",)

    def record(self, ctx: Context, record: Record) -> None:
        ctx.produce("passed", record.value)


class Count(Computation):
    """Adds up the bytes of a path."""

    inputs = {"passed": by_path}  # noqa: RUF012 - As its users write it.

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.counter("bytes").add(record.value["bytes"])


@dataclass(frozen=True)
class Spent:
    """The cost of a record: seconds, seconds of this process, and bytes of its rows."""

    seconds: float
    cpu_s: float
    stored: float


def measure() -> Iterator[Result]:
    """Measure both in turn and yield the comparisons."""
    with lone_clients() as clients:
        spent: dict[str, list[Spent]] = {"json": [], "struct": []}
        for round_ in range(ROUNDS + 1):
            for name, costs in spent.items():
                codec = LineCodec() if name == "struct" else None
                cost = _spent(clients, f"codec-{name}-{round_}", codec)
                if round_:  # The first round warms up.
                    costs.append(cost)
    medians = {name: _median(costs) for name, costs in spent.items()}
    for name, cost in medians.items():
        versus = f"lines of a log as {name}, through two computations"
        prefix = f"streams_growth.values_{name}"
        yield Result(f"{prefix}_per_s", 1 / cost.seconds, "records a second", versus)
        yield Result(f"{prefix}_cpu_us", 1e6 * cost.cpu_s, "us a record", versus)
        yield Result(f"{prefix}_bytes", cost.stored, "bytes a record in an inbox", versus)
    json, packed = medians["json"], medians["struct"]
    for name, ratio in (
        ("cpu", json.cpu_s / packed.cpu_s),
        ("bytes", json.stored / packed.stored),
    ):
        yield Result(f"streams_growth.values_json_versus_struct_{name}", ratio, "ratio", "struct")


def _median(spent: Sequence[Spent]) -> Spent:
    return Spent(
        statistics.median(cost.seconds for cost in spent),
        statistics.median(cost.cpu_s for cost in spent),
        statistics.median(cost.stored for cost in spent),
    )


def _spent(clients: Clients, name: str, codec: ValueCodec | None) -> Spent:
    """Push lines to a new pipeline, and run its workers; return the cost of a line."""
    codecs = {} if codec is None else {"in": codec, "passed": codec}
    pipeline = Pipeline(name, Pass, Count, intervals=1, codecs=codecs)
    lines = [_line(number) for number in range(RECORDS)]
    pushed = [PushedRecord(f"{n}", line, FIRST_MS + n) for n, line in enumerate(lines)]
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    for start in range(0, RECORDS, BATCH):
        pipeline.push(clients, "in", pushed[start : start + BATCH])
    pushed_s, pushed_cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    stored = _stored(clients, name)
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    for computation in ("pass", "count"):
        engine = Engine(clients, pipeline, StreamConfig(linger=(), gather_s=0))
        engine.run(Worker(engine.environment, computation, 0).run())
    seconds = pushed_s + time.perf_counter() - began_s
    cpu_s = pushed_cpu_s + time.process_time() - began_cpu_s
    counted = sum(state["bytes"] for _, state in pipeline.states(clients, "count"))
    if counted != sum(line["bytes"] for line in lines):
        raise WrongError(f"{name} has counted {counted} bytes")
    return Spent(seconds / RECORDS, cpu_s / RECORDS, stored / RECORDS)


def _stored(clients: Clients, pipeline: str) -> int:
    """Return the size of all chunks of a pipeline."""
    rows = bodies.scan(clients.datastore, CHUNK, f"{pipeline}:", f"{pipeline};", RECORDS)
    return sum(len(row.body) for row in rows)


def _line(number: int) -> dict[str, Any]:
    drawn = number * 7919 % 10_007
    values = (
        f"/shop/articles/{drawn % 50}",
        "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0",
        (200, 200, 304, 404)[drawn % 4],
        drawn * 13,
        drawn % 900,
        FIRST_MS + number,
        drawn,
        48.0 + drawn / 7_001,
        11.0 + drawn / 9_001,
    )
    return dict(zip(FIELDS, values, strict=True))
