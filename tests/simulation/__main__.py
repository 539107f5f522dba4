"""Plays schedules: `python -m tests.simulation SEED`, or many of them for some minutes.

A failure of the tests prints the options that play its schedule again.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import time
from collections import Counter

from tests.infra import fast_keys
from tests.simulation.faults import parsed
from tests.simulation.schedule import Simulator, play_or_shrink


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seed", type=int, help="the first seed")
    parser.add_argument("--faults", help='instead of its own: "17 reply-lost:UNAVAILABLE"')
    parser.add_argument("--trace", action="store_true", help="print all calls")
    parser.add_argument("--minutes", type=float, default=0.0, help="play further seeds so long")
    options = parser.parse_args()
    fast_keys.make_fast()
    logging.disable(logging.CRITICAL)
    simulator = Simulator()
    try:
        if options.minutes:
            play_many(simulator, options.seed, options.minutes)
        else:
            play_one(simulator, options)
    finally:
        simulator.close()


def play_one(simulator: Simulator, options: argparse.Namespace) -> None:
    line = simulator.world.line
    line.is_traced = options.trace
    faults = None if options.faults is None else parsed(options.faults)
    try:
        played = simulator.play(options.seed, faults)
        print(f"{played.calls} calls, {played.sweeps} sweeps; met: {played.met}")
    finally:
        print("\n".join(line.trace))


def play_many(simulator: Simulator, first: int, minutes: float) -> None:
    """Play one seed after the other, and print the number of schedules an hour."""
    began_s, met, count = time.monotonic(), Counter[str](), 0
    for seed in itertools.count(first):
        met.update(kind.partition(":")[0] for kind, _ in play_or_shrink(simulator, seed).met)
        count += 1
        if (took_s := time.monotonic() - began_s) > minutes * 60:
            break
    print(f"{count} schedules, {3600 * count / took_s:,.0f} an hour; met: {dict(met)}")


if __name__ == "__main__":
    main()
