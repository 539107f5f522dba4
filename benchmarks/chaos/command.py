"""`make chaos`: rounds of load and faults until the time is over, then the tables.

A round writes to every pattern, injects faults, stops writing, and waits until each pattern is
exact. A write without an answer is retried with its key. Cron is paused for a minute after a fault,
so work that only the sweep recovers is shown as slow.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass, field

from benchmarks.chaos.faults import FAULTS, rounds
from benchmarks.chaos.loads import opened_loads
from benchmarks.chaos.stage import Stage, staged
from benchmarks.healing.benchmark import EMULATORS
from benchmarks.healing.loads import Account

SECONDS = 60.0
WRITE_S = 3.0
HEAL_S = 10.0
# Cron sweeps once a minute.
SWEPT_AFTER_S = 60.0
# Orders wait for a trial period and a courier, so their time does not measure healing.
WAITING = ("orders",)


@dataclass
class Report:
    """Totals and healing times of the rounds.

    Attributes:
        healed: By fault, a mapping for each round of the seconds until each pattern was exact.
    """

    accounts: Mapping[str, Account] = field(default_factory=dict)
    healed: dict[str, list[Mapping[str, float]]] = field(default_factory=lambda: defaultdict(list))

    @property
    def is_exact(self) -> bool:
        return all(account.is_exact for account in self.accounts.values())

    def lines(self) -> Iterator[str]:
        """Yield both tables."""
        yield f"{'pattern':<12} {'accepted':>9} {'found':>9} {'doubled':>8} {'lost':>6}"
        for name, account in sorted(self.accounts.items()):
            figures = f"{account.accepted:>9,} {account.done:>9,} {account.doubled:>8,}"
            yield f"{name:<12} {figures} {account.lost:>6,}"
        yield ""
        yield f"{'fault':<52} {'rounds':>6} {'median s':>9} {'slowest s':>10}"
        for name, healed in sorted(self.healed.items()):
            slowest = [max(_without_waits(exact_s), key=lambda pair: pair[1]) for exact_s in healed]
            by, most_s = max(slowest, key=lambda pair: pair[1])
            median_s = statistics.median(seconds for _, seconds in slowest)
            slow = f"  over {_bound_s(most_s):.0f} s: {by}" if most_s > HEAL_S else ""
            yield f"{name:<52} {len(healed):>6} {median_s:>9.1f} {most_s:>10.1f}{slow}"


def _bound_s(seconds: float) -> float:
    """Return the exceeded bound; work that ended after the first sweep may have depended on it."""
    return HEAL_S if seconds <= SWEPT_AFTER_S else SWEPT_AFTER_S


def _without_waits(healed: Mapping[str, float]) -> list[tuple[str, float]]:
    return [(name, seconds) for name, seconds in healed.items() if name not in WAITING]


def play(stage: Stage, seconds: float, seed: int, names: Sequence[str]) -> Report:
    """Inject faults into a stack until the time is over, or until a pattern is not exact."""
    report, ends_at = Report(), time.monotonic() + seconds
    loads = opened_loads(stage.stack)
    for faults in rounds(seed, names):
        stage.stack.rest_cron()
        with loads.writing():
            time.sleep(WRITE_S)
            strike(stage, faults)
            began = time.monotonic()
        stage.stack.rest_cron()
        with _sweeping_from(stage, began + SWEPT_AFTER_S):
            healed = loads.until_exact(began)
        report.healed[" + ".join(faults)].append(healed)
        report.accounts = loads.accounts()
        _say(faults, healed, is_exact=report.is_exact)
        if time.monotonic() > ends_at or not report.is_exact:
            break
    loads.look_again()
    report.accounts = loads.accounts()
    return report


@contextlib.contextmanager
def _sweeping_from(stage: Stage, at_s: float) -> Iterator[None]:
    """Resume cron's sweeps at a given time, unless the block ends before."""
    timer = threading.Timer(max(0.0, at_s - time.monotonic()), stage.stack.wake_cron)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def strike(stage: Stage, faults: Sequence[str]) -> None:
    """Inject faults concurrently, and wait until the last one has ended."""
    with futures.ThreadPoolExecutor(len(faults)) as threads:
        for struck in [threads.submit(FAULTS[name], stage) for name in faults]:
            struck.result()


def _say(faults: Sequence[str], healed: Mapping[str, float], *, is_exact: bool) -> None:
    slowest, seconds = max(_without_waits(healed), key=lambda pair: pair[1])
    state = "exact" if is_exact else "NOT exact"
    words = f"{' + '.join(faults)}: {state} after {seconds:.1f} s, {slowest} last"
    print(f"{time.strftime('%H:%M:%S')} {words}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the rounds, and return 1 if work was lost, doubled or not done."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of rounds; the last ends")
    parser.add_argument("--seed", type=int, default=0, help="of the faults and their order")
    parser.add_argument("--emulator", default="firestore", choices=EMULATORS)
    parser.add_argument("--faults", nargs="+", default=list(FAULTS), choices=list(FAULTS))
    chosen = parser.parse_args(arguments)
    with staged(chosen.emulator, chosen.seed) as stage:
        report = play(stage, chosen.seconds, chosen.seed, chosen.faults)
    print("\n".join(report.lines()))
    print(f"\nseed {chosen.seed}: {'exact' if report.is_exact else 'NOT EXACT'}")
    return int(not report.is_exact)
