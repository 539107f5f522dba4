"""The same windowed count on Bytewax, in one process, with its state in SQLite.

The file is in memory if the system has a folder for that, like the data of the Datastore emulator,
so neither side waits for a disk.

A program in an environment of its own (requirements-rivals.txt). It prints as JSON the seconds of
each run, from the first record to the end of the flow, and fails if a count is not exact.

    python benchmarks/streams/rivals.py EPOCH_S STAGES BATCH RECORDS ROUNDS
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import bytewax.operators as op
import bytewax.operators.windowing as win
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.testing import run_main
from streams_workload import DISORDER_MS, FIRST_MS, WINDOW_MS, Event, events, truth

# A file system in memory, on Linux.
MEMORY = Path("/dev/shm")
ALIGN_TO = datetime.fromtimestamp(FIRST_MS / 1000, UTC)
Counts = dict[tuple[str, int], int]


class Partition(StatefulSourcePartition[Event, int]):
    """The records from a position on, in batches."""

    def __init__(self, records: list[Event], batch: int, position: int | None) -> None:
        self.records, self.batch, self.position = records, batch, position or 0

    def next_batch(self) -> list[Event]:
        if self.position >= len(self.records):
            raise StopIteration
        batch = self.records[self.position : self.position + self.batch]
        self.position += len(batch)
        return batch

    def snapshot(self) -> int:
        return self.position


class Source(FixedPartitionedSource[Event, int]):
    """A source with one partition."""

    def __init__(self, records: list[Event], batch: int) -> None:
        self.records, self.batch = records, batch

    def list_parts(self) -> list[str]:
        return ["all"]

    def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> Partition:
        return Partition(self.records, self.batch, resume_state)


class Written(StatelessSinkPartition[tuple[str, tuple[int, int]]]):
    """Collects results, for the check."""

    def __init__(self, counts: Counts) -> None:
        self.counts = counts

    def write_batch(self, items: list[tuple[str, tuple[int, int]]]) -> None:
        for key, (window, count) in items:
            start = FIRST_MS + window * WINDOW_MS
            if (key, start) in self.counts:
                raise RuntimeError(f"the window {start} of {key} was written twice")
            self.counts[key, start] = count


class Sink(DynamicSink[tuple[str, tuple[int, int]]]):
    """Writes results to one dict."""

    def __init__(self, counts: Counts) -> None:
        self.counts = counts

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Written:
        return Written(self.counts)


def pass_on(seen: int | None, event: Event) -> tuple[int, list[Event]]:
    """Count a key's records, and pass each on."""
    return (seen or 0) + 1, [event]


def flow(records: list[Event], batch: int, stages: int, counts: Counts) -> Dataflow:
    """Return the count after stages that keep a state for each key and pass every record on."""
    dataflow = Dataflow("count")
    stream: Any = op.input("in", dataflow, Source(records, batch))
    for stage in range(1, stages):
        keyed = op.key_on(f"key-{stage}", stream, lambda event: event.key)
        stream = op.key_rm(f"value-{stage}", op.stateful_flat_map(f"pass-{stage}", keyed, pass_on))
    clock = win.EventClock(
        ts_getter=lambda event: datetime.fromtimestamp(event.at / 1000, UTC),
        wait_for_system_duration=timedelta(milliseconds=DISORDER_MS),
        # By default each activation wakes every key, which is a hundred times slower here.
        to_system_utc=lambda at: None,
    )
    windower = win.TumblingWindower(length=timedelta(milliseconds=WINDOW_MS), align_to=ALIGN_TO)
    windows = win.count_window("count", stream, clock, windower, key=lambda event: event.key)
    op.output("out", windows.down, Sink(counts))
    return dataflow


def run(records: list[Event], epoch_s: float, stages: int, batch: int) -> tuple[float, Counts]:
    """Run the flow once; return its seconds and its counts."""
    counts: Counts = {}
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        init_db_dir(Path(folder), 1)
        dataflow = flow(records, batch, stages, counts)
        began = time.perf_counter()
        run_main(
            dataflow,
            epoch_interval=timedelta(seconds=epoch_s),
            recovery_config=RecoveryConfig(folder),
        )
        return time.perf_counter() - began, counts


def main() -> None:
    """Run the rounds, and print their seconds."""
    epoch_s = float(sys.argv[1])
    stages, batch, count, rounds = map(int, sys.argv[2:])
    seconds = []
    for _ in range(rounds):
        took_s, counts = run(list(events(count)), epoch_s, stages, batch)
        if Counter(counts) != truth(count):
            raise RuntimeError("Bytewax lost or doubled records")
        seconds.append(took_s)
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()
