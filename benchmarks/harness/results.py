"""Results of a benchmark: one JSON object a line, and a table on request."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Result:
    """One figure.

    `value` is compared with `target`: `at_least` makes it a lower bound, otherwise it is an upper
    bound. Without a target the value is only for information. `raw` holds the underlying figures.
    """

    name: str
    value: float
    unit: str
    versus: str
    target: float | None = None
    at_least: bool = True
    raw: dict[str, Any] = field(default_factory=dict)

    @property
    def met(self) -> bool | None:
        if self.target is None:
            return None
        return self.value >= self.target if self.at_least else self.value <= self.target

    def line(self) -> str:
        """Return the result as one line of JSON."""
        figures = asdict(self)
        raw = figures.pop("raw")
        return json.dumps({**figures, "value": round(self.value, 4), "met": self.met, **raw})


def percentile(figures: Sequence[float], share: float) -> float:
    """Return the percentile of the figures at a share between 0 and 1."""
    ordered = sorted(figures)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def quartiles(figures: Sequence[float]) -> list[float]:
    """Return the lower quartile, the median and the upper quartile."""
    return [
        float(f"{figure:.3g}") for figure in statistics.quantiles(figures, n=4, method="inclusive")
    ]


def table(results: Sequence[Result]) -> str:
    """Return results as a Markdown table."""
    lines = ["| name | value | unit | versus | target | met |", "|---|---:|---|---|---:|---|"]
    for result in results:
        sign = "≥" if result.at_least else "≤"
        target = "" if result.target is None else f"{sign} {result.target:g}"
        met = {True: "yes", False: "**no**", None: ""}[result.met]
        lines.append(
            f"| `{result.name}` | {result.value:.4g} | {result.unit} | {result.versus} "
            f"| {target} | {met} |"
        )
    return "\n".join(lines)
