"""Runs the curves: `python -m tests.simulation.curves`.

It prints a table for each load, by the number of workers. A load is first offered without pause,
and then at half of the rate that came out, for the lags. `--unlimited` writes a row as often as
commits return; `--at-once` and `--queue-rate` let queues send more than queue.yaml does.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from tests.simulation.curves.curve import HEADER, Conditions, play, text_of
from tests.simulation.curves.loads import LOADS

WORKERS = [1, 2, 4, 8, 16, 32, 64]


def _print_table(name: str, numbers: list[int], conditions: Conditions, *, is_paced: bool) -> None:
    print(f"\n{name}\n\n{HEADER}", flush=True)
    best = 0.0
    for n in numbers:
        row = play(LOADS[name], n, conditions)
        best, lags_s = max(best, row.per_s / n) or 1.0, row.lags_s
        if is_paced and name != "batches":
            paced = play(LOADS[name], n, replace(conditions, rate=max(1.0, row.per_s / 2)))
            lags_s = paced.lags_s
            assert paced.is_exact, "the totals are wrong"
        print(text_of(row, lags_s, best), flush=True)
        assert row.is_exact, "the totals are wrong"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.curves")
    parser.add_argument("--loads", nargs="*", default=list(LOADS), choices=list(LOADS))
    parser.add_argument("--workers", type=int, nargs="*", default=WORKERS)
    parser.add_argument("--unlimited", action="store_true", help="write a row as often as can be")
    parser.add_argument("--no-lags", action="store_true", help="do not run again at half the rate")
    defaults = Conditions()
    for name in ("clients", "at_once", "queue_rate", "warm_s", "seconds"):
        value = getattr(defaults, name)
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    arguments = parser.parse_args()
    names = ("clients", "at_once", "queue_rate", "warm_s", "seconds")
    conditions = Conditions(
        is_limited=not arguments.unlimited, **{name: getattr(arguments, name) for name in names}
    )
    for load in arguments.loads:
        _print_table(load, arguments.workers, conditions, is_paced=not arguments.no_lags)


if __name__ == "__main__":
    main()
