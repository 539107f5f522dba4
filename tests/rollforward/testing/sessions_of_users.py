"""Sessions of pytest with the plugin, in folders as users have them."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

from tests.infra import tutorial
from tests.infra.documents import ROOT, text_of

TIMEOUT_S = 110
# Where the package is installed, pytest finds the plugin by its entry point.
IS_INSTALLED = bool(entry_points(group="pytest11", name="rollforward"))
PLUGIN = () if IS_INSTALLED else ("-p", "rollforward.testing.plugin")
# Seconds differ from run to run.
_SECONDS = re.compile(r"in \d+\.\d s$", flags=re.MULTILINE)


def run(folder: Path, *arguments: str) -> str:
    """Run pytest in a folder, and return its output; no process of it lives on."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *PLUGIN, "-v", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout
    return done.stdout


def write_tutorial(folder: Path, steps: int) -> None:
    """Write the shop of the tutorial as it is after so many of its steps that have files."""
    for files in tutorial.steps()[:steps]:
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")


def report_in(output: str) -> str:
    """Return what an exploration says in an output of pytest."""
    first, *others = output[output.index("explored ") :].splitlines()
    # pytest begins each line of an error with an E.
    errors = itertools.takewhile(lambda line: line.startswith("E"), others)
    lines = [first, *(line.removeprefix("E").removeprefix("       ") for line in errors)]
    return timeless("\n".join(line.rstrip() for line in lines))


def shown() -> tuple[str, str]:
    """Return both reports that the tutorial shows: of the bug, and of the mended shop."""
    blocks = re.findall(r"^```text\n(.*?)\n```$", text_of("docs/tutorial.md"), re.M | re.S)
    bad, good = [block[block.index("explored ") :] for block in blocks if "explored " in block]
    return timeless(bad), timeless(good)


def timeless(text: str) -> str:
    return _SECONDS.sub("in 0.0 s", text)
