"""The picture of fairness shows the figures that were measured."""

from __future__ import annotations

import re

import pytest

from tests.infra.documents import ROOT

pytestmark = pytest.mark.fast

MEASURED = [
    "lanes.plain_other_tenant_begins_after_s",
    "lanes.shared_other_tenant_begins_after_s",
    "cloud.lanes.plain_other_tenant_begins_after_s",
    "cloud.lanes.shared_other_tenant_begins_after_s",
]


def test_the_picture_of_fairness_shows_the_figures_of_the_benchmarks() -> None:
    """In one line and in a lane, plain and with the latencies of the cloud."""
    page = (ROOT / "docs" / "concepts" / "lanes.md").read_text()
    [bars] = re.findall(r"^  bar \[(.*)\]$", page, re.MULTILINE)
    shown = [float(bar) for bar in bars.split(",")]
    assert shown == pytest.approx([_figure(name) for name in MEASURED], rel=0.05)


def _figure(name: str) -> float:
    """Return the first number behind the name of a result."""
    text = (ROOT / "docs" / "performance.md").read_text()
    [row] = [line for line in text.splitlines() if line.startswith(f"| `{name}`")]
    return float(next(cell for cell in row.split("|") if re.fullmatch(r" [\d.]+ ", cell)))
