"""Dollars for a million items: each pattern beside the plain way, by the dated price list.

The workloads are those of the other benchmarks, a few hundred items each: what is counted are
operations, which no noise can move. A proxy before each emulator counts them, too, and where the
meter differs by more than a percent the benchmark fails (benchmarks/harness/wire_count.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from benchmarks.dollars.workloads import STACKS, Compared, Spent, settle
from benchmarks.harness.results import Result
from benchmarks.harness.testbed import open_testbed
from benchmarks.harness.wire_count import CHARGED, apart
from rollforward.local.prices import price_list
from rollforward.runtime import Cost

OTHER_REGION = "nam5"


def measure() -> Iterator[Result]:
    """Count what all patterns cost, and yield their dollars and how far the counts are apart."""
    metered, wired = Cost(), Counter[str]()
    for stack in STACKS:
        target = f"benchmarks.{stack.subject}.app:serve()"
        with open_testbed(target, is_counted=True, **stack.options) as bench:
            assert bench.wire is not None
            settle(bench)
            cost, counts = bench.whole_cost(), Counter(bench.wire.counts())
            for compared in stack.measure(bench):
                yield from told(compared)
            settle(bench)
            metered += bench.whole_cost() - cost
            wired += Counter(bench.wire.counts()) - counts
    yield apart(metered, wired)


def told(compared: Compared) -> Iterator[Result]:
    """Yield the dollars of a pattern and of the plain way."""
    yield _dollars(compared.name, compared.ours, compared.what)
    yield _dollars(f"{compared.name}_plain", compared.plain, compared.plain_way)


def _dollars(name: str, spent: Spent, what: str) -> Result:
    cost = spent.cost.as_dict()
    return Result(
        f"dollars.{name}",
        price_list().dollars_per_million(cost, spent.items),
        "dollars",
        f"a million items: {what}",
        raw={
            "items": spent.items,
            "an_item": {key: round(cost[key] / spent.items, 3) for key in CHARGED},
            OTHER_REGION: round(price_list(OTHER_REGION).dollars_per_million(cost, spent.items), 4),
            "prices_of": f"{price_list().region}, {price_list().as_of}",
        },
    )
