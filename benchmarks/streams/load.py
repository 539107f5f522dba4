"""The load of the benchmarks of streams: pushed records, and checks of their results."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from benchmarks.harness.results import percentile
from benchmarks.harness.testbed import Bench
from benchmarks.streams.app import NOTES
from benchmarks.streams.workload import KEYS, truth
from rollforward.datastore import bodies
from rollforward.streams import Pipeline, PushedRecord
from rollforward.streams.model.errors import BackpressureError
from rollforward.streams.model.slots import first_slots
from rollforward.streams.storage.schema import Names

TIMEOUT_S = 240
# The answer to a refused push says to retry after a second. But a tick resumes paused sources, and
# there are four a second.
RETRY_AFTER_S = 0.25
PACED_S, WARM_S = 12.0, 2.0


class WrongError(Exception):
    """Records were lost or doubled."""


def push(
    bench: Bench,
    pipeline: Pipeline,
    records: Sequence[PushedRecord],
    stream: str = "in",
    **options: Any,
) -> None:
    """Push records; under backpressure repeat the push, as a client does after 429.

    Args:
        options: Further arguments of `Pipeline.push`.
    """
    ends_at = time.monotonic() + TIMEOUT_S
    while True:
        try:
            pipeline.push(bench.clients, stream, records, **options)
        except BackpressureError:
            if time.monotonic() > ends_at:
                raise
            time.sleep(RETRY_AFTER_S)
        else:
            return


def push_paced(
    bench: Bench,
    pipeline: Pipeline,
    per_s: float,
    size: int,
    start: int,
    seconds: float = PACED_S,
) -> dict[int, float]:
    """Push at a fixed rate; return the time of each record's acceptance.

    Args:
        per_s: Pushes a second, of `size` records each.
        start: The number of the first record; the others have consecutive numbers.
        seconds: The duration of the load.
    """
    began, accepted = time.time(), dict[int, float]()
    for number in range(int(per_s * seconds)):
        time.sleep(max(0.0, began + number / per_s - time.time()))
        numbers = range(start + number * size, start + (number + 1) * size)
        now_ms = int(time.time() * 1000)
        push(bench, pipeline, [numbered(n, now_ms) for n in numbers])
        accepted.update(dict.fromkeys(numbers, time.time()))
    return accepted


def numbered(number: int, at: int) -> PushedRecord:
    """Return a record with its number in its value."""
    return PushedRecord(f"{number}", {"key": f"k{number * 7919 % KEYS}", "number": number}, at)


def hops_ms(bench: Bench, accepted: dict[int, float], records: int) -> list[float]:
    """Return the times from each record's push until its result could be read.

    Records of the first seconds are left out.

    Args:
        records: The number of records so far, including this load's.

    Raises:
        WrongError: a record has no result.
    """
    readable_at = readable(bench)
    if set(readable_at) != set(range(records)):
        raise WrongError(f"{len(readable_at)} of {records} records have a result")
    begins_at = min(accepted.values()) + WARM_S
    return [
        1000 * max(0.0, readable_at[number] - at)
        for number, at in accepted.items()
        if at > begins_at
    ]


def readable(bench: Bench) -> dict[int, float]:
    """Return the time at which each record's commit had returned."""
    lines = [line.split() for path in bench.costs.glob(f"*.{NOTES}") for line in path.open()]
    return {int(number): float(at) for number, at in lines}


def until_noted(bench: Bench, records: int) -> None:
    """Wait until a number of records have a result.

    Raises:
        WrongError: results are missing after a long time.
    """
    ends_at = time.monotonic() + TIMEOUT_S
    while (count := len(readable(bench))) < records:
        if time.monotonic() > ends_at:
            raise WrongError(f"{count} of {records} records have a result")
        time.sleep(0.2)


def shares(figures: Sequence[float]) -> tuple[float, float]:
    """Return the median and the 95th percentile."""
    return percentile(figures, 0.5), percentile(figures, 0.95)


def until_collected(bench: Bench, pipeline: Pipeline, computation: str, count: int) -> None:
    """Wait until a computation has processed a number of records.

    Raises:
        WrongError: records are missing after a long time.
    """
    names, ends_at = Names(pipeline.name), time.monotonic() + TIMEOUT_S
    los: Collection[int] = first_slots(pipeline.intervals)
    keys = [bodies.Name(*names.interval(computation, lo)) for lo in los]
    while True:
        rows, _ = bodies.read(bench.clients.datastore, keys)
        if sum(json.loads(row.body)["records"] for row in rows if row is not None) >= count:
            return
        if time.monotonic() > ends_at:
            raise WrongError(f"{pipeline.name} did not finish")
        time.sleep(0.05)


def check_windows(bench: Bench, pipeline: Pipeline, count: int) -> None:
    """Compare each window with the expected count.

    Raises:
        WrongError: a window is missing, occurs twice, or has a wrong count.
    """
    states = pipeline.states(bench.clients, "collect")
    windows = [(key, *window) for key, state in states for window in state["windows"]]
    counts = Counter({(key, start): records for key, start, records in windows})
    if len(windows) != len(counts) or counts != truth(count):
        raise WrongError(f"{pipeline.name}: the counts do not match its records")
