"""Faults of a process by itself: its clock is moved, and the disk that it writes to is full."""

from __future__ import annotations

import contextlib
import datetime
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from benchmarks.chaos import stage as stages
from benchmarks.chaos.clocks import MovedClock, moved
from benchmarks.chaos.stage import Stage
from rollforward.runtime import SystemClock

HOUR_S = 3_600
# Writes a file for each line that it reads, and says what came of it.
WRITER = """
import pathlib, sys
for line in sys.stdin:
    try:
        pathlib.Path(line.strip()).write_text("x")
    except OSError as error:
        print(error.strerror, flush=True)
    else:
        print("written", flush=True)
"""


def _seconds_ahead(clock: SystemClock) -> float:
    return (clock.now() - datetime.datetime.now(datetime.UTC)).total_seconds()


def test_a_clock_is_moved_and_moved_back(tmp_path: Path) -> None:
    """Only that of the process whose file says so."""
    clock = MovedClock(tmp_path)

    with moved(tmp_path, {os.getpid(): -HOUR_S, os.getpid() + 1: 9 * HOUR_S}):
        behind_s = _seconds_ahead(clock)
    with moved(tmp_path, {os.getpid() + 1: 9 * HOUR_S}):
        as_it_is_s = _seconds_ahead(clock)

    assert round(behind_s) == -HOUR_S
    assert round(as_it_is_s) == round(_seconds_ahead(clock)) == 0


def test_half_of_the_workers_are_ahead_and_the_others_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that they differ from each other, and from the services."""
    nothing: Any = SimpleNamespace()
    stage, seen = Stage(nothing, clocks=tmp_path), dict[str, str]()
    workers = [SimpleNamespace(pid=pid) for pid in (5, 6, 7)]
    monkeypatch.setattr(Stage, "_workers", lambda _: workers)
    monkeypatch.setattr(
        stages.time,
        "sleep",
        lambda _: seen.update((file.name, file.read_text()) for file in tmp_path.iterdir()),
    )

    stage.jump(60.0, 4.0)

    assert seen == {"5": "60.0", "6": "-60.0", "7": "60.0"}
    assert not list(tmp_path.iterdir())


def test_clocks_of_no_worker_cannot_jump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It must not pass for a fault that did no harm."""
    nothing: Any = SimpleNamespace()
    monkeypatch.setattr(Stage, "_workers", lambda _: [])
    monkeypatch.setattr(stages, "VICTIM_WITHIN_S", 0.0)

    with pytest.raises(AssertionError, match="no worker whose clock could jump"):
        Stage(nothing, clocks=tmp_path).jump(60.0, 4.0)


def _limit(process: subprocess.Popen[str]) -> int:
    return int(psutil.Process(process.pid).rlimit(psutil.RLIMIT_FSIZE)[0])


def test_a_worker_that_begins_while_the_disk_is_full_writes_afterwards(
    monkeypatch: pytest.MonkeyPatch, writer: subprocess.Popen[str]
) -> None:
    """It inherits the limit, and nobody knew of it when the fault began."""
    with _writing() as platform:
        stack: Any = SimpleNamespace(process=platform)
        begun = list[psutil.Process]()
        monkeypatch.setattr(Stage, "_children", lambda _: begun)

        def begin(seconds: float) -> None:
            worker = psutil.Process(writer.pid)
            worker.rlimit(psutil.RLIMIT_FSIZE, (_limit(platform), psutil.RLIM_INFINITY))
            assert _limit(writer) == 0
            begun.append(worker)

        monkeypatch.setattr(stages.time, "sleep", begin)
        Stage(stack).fill_disk(1.0)

        assert (_limit(platform), _limit(writer)) == (psutil.RLIM_INFINITY,) * 2


@pytest.fixture
def writer() -> Iterator[subprocess.Popen[str]]:
    with _writing() as process:
        yield process


@contextlib.contextmanager
def _writing() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    yield process
    process.communicate()


def test_a_process_writes_to_no_file_while_the_disk_is_full(
    writer: subprocess.Popen[str], tmp_path: Path
) -> None:
    """It gets an error, lives on, and writes again."""

    def write(name: str) -> str:
        assert writer.stdin is not None
        assert writer.stdout is not None
        print(tmp_path / name, file=writer.stdin, flush=True)
        return writer.stdout.readline().strip()

    stack: Any = SimpleNamespace(process=writer)
    assert write("before") == "written"
    full = threading.Thread(target=Stage(stack).fill_disk, args=[1.0])
    full.start()
    while psutil.Process(writer.pid).rlimit(psutil.RLIMIT_FSIZE)[0] != 0:
        time.sleep(0.01)
    meanwhile = write("meanwhile")
    full.join()

    assert meanwhile == "File too large"
    assert write("behind") == "written"
