"""Plays schedules: `python -m tests.simulation SEED`, or many of them on two processors.

A failure of the tests prints the options that play its schedule again.
"""

from __future__ import annotations

import argparse
import logging

from tests.infra import fast_keys
from tests.simulation.faults import parsed
from tests.simulation.many import play_many
from tests.simulation.schedule import Simulator


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seed", type=int, help="the first seed")
    parser.add_argument("--faults", help='instead of its own: "17 reply-lost:UNAVAILABLE"')
    parser.add_argument("--trace", action="store_true", help="print all calls")
    parser.add_argument("--schedules", type=int, default=0, help="play so many seeds")
    parser.add_argument("--minutes", type=float, default=0.0, help="play further seeds so long")
    parser.add_argument("--processes", type=int, default=2, help="that play them")
    options = parser.parse_args()
    if options.schedules or options.minutes:
        print(
            *play_many(options.seed, options.schedules, options.minutes, options.processes),
            sep="\n",
        )
    else:
        play_one(options)


def play_one(options: argparse.Namespace) -> None:
    fast_keys.make_fast()
    logging.disable(logging.CRITICAL)
    simulator = Simulator()
    line = simulator.world.line
    line.is_traced = options.trace
    faults = None if options.faults is None else parsed(options.faults)
    try:
        played = simulator.play(options.seed, faults)
        print(f"{played.calls} calls, {played.sweeps} sweeps; met: {played.met}")
    finally:
        print("\n".join(line.trace))
        simulator.close()


if __name__ == "__main__":
    main()
