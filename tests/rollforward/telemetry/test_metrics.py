"""Metrics of deliveries: buckets, labels, bounds, and the same by OpenTelemetry."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from rollforward.telemetry.metrics import BOUNDS_S, OTHERS, Outcome, TaskMetrics

pytestmark = pytest.mark.fast


def noted(*deliveries: tuple[str, Outcome, float | None, float]) -> dict[str, float]:
    """Return the samples after some deliveries, by name and labels."""
    metrics = TaskMetrics(instance="i1")
    for task, outcome, delay_s, duration_s in deliveries:
        metrics.note(task, "default", outcome, delay_s=delay_s, duration_s=duration_s)
    return samples(metrics)


def samples(metrics: TaskMetrics) -> dict[str, float]:
    lines = [line for line in metrics.lines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def bucket(bound: str, name: str = "task_delay_seconds") -> str:
    labels = f'task="/tasks/a",queue="default",app_instance="i1",le="{bound}"'
    return f"{name}_bucket{{{labels}}}"


LABELS = '{task="/tasks/a",queue="default",app_instance="i1"}'


def test_an_app_without_deliveries_has_no_samples() -> None:
    """And no names without samples."""
    assert noted() == {}


def test_a_histogram_adds_up() -> None:
    """Each bucket holds those below it; the last one, the count and the sum hold all."""
    done = Outcome.DONE
    found = noted(
        ("/tasks/a", done, 0.01, 1), ("/tasks/a", done, 0.2, 1), ("/tasks/a", done, 9_999, 1)
    )

    assert [found[bucket(bound)] for bound in ("0.01", "0.1", "0.25", "1800", "+Inf")] == [
        *(1, 1, 2, 2, 3),
    ]
    assert found[f"task_delay_seconds_count{LABELS}"] == 3
    assert found[f"task_delay_seconds_sum{LABELS}"] == pytest.approx(9_999.21)
    assert found[f"task_duration_seconds_sum{LABELS}"] == 3


@pytest.mark.parametrize("bound", BOUNDS_S)
def test_a_bound_belongs_to_its_bucket(bound: float) -> None:
    """As Prometheus has it: less or equal."""
    assert noted(("/tasks/a", Outcome.DONE, bound, 1))[bucket(str(bound))] == 1


def test_outcomes_are_counted_apart() -> None:
    """By task, queue and outcome."""
    found = noted(*[("/tasks/a", outcome, None, 0.1) for outcome in (*Outcome, Outcome.DONE)])

    counts = {name: value for name, value in found.items() if "deliveries" in name}
    assert len(counts) == len(Outcome)
    done = 'task="/tasks/a",queue="default",outcome="done",app_instance="i1"'
    assert counts[f"task_deliveries_total{{{done}}}"] == 2
    assert not any("delay" in name for name in found)


def test_failed_calls_are_counted_apart() -> None:
    """By service, method and status code."""
    metrics = TaskMetrics(instance="i1")
    for code in ("UNAVAILABLE", "ABORTED", "UNAVAILABLE"):
        metrics.note_failed_call(("Datastore", "Commit", code))

    labels = 'service="Datastore",method="Commit",code="{}",app_instance="i1"'
    assert samples(metrics) == {
        f"failed_calls_total{{{labels.format('UNAVAILABLE')}}}": 2,
        f"failed_calls_total{{{labels.format('ABORTED')}}}": 1,
    }


def test_a_clock_that_is_behind_makes_no_negative_delay() -> None:
    """The queue's clock is another machine's."""
    assert noted(("/tasks/a", Outcome.DONE, -5, -1))[f"task_delay_seconds_sum{LABELS}"] == 0


def test_labels_are_escaped_and_bounded() -> None:
    """A name cannot end its line, nor fill a page."""
    found = noted(('/tasks/"\n\\\ud83d' + "x" * 10_000, Outcome.DONE, 1, 1))

    assert all("\n" not in name and len(name) < 400 for name in found)
    assert any('\\"\\n\\\\' in name for name in found)


def test_a_thousand_tasks_too_many_are_counted_together() -> None:
    """Memory and page stay bounded, and no delivery is lost."""
    metrics = TaskMetrics(instance="i1")
    for number in range(10_000):
        metrics.note(f"/tasks/{number}", "default", Outcome.DONE, delay_s=1, duration_s=1)

    found = samples(metrics)
    counts = [value for name, value in found.items() if "deliveries" in name]
    assert sum(counts) == 10_000
    assert max(counts) > 1_000
    assert len(counts) < 5_000
    for outcome in Outcome:
        metrics.note("/tasks/one-more", "default", outcome, delay_s=1, duration_s=1)
    after = samples(metrics)
    assert len([name for name in after if OTHERS in name and "deliveries" in name]) == len(Outcome)
    assert sum(value for name, value in after.items() if "deliveries" in name) == 10_000 + len(
        Outcome
    )


def otel(script: str) -> str:
    """Run a script in a process of its own, and return what it prints."""
    code = (
        "import sys\nfrom rollforward.telemetry.metrics import Outcome, TaskMetrics\n"
        "metrics = TaskMetrics()\n"
        "def note(): metrics.note('/tasks/a', 'q', Outcome.DONE, delay_s=2, duration_s=1)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code + script], capture_output=True, text=True, check=True
    )
    return run.stdout.strip()


def test_opentelemetry_is_not_loaded_for_it() -> None:
    """An app without it pays for no import."""
    assert otel("note(); print('opentelemetry.metrics' in sys.modules)") == "False"


def test_opentelemetry_gets_what_prometheus_gets() -> None:
    """By its API; the SDK is the app's, and may be set up later."""
    pytest.importorskip("opentelemetry.sdk.metrics")
    printed = otel(
        "from opentelemetry import metrics as api\n"
        "note()\n"
        "from opentelemetry.sdk.metrics import MeterProvider\n"
        "from opentelemetry.sdk.metrics.export import InMemoryMetricReader\n"
        "reader = InMemoryMetricReader()\n"
        "api.set_meter_provider(MeterProvider(metric_readers=[reader]))\n"
        "note(); note()\n"
        "metrics.note_failed_call(('Datastore', 'Commit', 'UNAVAILABLE'))\n"
        "data = reader.get_metrics_data().resource_metrics[0].scope_metrics[0]\n"
        "for metric in data.metrics:\n"
        "    [point] = metric.data.data_points\n"
        "    print(metric.name, getattr(point, 'count', None) or point.value,\n"
        "          dict(point.attributes))\n"
    )

    labels = "'task': '/tasks/a', 'queue': 'q'"
    assert printed.splitlines() == [
        f"rollforward.task.delay 2 {{{labels}}}",
        f"rollforward.task.duration 2 {{{labels}}}",
        f"rollforward.task.deliveries 2 {{{labels}, 'outcome': 'done'}}",
        "rollforward.failed_calls 1 "
        "{'service': 'Datastore', 'method': 'Commit', 'code': 'UNAVAILABLE'}",
    ]


def test_a_metric_of_another_kind_of_module_is_no_api(monkeypatch: Any) -> None:
    """Something called so that has no meters."""
    monkeypatch.setitem(sys.modules, "opentelemetry.metrics", object())

    assert noted(("/tasks/a", Outcome.DONE, 1, 1))
