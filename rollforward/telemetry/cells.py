"""Cells of numbers that the worker processes of one instance share, each process in its own file.

A process adds to its own cells alone, in mapped memory; any process reads all files. So a scrape
that meets one worker gets the sum of the instance. A dead worker's file stays, and no sum falls.
Without a folder the cells are this process's alone.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

FILE_BYTES = 1024 * 1024
FOLDER = ".metrics"  # The folder's visible files are those of living processes.

Key = tuple[str, ...]


class Cells:
    """Rows of numbers by key, of this process and of the others of its instance."""

    _USED = struct.Struct("q")
    _ROW = struct.Struct("ii")  # The bytes of the key, padded, and the count of the numbers.
    _NUMBER = struct.Struct("d")

    def __init__(self, folder: str | None = None, *, file_bytes: int = FILE_BYTES) -> None:
        """Make this process's cells.

        Args:
            folder: The folder that the processes of the instance share.
        """
        self._lock = threading.Lock()
        self._offsets: dict[Key, int] = {}
        self._folder: Path | None = None
        self._memory = self._mapped(folder, file_bytes)
        self._USED.pack_into(self._memory, 0, self._USED.size)

    def add(self, key: Key, amounts: Sequence[tuple[int, float]], count: int) -> bool:
        """Add amounts to the numbers of a row, each at its index.

        Returns:
            False: the row is new, and there is no room for it.
        """
        with self._lock:
            at = self._offsets.get(key) or self._new_row(key, count)
            if not at:
                return False
            for index, amount in amounts:
                place = at + index * self._NUMBER.size
                (number,) = self._NUMBER.unpack_from(self._memory, place)
                self._NUMBER.pack_into(self._memory, place, number + amount)
        return True

    def sums(self) -> dict[Key, list[float]]:
        """Return the rows of all processes, added up."""
        totals: dict[Key, list[float]] = {}
        for content in self._contents():
            for key, numbers in self._rows(content):
                row = totals.setdefault(key, [0.0] * len(numbers))
                totals[key] = [a + b for a, b in zip(row, numbers, strict=False)]
        return totals

    def _mapped(self, folder: str | None, file_bytes: int) -> mmap.mmap:
        if folder:
            try:
                shared = Path(folder) / FOLDER
                shared.mkdir(exist_ok=True)
                fd, _ = tempfile.mkstemp(dir=shared, prefix=f"{os.getpid()}-")
                os.write(fd, bytes(file_bytes))  # Zeros, not a hole, as a full disk has no page.
                memory = mmap.mmap(fd, file_bytes)
                os.close(fd)
            except OSError:
                return mmap.mmap(-1, file_bytes)
            self._folder = shared
            return memory
        return mmap.mmap(-1, file_bytes)

    def _new_row(self, key: Key, count: int) -> int:
        """Return the place of a new row's numbers; 0: there is no room."""
        text = json.dumps(key).encode()
        text += b" " * (-len(text) % 8)
        used: int = self._USED.unpack_from(self._memory, 0)[0]
        at = used + self._ROW.size + len(text)
        end = at + count * self._NUMBER.size
        if end > len(self._memory):
            return 0
        self._ROW.pack_into(self._memory, used, len(text), count)
        self._memory[used + self._ROW.size : at] = text
        self._USED.pack_into(self._memory, 0, end)  # Last: the row is whole now.
        self._offsets[key] = at
        return at

    def _contents(self) -> Iterator[bytes]:
        if self._folder is None:
            yield self._memory[:]
            return
        for path in sorted(self._folder.iterdir()):
            yield path.read_bytes()

    def _rows(self, content: bytes) -> Iterator[tuple[Key, list[float]]]:
        if len(content) < self._USED.size:
            return
        (used,) = self._USED.unpack_from(content, 0)
        at = self._USED.size
        while at < min(used, len(content)):
            size, count = self._ROW.unpack_from(content, at)
            at += self._ROW.size
            key = tuple(json.loads(content[at : at + size]))
            numbers_at = at + size
            at = numbers_at + count * self._NUMBER.size
            yield key, list(struct.unpack_from(f"{count}d", content, numbers_at))
