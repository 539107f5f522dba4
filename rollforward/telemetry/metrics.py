"""Metrics of deliveries, by task and queue, and of remote calls that fail.

They are counted in the process's memory and cost no remote call. `/metrics` has them as histograms
and counters of Prometheus, summed over the workers of one instance and labelled with it. If the
app has loaded OpenTelemetry, each delivery is recorded by its API, too. A task that waited in a
lane counts under its own path and the lane's queue, beside the delivery that ran it.
"""

from __future__ import annotations

import bisect
import enum
import os
import sys
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollforward.telemetry.cells import Cells

# Upper bounds in seconds, from a quick handler to the longest deadline of a dispatch.
BOUNDS_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 600, 1_800)
OTHERS = "(others)"
OTHERS_BYTES = 4096  # The room of their rows: one for each outcome, and two of buckets.
UNKNOWN = "(unknown)"  # The path of no declared task; paths of strangers make no series.
MAX_LABEL_CHARS = 200


class Outcome(enum.StrEnum):
    """The ways in which a delivery ends."""

    DONE = "done"
    FAILED = "failed"
    DEAD = "dead"
    LOST_RACE = "lost_race"
    WAITING = "waiting"
    OTHER_VERSION = "other_version"
    UNAVAILABLE = "unavailable"
    BACKED_OFF = "backed_off"


@dataclass(frozen=True)
class Family:
    """The samples of one name."""

    name: str
    help: str
    kind: str
    labels: tuple[str, ...] = ("task", "queue")


DELAY = Family(
    "task_delay_seconds", "Time from when a task was due until its delivery began.", "histogram"
)
DURATION = Family("task_duration_seconds", "Duration of a delivery in the app.", "histogram")
DELIVERIES = Family(
    "task_deliveries_total",
    "Deliveries of tasks by their outcome.",
    "counter",
    ("task", "queue", "outcome"),
)
FAILED_CALLS = Family(
    "failed_calls_total",
    "Calls of Datastore and Cloud Tasks that failed, by method and status code.",
    "counter",
    ("service", "method", "code"),
)
FAMILIES = (DELAY, DURATION, DELIVERIES, FAILED_CALLS)


class TaskMetrics:
    """The metrics of an instance, and the part of them that this process counts."""

    def __init__(self, folder: str | None = None, *, instance: str = "") -> None:
        """Begin to count.

        Args:
            folder: The folder that the workers of the instance share.
            instance: The name of the instance; "": one is chosen.
        """
        self._cells = Cells(folder)
        self.instance = instance or instance_of(folder)
        self._recorder = _OpenTelemetry()

    def note(
        self, task: str, queue: str, outcome: Outcome, *, delay_s: float | None, duration_s: float
    ) -> None:
        """Count one delivery.

        Args:
            delay_s: Its delay; None: the queue did not say when it was due.
        """
        task, queue = task[:MAX_LABEL_CHARS], queue[:MAX_LABEL_CHARS]
        duration_s = max(0.0, duration_s)
        self._count(DELIVERIES, (task, queue, outcome.value), ((0, 1.0),), 1)
        self._observe(DURATION, (task, queue), duration_s)
        if delay_s is not None:
            delay_s = max(0.0, delay_s)
            self._observe(DELAY, (task, queue), delay_s)
        self._recorder.note(task, queue, outcome, delay_s, duration_s)

    def note_failed_call(self, failure: tuple[str, str, str]) -> None:
        """Count a remote call that failed: its service, its method and its status code."""
        self._count(FAILED_CALLS, failure, ((0, 1.0),), 1)
        self._recorder.note_failed_call(failure)

    def lines(self) -> Iterator[str]:
        """Yield the samples of the instance in the text format of Prometheus."""
        sums = sorted(self._cells.sums().items())
        for family in FAMILIES:
            rows = [(key[1:], numbers) for key, numbers in sums if key[0] == family.name]
            if not rows:
                continue
            yield f"# HELP {family.name} {family.help}"
            yield f"# TYPE {family.name} {family.kind}"
            for key, numbers in rows:
                labels = dict(zip(family.labels, key, strict=True))
                labels["app_instance"] = self.instance
                if family.kind == "counter":
                    yield _sample(family.name, labels, numbers[0])
                else:
                    yield from _histogram(family.name, labels, numbers)

    def _observe(self, family: Family, labels: tuple[str, ...], seconds: float) -> None:
        """Add an observation: a count for each bucket, one above all bounds, and the sum."""
        bucket = bisect.bisect_left(BOUNDS_S, seconds)
        amounts = ((bucket, 1.0), (len(BOUNDS_S) + 1, seconds))
        self._count(family, labels, amounts, len(BOUNDS_S) + 2)

    def _count(
        self,
        family: Family,
        labels: tuple[str, ...],
        amounts: tuple[tuple[int, float], ...],
        count: int,
    ) -> None:
        key = (family.name, *labels)
        if not self._cells.add(key, amounts, count, reserved_bytes=OTHERS_BYTES):
            self._cells.add((family.name, OTHERS, OTHERS, *labels[2:]), amounts, count)


class _OpenTelemetry:
    """Recorder by OpenTelemetry's API, from when the app has loaded it; before that it is idle."""

    def __init__(self) -> None:
        self._instruments: _Instruments | None = None

    def note(
        self, task: str, queue: str, outcome: Outcome, delay_s: float | None, duration_s: float
    ) -> None:
        instruments = self._opened()
        if instruments is None:
            return
        labels = {"task": task, "queue": queue}
        if delay_s is not None:
            instruments.delay.record(delay_s, labels)
        instruments.duration.record(duration_s, labels)
        instruments.deliveries.add(1, {**labels, "outcome": outcome.value})

    def note_failed_call(self, labels: tuple[str, ...]) -> None:
        if (instruments := self._opened()) is not None:
            instruments.failed_calls.add(1, dict(zip(FAILED_CALLS.labels, labels, strict=True)))

    def _opened(self) -> _Instruments | None:
        api = sys.modules.get("opentelemetry.metrics")
        if self._instruments is None and hasattr(api, "get_meter"):
            self._instruments = _Instruments.of(api)
        return self._instruments


@dataclass(frozen=True)
class _Instruments:
    """The instruments of OpenTelemetry, one for each family."""

    delay: Any
    duration: Any
    deliveries: Any
    failed_calls: Any

    @classmethod
    def of(cls, api: Any) -> _Instruments:
        """Make them with the API of metrics."""
        meter = api.get_meter("rollforward")
        return cls(
            meter.create_histogram("rollforward.task.delay", "s", DELAY.help),
            meter.create_histogram("rollforward.task.duration", "s", DURATION.help),
            meter.create_counter("rollforward.task.deliveries", "1", DELIVERIES.help),
            meter.create_counter("rollforward.failed_calls", "1", FAILED_CALLS.help),
        )


def instance_of(folder: str | None) -> str:
    """Return the name of this instance: App Engine's, its folder's, or a random one."""
    if name := os.environ.get("GAE_INSTANCE"):
        return name[-16:]
    return Path(folder).name.rpartition("-")[2] if folder else uuid.uuid4().hex[:8]


def _histogram(name: str, labels: Mapping[str, str], numbers: list[float]) -> Iterator[str]:
    *buckets, total = numbers
    count = 0.0
    for bound, in_bucket in zip((*map(str, BOUNDS_S), "+Inf"), buckets, strict=True):
        count += in_bucket
        yield _sample(f"{name}_bucket", {**labels, "le": bound}, count)
    yield _sample(f"{name}_sum", labels, total)
    yield _sample(f"{name}_count", labels, count)


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    pairs = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
    return f"{name}{{{pairs}}} {value:.15g}"


def _escaped(text: str) -> str:
    text = text.encode(errors="backslashreplace").decode()
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
