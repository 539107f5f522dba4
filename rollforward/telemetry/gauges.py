"""Gauges of patterns as metrics of OpenTelemetry, by its API.

A gauge is read from Datastore, the same for all processes, so not each of them reads it. The
process that has answered a sweep reads the gauges and exports them until another one has surely
done so. Without an SDK for metrics nothing is read.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

# A sweep comes each minute, and an SDK exports once a minute by default.
FRESH_S = 90.0


class Reading(Protocol):
    """A gauge with its value, as a pattern has read it."""

    @property
    def name(self) -> str: ...

    @property
    def help(self) -> str: ...

    @property
    def value(self) -> float: ...

    @property
    def labels(self) -> Mapping[str, str]: ...


class GaugeExport:
    """The last readings of this process, exported by the SDK of the app as long as they are new."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._readings: dict[str, tuple[float, list[Reading]]] = {}
        self._exported: set[str] = set()

    @property
    def is_on(self) -> bool:
        """Whether the app has set up an SDK for metrics."""
        api = sys.modules.get("opentelemetry.metrics")
        if api is None or not hasattr(api, "get_meter_provider"):
            return False
        # The API's own providers measure nothing.
        provider = type(api.get_meter_provider())
        return not provider.__module__.startswith("opentelemetry.metrics")

    def record(self, readings: Iterable[Reading]) -> None:
        """Export readings from now on, in the place of those of the same names."""
        now_s = self._monotonic()
        by_name: dict[str, list[Reading]] = {}
        for reading in readings:
            by_name.setdefault(reading.name, []).append(reading)
        for name, same in by_name.items():
            self._readings[name] = now_s, same
            if name not in self._exported:
                self._exported.add(name)
                self._create(same[0])

    def _create(self, reading: Reading) -> None:
        api: Any = sys.modules["opentelemetry.metrics"]
        name = reading.name

        def observe(options: Any) -> Iterator[Any]:
            at_s, readings = self._readings[name]
            if self._monotonic() - at_s < FRESH_S:
                for one in readings:
                    yield api.Observation(one.value, dict(one.labels))

        api.get_meter("rollforward").create_observable_gauge(
            f"rollforward.{name}",
            callbacks=[observe],
            unit="s" if name.endswith("_seconds") else "1",
            description=reading.help,
        )
