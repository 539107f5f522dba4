"""The benchmark of both engines, without Beam: what it counts, and what it notices."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.streams_beam import benchmark, workload
from benchmarks.streams_beam.app import PIPELINES, ROUNDS, WARM_ROUNDS

pytestmark = pytest.mark.fast

RUNS = [(name, kind) for name, kinds in workload.RECORDS.items() for kind in kinds]


@pytest.mark.parametrize(("name", "kind"), RUNS)
def test_a_result_that_is_lost_doubled_or_changed_is_noticed(name: str, kind: str) -> None:
    count, total = workload.truth(name, kind)
    assert count >= 8
    numbers = [1] * (count - 1)
    numbers.append(total - sum(numbers))
    workload.check(name, kind, [*numbers, 0])
    for others in (numbers[1:], [*numbers, 1], [*numbers[:-1], numbers[-1] + 1]):
        with pytest.raises(workload.WrongError):
            workload.check(name, kind, others)


@pytest.mark.parametrize(("name", "kind"), RUNS)
def test_each_run_has_its_records_and_a_pipeline_for_each_round(name: str, kind: str) -> None:
    assert len(workload.records_of(name, kind)) == workload.RECORDS[name][kind]
    runs = [run for of, run in PIPELINES if of == name and run.startswith(kind)]
    assert len(runs) == WARM_ROUNDS + ROUNDS


def test_a_result_is_late_by_the_time_since_the_first_input_that_completed_it() -> None:
    given = [(10.0, 1.0), (8.0, 1.5), (20.0, 2.0)]
    results = [(10, 1.1), (11, 2.25), (20, 2.5), (21, 9.0)]
    # The last one waits for the end of the input.
    assert workload.lags_ms(given, results) == pytest.approx([100.0, 250.0, 500.0])


def test_it_says_that_it_is_skipped_where_beam_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(benchmark, "PYTHON", tmp_path / "none")
    assert [*benchmark.measure()] == []
    assert capsys.readouterr().err == (
        "streams_beam is skipped: `make beam` installs Apache Beam\n"
    )
