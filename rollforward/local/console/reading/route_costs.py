"""The costs of each route and each task, from the reports of the app's processes."""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from rollforward.local.prices import PriceList

# More than any app declares: a page that is longer is read by nobody.
MAX_ROWS = 100


@dataclass(frozen=True)
class RouteCost:
    """The calls of a route or a task since the start, and their calls of the services.

    Attributes:
        kind: "route", "task", or "rest": what was spent outside of both.
        writes: Entities put; those that were deleted are counted apart.
        dollars: Of all calls together.
    """

    kind: str
    name: str
    calls: int
    reads: int
    writes: int
    deletes: int
    task_operations: int
    dollars: float

    @property
    def dollars_per_million(self) -> float:
        """The dollars for a million of these calls."""
        return 1_000_000 * self.dollars / self.calls if self.calls else 0.0


def route_costs(folder: Path, prices: PriceList) -> list[RouteCost]:
    """Return what each route and task has cost in all processes together, the dearest first."""
    calls: Counter[tuple[str, str]] = Counter()
    costs: dict[tuple[str, str], Counter[str]] = {}
    for path in folder.glob("*.costs"):
        for row in json.loads(path.read_text()):
            called = row["kind"], row["name"]
            calls[called] += row["calls"]
            costs.setdefault(called, Counter()).update(row["cost"])
    rows = [
        RouteCost(
            kind,
            name,
            calls[kind, name],
            reads=cost["reads"] + cost["query_reads"],
            writes=cost["writes"] - cost["deletes"],
            deletes=cost["deletes"],
            task_operations=cost["task_operations"],
            dollars=prices.dollars(cost),
        )
        for (kind, name), cost in costs.items()
    ]
    return sorted(rows, key=lambda row: (-row.dollars, -row.calls, row.name))
