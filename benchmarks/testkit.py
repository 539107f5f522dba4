"""Test kit: the time of 200 tests of an app, with their emulators, in a session of pytest.

The app is the shop of docs/examples. Each test opens the shop, buys, settles (outbox, shipping, a
view's row) and runs two queries. The session runs like a user's: in a folder of its own, by pytest
with two workers, each with its own emulators. The time is from its start to its end. `raw` has the
processor seconds of all its processes, since other work on the machine affects the clock's seconds.

    make bench NAMES=testkit
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

from benchmarks.harness.results import Result

ROOT = Path(__file__).parent.parent
TESTS = 200
WORKERS = 2
TARGET_S = 30.0
TIMEOUT_S = 600
# If the package is installed, pytest finds the plugin by its entry point.
IS_INSTALLED = bool(entry_points(group="pytest11", name="rollforward"))
_OPTIONS = (
    *(() if IS_INSTALLED else ("-p", "rollforward.testing.plugin")),
    *("-q", "-vv", "-p", "no:cacheprovider"),
    *("--durations=0", "--durations-min=0"),
)
TEST = "test_a_sale_is_shipped_and_counted"
SETTINGS = "[pytest]\nrollforward_app = docs.examples.shop:serve\n"
MODULE = f"""
import pytest

from docs.examples import shop


@pytest.mark.parametrize("number", range({TESTS}))
def {TEST}(rollforward, number):
    rollforward.client.post("/open")
    form = {{"product": "lamp", "form_id": f"sale{{number}}"}}
    response = rollforward.client.post("/buy", data=form)
    assert response.status_code == 303, response.text

    rollforward.settle()

    assert [sale.is_shipped for sale in shop.Sale.query()] == [True]
    [row] = shop.SALES.read(rollforward.clients, shop.SalesByProduct).rows
    assert (row.name, row.count) == ("lamp", 1)
"""


def measure() -> Iterator[Result]:
    """Yield the seconds of a session, and the milliseconds of one more test."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "pytest.ini").write_text(SETTINGS)
        (folder / "test_shop.py").write_text(MODULE)
        _run(folder, f"test_shop.py::{TEST}[0]")  # Compiles the bytecode.
        load = os.getloadavg()[0]
        clock_s, processor_s, share_s = _run(folder, "-n", str(WORKERS))
    yield Result(
        "testkit.session",
        clock_s,
        "s",
        f"{TESTS} tests of the shop, {WORKERS} workers, emulators included",
        target=TARGET_S,
        at_least=False,
        raw={"processor_s": round(processor_s, 1), "load_before": round(load, 1)},
    )
    yield Result(
        "testkit.test",
        1000 * share_s / TESTS,
        "ms",
        "a test on one worker: two forms, their tasks, two queries, and the reset before it",
    )


def _run(folder: Path, *arguments: str) -> tuple[float, float, float]:
    """Run a session; return its seconds, its processor seconds, and the seconds in tests."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *_OPTIONS, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    seconds = time.monotonic() - began
    if done.returncode != 0:
        raise RuntimeError(done.stdout[-3000:] + done.stderr[-1000:])
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor_s = ended.ru_utime + ended.ru_stime - used.ru_utime - used.ru_stime
    phases = re.findall(r"^([\d.]+)s (?:call|setup|teardown) ", done.stdout, flags=re.MULTILINE)
    durations = sorted(map(float, phases))[: -2 * WORKERS]  # Without starts and stops of services.
    return seconds, processor_s, sum(durations)
