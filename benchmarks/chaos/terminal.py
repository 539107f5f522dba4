"""Terminal output of a long load under faults, which must fit on one screen.

    python -m benchmarks.chaos.terminal --minutes 45 --seed 1

Writers write to all patterns without pause. Four rules of the queue apply all the time, and each
minute has a fault and the kill of a worker.
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
# They apply all the time.
RULES = (
    {"kind": "error", "rate": 0.02},
    {"kind": "duplicate", "rate": 0.02},
    {"kind": "delay", "rate": 0.02, "param": 2},
    {"kind": "lose_response", "rate": 0.02},
)
# A restart begins a new screen.
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
    """Return complaints about lines that a person should not have to read."""
    complaints = list[str]()
    if len(lines) > MOST_LINES:
        complaints.append(f"{len(lines)} lines are more than a screen of {MOST_LINES}")
    if tracebacks := sum("Traceback (most recent call last)" in line for line in lines):
        complaints.append(f"{tracebacks} tracebacks of handled errors")
    return complaints


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the load, print the terminal's lines, and return 1 if there were complaints."""
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
        lines = Path(terminal.name).read_text().splitlines()  # Without the lines of the stop.
    print("\n".join(lines))
    complaints = problems(lines)
    print(
        f"\n{len(lines)} lines in {chosen.minutes:g} minutes"
        + "".join(f"; {complaint}" for complaint in complaints)
    )
    return int(bool(complaints))


if __name__ == "__main__":
    os.environ.setdefault("LOG_LEVEL", "WARNING")
    sys.exit(main())
