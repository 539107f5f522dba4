"""Lines that the terminal shows of a long load under faults: at most one screen.

    python -m benchmarks.chaos.terminal --minutes 45 --seed 1

All patterns are written to without pause. Four rules of the queue are in force all the time, and
each minute something strikes, and a worker is killed.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.chaos.command import strike
from benchmarks.chaos.faults import FAULTS, rounds
from benchmarks.chaos.loads import opened_loads
from benchmarks.chaos.stage import Stage, staged
from benchmarks.healing.benchmark import EMULATORS

MINUTES, STRIKE_EVERY_S = 45.0, 60.0
MOST_LINES = 50
# In force all the time.
RULES = (
    {"kind": "error", "rate": 0.02},
    {"kind": "duplicate", "rate": 0.02},
    {"kind": "delay", "rate": 0.02, "param": 2},
    {"kind": "lose_response", "rate": 0.02},
)
# A restart begins the screen anew.
STRIKES = tuple(name for name in FAULTS if name != "restart")


def load(stage: Stage, seconds: float, seed: int) -> None:
    """Write to every pattern under faults."""
    for rule in RULES:
        stage.stack.control("/api/v1/faults", dict(rule))
    loads = opened_loads(stage.stack)
    ends_at, drawn = time.monotonic() + seconds, rounds(seed, STRIKES)
    with loads.writing():
        for number in itertools.count(1):
            left_s = ends_at - time.monotonic()
            time.sleep(max(0.0, min(STRIKE_EVERY_S, left_s)))
            if left_s <= STRIKE_EVERY_S:
                break
            faults = next(drawn)
            print(f"minute {number}: {' + '.join(faults)}", file=sys.stderr, flush=True)
            strike(stage, faults)
            stage.kill(1)


def problems(lines: Sequence[str]) -> list[str]:
    """Return why the lines are not what a person should have to read."""
    found = list[str]()
    if len(lines) > MOST_LINES:
        found.append(f"{len(lines)} lines are more than a screen of {MOST_LINES}")
    if tracebacks := sum("Traceback (most recent call last)" in line for line in lines):
        found.append(f"{tracebacks} tracebacks of handled errors")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, and print what the terminal had; 1 if it was too much."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.chaos.terminal",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--seed", type=int, default=0, help="of the faults and their order")
    parser.add_argument("--emulator", default="firestore", choices=EMULATORS)
    chosen = parser.parse_args(arguments)
    with (
        tempfile.NamedTemporaryFile("a") as terminal,
        staged(chosen.emulator, chosen.seed, terminal) as stage,
    ):
        load(stage, 60 * chosen.minutes, chosen.seed)
        lines = Path(terminal.name).read_text().splitlines()  # Those of its end are not counted.
    print("\n".join(lines))
    found = problems(lines)
    print(
        f"\n{len(lines)} lines in {chosen.minutes:g} minutes" + "".join(f"; {one}" for one in found)
    )
    return int(bool(found))


if __name__ == "__main__":
    os.environ.setdefault("LOG_LEVEL", "WARNING")
    sys.exit(main())
