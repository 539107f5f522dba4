"""The rate of records above which one Dataflow worker costs less than Datastore and Cloud Tasks.

`python -m benchmarks.dollars.dataflow` prints the lines of docs/concepts/scale.md, from the dated
prices of both sides and the operations of docs/performance/results.md. A test compares the page
with these lines.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from rollforward.local.prices import MILLION, price_list

FILE = Path(__file__).parent / "dataflow.toml"
PERFORMANCE = Path(__file__).parents[2] / "docs" / "performance" / "results.md"
STAGES = {"one": 1, "three": 3, "five": 5}
GB = 10**9


@dataclass(frozen=True)
class Dataflow:
    """The prices of Dataflow.

    Attributes:
        worker_hour: Dollars of one streaming worker for an hour.
        stage_million: Dollars of a million records in one stage, by their size in bytes.
    """

    worker_hour: float
    stage_million: float

    def cheaper_from(self, dollars_a_million: float, stages: int = 1) -> float:
        """Return the records a second above which one worker costs less.

        Args:
            dollars_a_million: The cost of a million records here, in all stages.
        """
        saved = (dollars_a_million - stages * self.stage_million) / MILLION
        return self.worker_hour / 3600 / saved


def dataflow(content: dict[str, Any] | None = None) -> Dataflow:
    """Return the prices in `content`, by default the content of the price file."""
    content = content or tomllib.loads(FILE.read_text())
    prices, worker = content["prices"], content["worker"]
    hour = sum(
        worker[part] * prices[price]
        for part, price in (
            ("vcpus", "vcpu_hour"), ("memory_gb", "memory_gb_hour"), ("disk_gb", "disk_gb_hour"),
        )
    )  # fmt: skip
    gigabytes = MILLION * content["record"]["bytes_a_stage"] / GB
    return Dataflow(hour, gigabytes * prices["streaming_engine_gb"])


def measured(name: str) -> float:
    """Return the value of a result in docs/performance/results.md."""
    [row] = re.findall(rf"^\| `{re.escape(name)}` \| ([^ ]+) \|", PERFORMANCE.read_text(), re.M)
    return float(row)


def dollars_here(size: int) -> float:
    """Return the cost of a million records here in one stage, by the size of a push."""
    counts = {
        operation: measured(f"streams.{operation}_at_{size}")
        for operation in ("reads", "writes", "tasks")
    }
    # Cloud Tasks counts one operation for the creation of a task and one for its delivery.
    cost = {**counts, "query_reads": 0.0, "deletes": 0.0, "task_operations": 2 * counts["tasks"]}
    return price_list().dollars_per_million(cost, 1)


def page() -> list[str]:
    """Return the lines of docs/concepts/scale.md that have computed figures."""
    prices, one = dataflow(), measured("dollars.streams")
    ten, single = dollars_here(10), dollars_here(1)
    content = tomllib.loads(FILE.read_text(), parse_float=Decimal)
    cost, worker, bytes_ = content["prices"], content["worker"], content["record"]["bytes_a_stage"]
    rates = {name: prices.cheaper_from(n * one, n) for name, n in STAGES.items()}
    return [
        f"Calculated on {content['as_of']} for {content['region']}, without discounts; nobody has "
        "seen either bill.",
        "| Stages | Dataflow is cheaper from | A million records here |",
        "|---|---|---|",
        *(
            f"| {name} | {short(rate)} records a second | {short(STAGES[name] * one)} dollars |"
            for name, rate in rates.items()
        ),
        f"- **Dataflow**: one streaming worker of {worker['vcpus']} vCPU, {worker['memory_gb']} GB "
        f"and {worker['disk_gb']} GB of disk is {prices.worker_hour:.3f} dollars an hour, at "
        f"{cost['vcpu_hour']:f} a vCPU, {cost['memory_gb_hour']:f} a GB and "
        f"{cost['disk_gb_hour']:f} a GB of disk; Streaming Engine adds "
        f"{cost['streaming_engine_gb']:f} a GB, at {bytes_} bytes a record and stage.",
        f"- **Smaller pushes cost more here**: pushes of ten {short(ten)} dollars a million, and "
        f"single records {short(single)}. Then Dataflow is cheaper from "
        f"{short(prices.cheaper_from(ten))} and from {short(prices.cheaper_from(single))} records "
        "a second.",
    ]


def short(figure: float) -> str:
    """Return a figure with two significant digits."""
    return f"{float(f'{figure:.2g}'):g}"


if __name__ == "__main__":
    print("\n".join(page()))
