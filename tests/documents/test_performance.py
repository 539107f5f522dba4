"""Pages show the figures that were measured, and name each goal that is not met."""

from __future__ import annotations

import re

import pytest

from tests.infra.documents import ROOT, cells, text_of

pytestmark = pytest.mark.fast

CLOUD, RESULTS = "docs/performance/cloud.md", "docs/performance/results.md"
MEASURED = [
    (RESULTS, "lanes.plain_other_tenant_begins_after_s"),
    (RESULTS, "lanes.shared_other_tenant_begins_after_s"),
    (CLOUD, "cloud.lanes.plain_other_tenant_begins_after_s"),
    (CLOUD, "cloud.lanes.shared_other_tenant_begins_after_s"),
]


def test_the_picture_of_fairness_shows_the_figures_of_the_benchmarks() -> None:
    """In one line and in a lane, plain and with the latencies of the cloud."""
    page = (ROOT / "docs" / "concepts" / "lanes.md").read_text()
    [bars] = re.findall(r"^  bar \[(.*)\]$", page, re.MULTILINE)
    shown = [float(bar) for bar in bars.split(",")]
    assert shown == pytest.approx([_figure(*figure) for figure in MEASURED], rel=0.05)


def test_each_goal_that_is_not_met_is_listed_with_its_reason() -> None:
    """A goal that a run of the benchmarks missed, and none that it met."""
    listed = {row[0].strip("`") for row in cells("docs/performance.md", "Goals that are not met")}
    rows = {row[0].strip("`"): row[-1].rstrip(" |") for row in cells(RESULTS)}
    missed = {name for name, met in rows.items() if met == "**no**"}

    assert missed
    assert missed - listed == set()
    assert {name for name in listed if rows.get(name) == "yes"} == set()


def _figure(page: str, name: str) -> float:
    """Return the first number behind the name of a result."""
    [row] = [line for line in text_of(page).splitlines() if line.startswith(f"| `{name}`")]
    return float(next(cell for cell in row.split("|") if re.fullmatch(r" [\d.]+ ", cell)))
