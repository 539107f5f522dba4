"""The load of the benchmarks of streams: records that are pushed, and what became of each."""

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
# The answer to a push that is refused says to come again in a second; who is held is let go by a
# tick, of which there are four a second.
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
    """Push records; when the source has to wait push the same again, as a client does after 429.

    Args:
        options: Of `Pipeline.push`.
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
    first: int,
    seconds: float = PACED_S,
) -> dict[int, float]:
    """Push for some time; return when each record was accepted.

    Args:
        per_s: How many pushes there are each second, of `size` records each.
        first: The number of the first record; each has the next one.
        seconds: For how long.
    """
    began, accepted = time.time(), dict[int, float]()
    for number in range(int(per_s * seconds)):
        time.sleep(max(0.0, began + number / per_s - time.time()))
        numbers = range(first + number * size, first + (number + 1) * size)
        now_ms = int(time.time() * 1000)
        push(bench, pipeline, [numbered(n, now_ms) for n in numbers])
        accepted.update(dict.fromkeys(numbers, time.time()))
    return accepted


def numbered(number: int, at: int) -> PushedRecord:
    """Return a record that says its number."""
    return PushedRecord(f"{number}", {"key": f"k{number * 7919 % KEYS}", "number": number}, at)


def hops_ms(bench: Bench, accepted: dict[int, float], records: int) -> list[float]:
    """Return how long after its push each record's result could be read, without the first ones.

    Args:
        records: How many there were so far, this load's among them.

    Raises:
        WrongError: there is not a result of each.
    """
    found = readable(bench)
    if set(found) != set(range(records)):
        raise WrongError(f"{len(found)} records of {records} have a result")
    begins_at = min(accepted.values()) + WARM_S
    return [
        1000 * max(0.0, found[number] - at) for number, at in accepted.items() if at > begins_at
    ]


def readable(bench: Bench) -> dict[int, float]:
    """Return when the commit of each record had returned."""
    lines = [line.split() for path in bench.costs.glob(f"*.{NOTES}") for line in path.open()]
    return {int(number): float(at) for number, at in lines}


def until_noted(bench: Bench, records: int) -> None:
    """Wait until there is a result of so many records.

    Raises:
        WrongError: there is not, after a long time.
    """
    ends_at = time.monotonic() + TIMEOUT_S
    while (found := len(readable(bench))) < records:
        if time.monotonic() > ends_at:
            raise WrongError(f"{found} records of {records} have a result")
        time.sleep(0.2)


def shares(figures: Sequence[float]) -> tuple[float, float]:
    """Return the median, and what 95 % do not exceed."""
    return percentile(figures, 0.5), percentile(figures, 0.95)


def until_collected(bench: Bench, pipeline: Pipeline, computation: str, count: int) -> None:
    """Wait until a computation has had so many records.

    Raises:
        WrongError: it has not, after a long time.
    """
    names, ends_at = Names(pipeline.name), time.monotonic() + TIMEOUT_S
    los: Collection[int] = first_slots(pipeline.intervals)
    keys = [bodies.Name(*names.interval(computation, lo)) for lo in los]
    while True:
        found, _ = bodies.read(bench.clients.datastore, keys)
        if sum(json.loads(row.body)["records"] for row in found if row is not None) >= count:
            return
        if time.monotonic() > ends_at:
            raise WrongError(f"{pipeline.name} does not come to its end")
        time.sleep(0.05)


def check_windows(bench: Bench, pipeline: Pipeline, count: int) -> None:
    """Compare each window with the truth.

    Raises:
        WrongError: a window is missing, comes twice, or has another count.
    """
    states = pipeline.states(bench.clients, "collect")
    found = [(key, *each) for key, state in states for each in state["windows"]]
    counts = Counter({(key, start): records for key, start, records in found})
    if len(found) != len(counts) or counts != truth(count):
        raise WrongError(f"{pipeline.name}: the counts are not those of its records")
