"""Gauges by OpenTelemetry: of every pattern, after a sweep, as long as they are new."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rollforward.tasks.pattern import Gauge
from rollforward.telemetry.gauges import FRESH_S, GaugeExport
from tests.infra.world import Services, World

metrics = pytest.importorskip("opentelemetry.metrics")
sdk = pytest.importorskip("opentelemetry.sdk.metrics")
export = pytest.importorskip("opentelemetry.sdk.metrics.export")


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Set up an SDK that keeps its metrics in memory."""
    memory = export.InMemoryMetricReader()
    provider = sdk.MeterProvider(metric_readers=[memory])
    # `set_meter_provider` works once in a process.
    monkeypatch.setattr(metrics, "get_meter_provider", lambda: provider)
    monkeypatch.setattr(metrics, "get_meter", provider.get_meter)
    yield memory
    provider.shutdown()


def exported(reader: Any) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Return what the SDK would export now, by name."""
    data = reader.get_metrics_data()
    scopes = [s for r in data.resource_metrics for s in r.scope_metrics] if data else []
    return {
        metric.name: [(dict(point.attributes), point.value) for point in metric.data.data_points]
        for scope in scopes
        for metric in scope.metrics
    }


@pytest.mark.fast
def test_readings_are_exported_as_long_as_they_are_new(reader: Any) -> None:
    """Those of a later sweep take their place, with the labels that are left."""
    clock = [1_000.0]
    gauges = GaugeExport(lambda: clock[0])
    gauges.record(
        [
            Gauge("lanes_waiting", "x", 3, {"lane": "a"}),
            Gauge("lanes_waiting", "x", 4, {"lane": "b"}),
        ]
    )
    both = exported(reader)
    gauges.record([Gauge("lanes_waiting", "x", 5, {"lane": "b"})])
    one = exported(reader)
    clock[0] += FRESH_S
    old = exported(reader)

    assert both == {"rollforward.lanes_waiting": [({"lane": "a"}, 3), ({"lane": "b"}, 4)]}
    assert one == {"rollforward.lanes_waiting": [({"lane": "b"}, 5)]}
    assert not any(old.values())


def test_a_sweep_exports_the_gauges_of_every_pattern(services: Services, reader: Any) -> None:
    """As /metrics has them, with their units."""
    world = World(services)
    world.call_cron("/cron/sweep")
    with world.context():
        expected = {f"rollforward.{gauge.name}" for gauge in world.registry.gauges(world.clients)}

    assert {*exported(reader)} == expected
    assert len(expected) > 20


def test_a_pattern_whose_gauges_cannot_be_read_takes_no_other_along(
    services: Services, reader: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it fail the sweep."""
    world = World(services)

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(world.registry.patterns["outbox"], "gauges", fail)

    assert world.call_cron("/cron/sweep") == 200
    names = {*exported(reader)}
    assert "rollforward.dead_tasks_open" in names
    assert "rollforward.outbox_waiting" not in names


def test_without_an_sdk_a_sweep_reads_no_gauges(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They cost reads."""
    world = World(services)

    def fail(*_: object) -> None:
        pytest.fail("gauges were read")

    for pattern in world.registry.patterns.values():
        monkeypatch.setattr(pattern, "gauges", fail)

    assert world.call_cron("/cron/sweep") == 200
    with pytest.raises(pytest.fail.Exception):
        list(world.registry.gauges(world.clients))
