"""Cells of numbers that the worker processes of one instance share, each process in its own file.

A process adds to its own cells alone, in mapped memory; any process reads all files. So a scrape
that meets one worker gets the sum of the instance. A dead worker's file stays, and no sum falls:
the next process continues with it, so there are no more files than processes lived at once.
Without a folder the cells are this process's alone.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import struct
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

FILE_BYTES = 1024 * 1024
# Hidden: the folder's visible files are those of living processes. Processes of releases that write
# `.metrics` do not lock their files.
FOLDER = ".cells"

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
        self._offsets: dict[tuple[Key, int], int] = {}  # By key and count of numbers.
        self._folder: Path | None = None
        self._memory = self._map(folder, file_bytes)
        try:
            self._offsets = {(key, count): at for key, at, count in self._entries(self._memory)}
        except (ValueError, TypeError, struct.error):  # Torn, as by a loss of power.
            self._memory[:] = bytes(file_bytes)
        if not any(self._memory[: self._USED.size]):
            self._USED.pack_into(self._memory, 0, self._USED.size)

    def add(
        self,
        key: Key,
        amounts: Sequence[tuple[int, float]],
        count: int,
        *,
        reserved_bytes: int = 0,
    ) -> bool:
        """Add amounts to the numbers of a row, each at its index.

        Args:
            reserved_bytes: The room at the end that a new row leaves to others.

        Returns:
            False: the row is new, and there is no room for it.
        """
        with self._lock:
            last = len(self._memory) - reserved_bytes
            at = self._offsets.get((key, count)) or self._new_row(key, count, last)
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

    def _map(self, folder: str | None, file_bytes: int) -> mmap.mmap:
        if folder:
            try:
                shared = Path(folder) / FOLDER
                shared.mkdir(exist_ok=True)
                fd = _file_of_a_dead_process(shared, file_bytes)
                if fd is None:
                    fd = _new_file(shared, file_bytes)
                memory = mmap.mmap(fd, file_bytes)  # Keeps the file, and its lock.
                os.close(fd)
            except OSError:
                return mmap.mmap(-1, file_bytes)
            self._folder = shared
            return memory
        return mmap.mmap(-1, file_bytes)

    def _new_row(self, key: Key, count: int, last: int) -> int:
        """Return the place of a new row's numbers; 0: there is no room."""
        text = json.dumps(key).encode()
        text += b" " * (-len(text) % 8)
        used: int = self._USED.unpack_from(self._memory, 0)[0]
        at = used + self._ROW.size + len(text)
        end = at + count * self._NUMBER.size
        if end > last:
            return 0
        self._ROW.pack_into(self._memory, used, len(text), count)
        self._memory[used + self._ROW.size : at] = text
        self._USED.pack_into(self._memory, 0, end)  # Last: the row is whole now.
        self._offsets[key, count] = at
        return at

    def _contents(self) -> Iterator[bytes]:
        if self._folder is None:
            yield self._memory[:]
            return
        for path in sorted(self._folder.iterdir()):
            yield path.read_bytes()

    def _rows(self, content: bytes) -> Iterator[tuple[Key, list[float]]]:
        for key, at, count in self._entries(content):
            yield key, list(struct.unpack_from(f"{count}d", content, at))

    def _entries(self, content: bytes | mmap.mmap) -> Iterator[tuple[Key, int, int]]:
        """Yield the key of each row, and the place and the count of its numbers."""
        if len(content) < self._USED.size:
            return
        (used,) = self._USED.unpack_from(content, 0)
        at = self._USED.size
        while at < min(used, len(content)):
            size, count = self._ROW.unpack_from(content, at)
            at += self._ROW.size
            key = tuple(json.loads(content[at : at + size]))
            yield key, at + size, count
            at += size + count * self._NUMBER.size


def _new_file(folder: Path, file_bytes: int) -> int:
    fd, name = tempfile.mkstemp(dir=folder, prefix=f"{os.getpid()}-")
    with suppress(OSError):  # Of a file system without locks: nobody continues with the file.
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        allocate(fd, file_bytes)
    except OSError:
        Path(name).unlink(missing_ok=True)
        os.close(fd)
        raise
    return fd


def allocate(fd: int, count: int) -> None:
    """Fill a new file with zeros, and not with a hole, so that its mapped memory has a disk.

    On a disk that is nearly full a write takes a part, and only the next one fails.

    Raises:
        OSError: the disk is full.
    """
    while count:
        count -= os.write(fd, bytes(count))


def _file_of_a_dead_process(folder: Path, file_bytes: int) -> int | None:
    """Open and lock a whole file that no process has locked."""
    for path in sorted(folder.iterdir()):
        try:
            fd = os.open(path, os.O_RDWR)
        except OSError:
            continue  # Another user's.
        if os.fstat(fd).st_size == file_bytes:  # Otherwise its process is about to write it.
            with suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return fd
        os.close(fd)
    return None
