"""Flows of steps: the operations of a step, and flows a second against DBOS, in one run.

Our design runs on gunicorn with two workers, as the dev server runs it, with its Cloud Tasks and
the Datastore emulator that locks. DBOS runs the same steps (benchmarks/steps/rivals.py) in a
process of its own. Their durability is equal: both keep all data in memory here, and lose it with
the machine, but not with a worker. The emulator stores data in its process's memory. DBOS's SQLite
files are on a file system in memory, with the settings that DBOS gives SQLite: synchronous=FULL,
which costs nothing there. "on_disk" has the same files on a disk.

DBOS is measured with its default number of threads, and with one thread, which is faster on SQLite,
where one transaction writes at a time. The goals are against the faster of both.

The benchmark starts the flows of each side by one request or one line, and waits for their end.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from benchmarks.harness.results import Result, quartiles
from benchmarks.harness.rivals import PYTHON, MissingError
from benchmarks.harness.testbed import Bench, open_testbed
from benchmarks.steps import operations
from benchmarks.steps.app import STEPS
from benchmarks.steps.runs import run
from rollforward.local.app.server import THREADS, WORKERS

COUNT, WARM_UP = 100, 100
ROUNDS, DISK_ROUNDS = 5, 2
DESIGNS = ("commits", "outside")
MEMORY = Path("/dev/shm")
# By the folder of the files, and the number of threads; 0: DBOS's default.
RIVALS = {"dbos": (MEMORY, 0), "dbos_1_thread": (MEMORY, 1), "dbos_on_disk": (Path("/var/tmp"), 1)}


def measure() -> Iterator[Result]:
    """Measure everything and yield the comparisons.

    Raises:
        MissingError: DBOS is not installed.
    """
    if not PYTHON.exists():
        raise MissingError("DBOS is missing: run `make bench NAMES=steps`")
    with open_testbed(
        "benchmarks.steps.app:serve()", emulator="firestore", at_once=WORKERS * THREADS
    ) as bench:
        for name in DESIGNS:
            run(bench, name, WARM_UP)
        yield from operations.measure(bench)
        yield from _rates(bench)
        yield from operations.measure_sleepers(bench)


# Flows a second


def _rates(bench: Bench) -> Iterator[Result]:
    seconds = defaultdict[str, list[float]](list)
    with contextlib.ExitStack() as stack:
        rivals = {name: stack.enter_context(_rival(*options)) for name, options in RIVALS.items()}
        for number in range(ROUNDS):
            for design in DESIGNS:
                seconds[f"ours_{design}"].append(run(bench, design, COUNT))
                for name, (ask, _) in rivals.items():
                    if name != "dbos_on_disk" or number < DISK_ROUNDS:
                        seconds[f"{name}_{design}"].append(ask(design, COUNT))
        settings = {name: sqlite for name, (_, sqlite) in rivals.items()}
    for name, times in seconds.items():
        rates = [COUNT / took_s for took_s in times]
        yield Result(
            f"steps.{name}_per_s",
            statistics.median(rates),
            "flows a second",
            f"{STEPS} steps each",
            raw={"quartiles": quartiles(rates), **_settings(settings, name)},
        )
    for design in DESIGNS:
        yield _ratio(seconds, design, ["dbos", "dbos_1_thread"], "in memory", 1.0)
        yield _ratio(seconds, design, ["dbos_on_disk"], "on a disk", None)


def _settings(settings: Mapping[str, str], name: str) -> dict[str, str]:
    return next(
        ({"sqlite": sqlite} for rival, sqlite in settings.items() if name.startswith(f"{rival}_")),
        {},
    )


def _ratio(
    seconds: Mapping[str, list[float]],
    design: str,
    rivals: list[str],
    where: str,
    target: float | None,
) -> Result:
    """Compare our rate with the fastest of some rivals."""
    theirs = min((seconds[f"{name}_{design}"] for name in rivals), key=statistics.median)
    ours = seconds[f"ours_{design}"]
    suffix = "" if target else "_on_disk"
    return Result(
        f"steps.{design}_versus_dbos{suffix}",
        statistics.median(theirs) / statistics.median(ours),
        "ratio of rates",
        f"DBOS, SQLite {where}, synchronous=FULL",
        target,
        raw={"ours_s": quartiles(ours), "theirs_s": quartiles(theirs), "flows": COUNT},
    )


Ask = Callable[[str, int], float]


@contextlib.contextmanager
def _rival(folder: Path, threads: int) -> Iterator[tuple[Ask, str]]:
    """Start DBOS; yield a function that runs some of its workflows, and SQLite's settings."""
    program = Path(__file__).parent / "rivals.py"
    where = folder if folder.is_dir() else None
    with tempfile.TemporaryDirectory(dir=where) as files:
        command = [str(PYTHON), str(program), files, str(threads)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(command, text=True, **pipes) as process:  # Exit waits for it.
            asks, answers = process.stdin, process.stdout
            assert asks is not None
            assert answers is not None

            def ask(name: str, count: int) -> float:
                asks.write(f"{name} {count}\n")
                asks.flush()
                return float(answers.readline())

            with asks:
                settings = answers.readline().strip()
                for name in DESIGNS:
                    ask(name, WARM_UP // 4)
                yield ask, settings
