"""Clocks of the app's processes, each moved by an offset in a file of its own.

The app reads its clock at each call, so a process's clock moves while it works. The machine's clock
does not change, since that would affect other programs.
"""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from rollforward.runtime import SystemClock

# Names the folder with a file for each process whose clock is moved; the pid is the file's name.
FOLDER = "CHAOS_CLOCKS"


class MovedClock(SystemClock):
    """The machine's clock plus the offset in this process's file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def now(self) -> datetime.datetime:
        return super().now() + datetime.timedelta(seconds=self._offset_s())

    def _offset_s(self) -> float:
        try:
            return float((self._folder / str(os.getpid())).read_text())
        except FileNotFoundError:
            return 0.0


@contextlib.contextmanager
def moved(folder: Path, offsets_s: Mapping[int, float]) -> Iterator[None]:
    """Move the clocks of processes, by pid, during the block, and move them back."""
    files = {folder / str(pid): seconds for pid, seconds in offsets_s.items()}
    for file, seconds in files.items():
        unread = file.with_suffix(".new")
        unread.write_text(str(seconds))
        unread.rename(file)  # A reader never sees a partial file.
    try:
        yield
    finally:
        for file in files:
            file.unlink()
