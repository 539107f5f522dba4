"""Dead processes of this instance, and the transactions that they held open.

The processes of an instance share a folder, in which each has a file. It holds a lock on that file,
which the kernel releases when it dies and never before. It writes its open transactions into it, in
memory that outlives it. Each process looks for dead ones once a second. So others need not wait for
the lease of a dead process.

This is a hint: a process that was wrongly taken for dead is fenced off like one whose lease has
expired. Lost on failure: nothing. Without the folder, and on other instances, no process is known
to be dead, and leases expire.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import mmap
import os
import struct
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from google.cloud.datastore_v1.types import RollbackRequest
from google.protobuf.message import DecodeError

from rollforward.telemetry.cells import allocate

log = logging.getLogger(__name__)

_HIDDEN = "."  # Begins the names of files that no living process has.
_DEAD = ".dead-"
_LOCKS = ".locks"


class Processes(Protocol):
    """The processes of an instance; tests replace them."""

    def sign(self, id_: str) -> str:
        """Return an owner's id that names its process."""
        ...

    def is_dead(self, owner: str) -> bool:
        """Return whether the process that signed is known to have died."""
        ...

    def try_lock(self, name: str) -> bool:
        """Take the lock of a name among the instance's threads; False: another one has it."""
        ...

    def unlock(self, name: str) -> None:
        """Release a lock that this thread has taken."""
        ...


class NoProcesses:
    """No known processes: none is ever dead, and none has a lock."""

    def sign(self, id_: str) -> str:
        return id_

    def is_dead(self, owner: str) -> bool:
        return False

    def try_lock(self, name: str) -> bool:
        return True

    def unlock(self, name: str) -> None:
        pass


class LockedFiles:
    """The processes with files in one folder, and this process's own file."""

    def __init__(self, folder: str) -> None:
        """Join them.

        Raises:
            OSError: the folder takes no file.
        """
        self._folder = Path(folder)
        self.mine = ProcessFile(folder)
        self._locks = LockFile(self._folder / _LOCKS)

    def sign(self, id_: str) -> str:
        return f"{id_}@{self._folder.name}/{self.mine.path.name}"

    def is_dead(self, owner: str) -> bool:
        folder, _, name = owner.partition("@")[2].partition("/")
        is_of_this_instance = folder == self._folder.name and "/" not in name
        return is_of_this_instance and (self._folder / f"{_DEAD}{name}").exists()

    def try_lock(self, name: str) -> bool:
        return self._locks.try_lock(name)

    def unlock(self, name: str) -> None:
        self._locks.unlock(name)

    def remove_dead(self) -> list[Any]:
        """Look for dead processes; return the requests that roll back their transactions.

        These are in this process's file from now on. If it dies in turn, others find them there.
        """
        requests: list[Any] = []
        for path in self._files():
            with _requests_of_dead(path) as rollbacks:
                for request in rollbacks:
                    self.mine.add(request)
                requests += rollbacks
        return requests

    def _files(self) -> list[Path]:
        try:
            return [path for path in self._folder.iterdir() if not path.name.startswith(_HIDDEN)]
        except FileNotFoundError:  # The master has ended.
            return []


class ProcessFile:
    """The file of a living process: it is locked, and has a slot for each open transaction.

    A slot holds the request that rolls the transaction back. A request that is too long, or finds
    no free slot, is not written.
    """

    _LENGTH = struct.Struct("H")
    _SLOT_BYTES = 512
    _SLOTS = 256

    def __init__(self, folder: str) -> None:
        """Make the file, under a name of its own.

        Raises:
            OSError: the folder takes none.
        """
        self._fd, text = tempfile.mkstemp(dir=folder, prefix=_HIDDEN)
        path = Path(text)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            # On a full disk writing to a hole in its memory later would kill the process.
            allocate(self._fd, self._SLOT_BYTES * self._SLOTS)
            self._memory = mmap.mmap(self._fd, 0)
        except OSError:
            path.unlink(missing_ok=True)
            os.close(self._fd)
            raise
        self.path = path.rename(path.with_name(f"{os.getpid()}{path.name}"))
        self._lock = threading.Lock()
        self._slots: dict[bytes, int] = {}
        self._free = list(range(self._SLOTS))

    def add(self, rollback: Any) -> None:
        """Record a transaction by the request that rolls it back."""
        text = rollback.SerializeToString()
        with self._lock:
            if len(text) > self._SLOT_BYTES - self._LENGTH.size or not self._free:
                return
            slot = self._slots[rollback.transaction] = self._free.pop()
            at = slot * self._SLOT_BYTES
            begins_at = at + self._LENGTH.size
            self._memory[begins_at : begins_at + len(text)] = text
            self._LENGTH.pack_into(self._memory, at, len(text))  # Last: the slot is whole now.

    def remove(self, transaction: bytes) -> None:
        """Remove a transaction that has ended."""
        with self._lock:
            slot = self._slots.pop(transaction, None)
            if slot is not None:
                self._LENGTH.pack_into(self._memory, slot * self._SLOT_BYTES, 0)
                self._free.append(slot)

    def close(self) -> None:
        """Release the file, as the death of its process does."""
        self._memory.close()
        os.close(self._fd)

    @classmethod
    def read(cls, content: bytes) -> list[Any]:
        """Return the requests in a file's content."""
        requests = []
        for at in range(0, len(content), cls._SLOT_BYTES):
            (length,) = cls._LENGTH.unpack_from(content, at)
            begins_at = at + cls._LENGTH.size
            with contextlib.suppress(DecodeError):
                if length:
                    text = content[begins_at : begins_at + length]
                    requests.append(RollbackRequest.pb().FromString(text))
        return requests


class LockFile:
    """Locks by name among the threads of processes that share a file.

    A name is a byte of it, which need not exist. The kernel releases the locks of a process that
    dies. It does not tell the threads of one process apart, so each process notes its own locks.
    """

    def __init__(self, path: Path) -> None:
        """Open the file.

        Raises:
            OSError: the folder takes none.
        """
        self._fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        self._lock = threading.Lock()
        self._held: set[int] = set()

    def try_lock(self, name: str) -> bool:
        """Take a lock; False: another thread has it, here or elsewhere."""
        byte = _byte_of(name)
        with self._lock:
            if byte in self._held:
                return False
            try:
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
            except (BlockingIOError, PermissionError):
                return False
            except OSError:  # The file system has no locks: those of this process have to do.
                log.debug("no lock on %s", name, exc_info=True)
            self._held.add(byte)
            return True

    def unlock(self, name: str) -> None:
        """Release a lock."""
        byte = _byte_of(name)
        with self._lock:
            self._held.remove(byte)
            with contextlib.suppress(OSError):
                fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, byte)


def _byte_of(name: str) -> int:
    # Two names of one byte wait for each other, which is rare and does no harm.
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:7])


def open_processes(folder: str | None) -> LockedFiles | None:
    """Join the processes of an instance; None: it has no folder."""
    if not folder:
        return None
    try:
        return LockedFiles(folder)
    except OSError as error:
        log.warning("other processes cannot tell when this one dies: %s", error)
        return None


@contextlib.contextmanager
def _requests_of_dead(path: Path) -> Iterator[list[Any]]:
    """Yield the requests in the file of a dead process, then mark it; nothing if it lives."""
    try:
        file = path.open("r+b")
    except FileNotFoundError:  # Another process was faster.
        yield []
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield []
            return
        yield ProcessFile.read(file.read())
        file.truncate(0)
        with contextlib.suppress(FileNotFoundError):
            path.rename(path.with_name(f"{_DEAD}{path.name}"))
