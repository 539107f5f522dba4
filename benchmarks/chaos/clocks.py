"""Clocks of the app's processes, each moved by itself: a file of its own says how far.

The app asks its clock at each call, so a process is moved while it works. The machine's clock stays
as it is: other programs would suffer with it.
"""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from rollforward.runtime import SystemClock

# The folder with a file for each process that is moved, named by its pid.
FOLDER = "CHAOS_CLOCKS"


class MovedClock(SystemClock):
    """The machine's clock, as far off as the file of this process says."""

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
    """Move the clocks of processes, by pid, and move them back."""
    files = {folder / str(pid): seconds for pid, seconds in offsets_s.items()}
    for file, seconds in files.items():
        unread = file.with_suffix(".new")
        unread.write_text(str(seconds))
        unread.rename(file)  # A reader finds it whole, or not at all.
    try:
        yield
    finally:
        for file in files:
            file.unlink()
