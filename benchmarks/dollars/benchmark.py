"""Dollars for a million items, by each pattern and by a plain design, from the dated price list.

The workloads come from the other benchmarks, with a few hundred items each. The benchmark counts
operations, which noise cannot affect. A proxy in front of each emulator counts them, too, and a
difference of more than a percent from the meter fails the benchmark
(benchmarks/harness/wire_count.py).
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
    """Count the cost of all patterns; yield their dollars, and the difference of the two counts."""
    metered, wired = Cost(), Counter[str]()
    for stack in STACKS:
        target = f"benchmarks.{stack.subject}.app:serve()"
        with open_testbed(target, is_counted=True, **stack.options) as bench:
            assert bench.wire is not None
            settle(bench)
            cost, counts = bench.whole_cost(), Counter(bench.wire.counts())
            for compared in stack.measure(bench):
                yield from dollars_of(compared)
            settle(bench)
            metered += bench.whole_cost() - cost
            wired += Counter(bench.wire.counts()) - counts
    yield apart(metered, wired)


def dollars_of(compared: Compared) -> Iterator[Result]:
    """Yield the dollars of a pattern and of its plain design."""
    yield _dollars(compared.name, compared.ours, compared.subject)
    yield _dollars(f"{compared.name}_plain", compared.plain, compared.plain_way)


def _dollars(name: str, spent: Spent, subject: str) -> Result:
    cost = spent.cost.as_dict()
    return Result(
        f"dollars.{name}",
        price_list().dollars_per_million(cost, spent.items),
        "dollars",
        f"a million items: {subject}",
        raw={
            "items": spent.items,
            "an_item": {key: round(cost[key] / spent.items, 3) for key in CHARGED},
            OTHER_REGION: round(price_list(OTHER_REGION).dollars_per_million(cost, spent.items), 4),
            "prices_of": f"{price_list().region}, {price_list().as_of}",
        },
    )
