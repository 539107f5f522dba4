"""Reader for a pull source of a log that grows and is rotated.

    PullSource("requests", rotated_lines("/logs/access.log", parse), poll=SECOND)

The position is the inode of a file, the time of its last change, an offset, and a digest of the
file's first bytes, by which the file is known again.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import hashlib
import logging
import os
import re
import stat
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import IO, Any, NamedTuple

from rollforward.runtime.clients import Clients
from rollforward.streams.connectors.readers import PART_BYTES, SETTLED, ToRecord, lines
from rollforward.streams.model.sources import Pulled, Reader

log = logging.getLogger(__name__)

# Of a log, by which it is known again.
START_BYTES = 256
_GONE = "%s: the file that was read up to byte %d is gone or truncated; its rest is lost"
# Behind the name of a log: nothing, a number, or a date. `web-1` is another log beside `web`.
_ROTATED = re.compile(r"(\.\d[\d.-]*|-\d{8}[\d.-]*|-\d{4}-\d\d-\d\d[\d.-]*)?", re.ASCII)
DATE_DIGITS = 8
MAX_LISTINGS = 5


def rotated_lines(path: str | Path, record: ToRecord, *, settled: timedelta = SETTLED) -> Reader:
    """Read a log that grows, line by line, also while it is rotated; the stream does not end.

    A log is rotated when it is renamed to its name with a number or a date behind it, such as
    `access.log.1` or `access.log-20300501`, and begun anew. The rest of the renamed file is read
    first, then later ones, then the new log. A log that was truncated is read from its beginning,
    and one that is missing has no records. The first read begins with the log itself.

    Lost, with a warning: what was not read of a file before it was deleted, compressed or
    truncated. Files are known again by their inodes and their first 256 bytes, so a truncation is
    missed if all files begin with the same 256 bytes and the log has grown past where it was read.

    Args:
        path: Of the log, which each process must have. A renamed file must keep its inode.
        record: Converts a line, as bytes without its end.
        settled: The age of a renamed file's last change after which it is taken to be complete,
            if a later file has content: programs write to it until they open the new log. Then a
            last line without end is read. What is written to it later is lost.
    """
    log_path = Path(path)

    def read(clients: Clients, position: Any, limit: int) -> Pulled:
        files = _log_files(log_path)
        has_log = bool(files) and files[-1].path == log_path
        if position is None and not has_log:
            return Pulled([], None)
        position = position or [files[-1].inode, 0, 0, ""]
        try:
            place, is_known = _place_of(files, *position)
            if place is None and has_log:
                place = len(files) - 1
            if place is None:
                return Pulled([], position)
            offset = position[2] if is_known else 0
            if not is_known:
                log.warning(_GONE, path, position[2])
            current, later = files[place], files[place + 1 :]
            age_s = clients.clock.now().timestamp() - current.changed_ns / 1e9
            # A program that still writes to a renamed file has not written to the new one.
            is_complete = any(each.size for each in later) and age_s >= settled.total_seconds()
            with current.open_file() as opened:
                content = functools.partial(_content_of, opened)
                pulled = lines(content, record, grows=not is_complete)(clients, offset, limit)
                start = _start_of(opened, pulled.position)
        except FileNotFoundError:  # It is being renamed: the next read finds it.
            return Pulled([], position)
        if pulled.is_over:
            return Pulled(pulled.records, [later[0].inode, later[0].changed_ns, 0, ""])
        return Pulled(pulled.records, [current.inode, current.changed_ns, pulled.position, start])

    return read


class _LogFile(NamedTuple):
    """A log, or a file that it was renamed to."""

    path: Path
    inode: int
    changed_ns: int
    size: int

    @contextlib.contextmanager
    def open_file(self) -> Iterator[IO[bytes]]:
        """Open the file.

        Raises:
            FileNotFoundError: it has another name by now.
        """
        with self.path.open("rb") as opened:
            if os.fstat(opened.fileno()).st_ino != self.inode:
                raise FileNotFoundError(f"{self.path} is another file by now")
            yield opened

    def begins_with(self, offset: int, start: str) -> bool:
        """Return whether a file that was read up to an offset may be this one."""
        if not offset:
            return True
        with self.open_file() as opened:
            return bool(start) and _start_of(opened, offset) == start


def _place_of(
    files: Sequence[_LogFile], inode: int, changed_ns: int, offset: int, start: str
) -> tuple[int | None, bool]:
    """Return the place of the file to read next, None: there is none; and whether it is known.

    An unknown file follows one that was truncated, or was deleted and has left its inode to another
    file. A file with the beginning of a truncated one is a copy of it.
    """
    place = next((n for n, each in enumerate(files) if each.inode == inode), None)
    if place is not None and files[place].begins_with(offset, start):
        return place, True
    newer = (
        n
        for n, each in enumerate(files)
        if each.changed_ns > changed_ns and (place is None or not each.begins_with(offset, start))
    )
    return next(newer, place), False


def _start_of(opened: IO[bytes], offset: int) -> str:
    """Return a digest of the first bytes before an offset; empty: there are fewer."""
    opened.seek(0)
    start = opened.read(min(offset, START_BYTES))
    is_whole = (
        len(start) == min(offset, START_BYTES) and os.fstat(opened.fileno()).st_size >= offset
    )
    return hashlib.blake2b(start, digest_size=8).hexdigest() if is_whole and offset else ""


def _content_of(opened: IO[bytes], clients: Clients, offset: int) -> Iterator[bytes]:
    opened.seek(offset)
    while part := opened.read(PART_BYTES):
        yield part


def _log_files(log_path: Path) -> list[_LogFile]:
    """Return the files of a log in the order in which they were written, the log itself last.

    A rotation between two looks may hide a file, so two lists must be of the same files.
    """
    files = _list_files(log_path)
    for _ in range(MAX_LISTINGS):
        again = _list_files(log_path)
        if [each[:2] for each in again] == [each[:2] for each in files]:
            break
        files = again
    return files


def _list_files(log_path: Path) -> list[_LogFile]:
    by_inode: dict[int, _LogFile] = {}
    found = {path: path.name.removeprefix(log_path.name) for path in _beside(log_path)}
    for path in sorted(found, key=lambda path: _age(found[path])):
        with contextlib.suppress(FileNotFoundError):  # It is being renamed.
            status = path.stat()
            if stat.S_ISREG(status.st_mode):
                by_inode.pop(status.st_ino, None)  # The log may be a link to the file of a day.
                row = _LogFile(path, status.st_ino, status.st_mtime_ns, status.st_size)
                by_inode[status.st_ino] = row
    return [*by_inode.values()]


def _beside(log_path: Path) -> list[Path]:
    paths = log_path.parent.glob(f"{glob.escape(log_path.name)}*")
    return [path for path in paths if _ROTATED.fullmatch(path.name.removeprefix(log_path.name))]


def _age(suffix: str) -> tuple[int, tuple[int, ...]]:
    """Return what sorts the files of a log by age: days ascending, then numbers descending.

    >>> sorted(["", ".1", ".10", "-20300501", ".2030-04-30"], key=_age)
    ['.2030-04-30', '-20300501', '.10', '.1', '']
    """
    if not suffix:
        return 2, ()
    digits = re.sub(r"\D", "", suffix)
    if len(digits) >= DATE_DIGITS:
        return 0, (int(digits[:DATE_DIGITS]), *map(int, re.findall(r"\d+", suffix)))
    return 1, tuple(-int(number) for number in re.findall(r"\d+", suffix))
