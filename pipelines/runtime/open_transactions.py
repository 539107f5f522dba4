"""Roll back what killed processes left open: each writes down which transactions it holds.

Where the store locks what a transaction has read, that of a killed process keeps its locks until
the store gives it up: for a minute nobody writes those rows. So each process writes the ids of its
open transactions into a file, in a folder that the processes of an instance share. It writes to
memory that outlives it, and holds a lock on the file, which the kernel releases when it dies. A
process that starts takes over what dead ones have left, and rolls it back: gunicorn replaces a
killed worker at once.

A rollback without an answer leaves locks behind, too: its process repeats it until there is one.

Only rollbacks are sent, and none for a process that lives. Should one hit a living transaction all
the same, that one has no effect, and its caller is told so.

Lost on failure: nothing. Without the folder, and when an instance is gone with its processes, rows
stay locked until the store ends the transaction.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import mmap
import os
import struct
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
from google.cloud.datastore_v1.types import RollbackRequest
from google.protobuf.message import DecodeError

log = logging.getLogger(__name__)

RETRY_EVERY_S = 1.0
ROLLBACK_TIMEOUT_S = 2.0
# The store ends a transaction by itself when it has been idle for a minute.
MAX_ROLLBACKS = 60
# Answers that leave open whether the transaction has ended.
_UNANSWERED = (
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.UNKNOWN,
)
_UNFINISHED = "."  # Begins the name of a file that is not locked yet.


class OpenTransactions(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    """Follows the transactions of a channel to Datastore; rolls back those that nobody ends."""

    def __init__(
        self, folder: str | None = None, *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """Follow nothing yet.

        Args:
            folder: What the processes of this instance share; None: nothing.
            sleep: Waits between two rollbacks of one transaction; its argument is in seconds.
        """
        self._folder = folder
        self._sleep = sleep
        self._file = _new_file(folder)
        self._lock = threading.Lock()
        self._abandoned: list[Any] = []
        self._rollbacks: Counter[bytes] = Counter()
        self._is_retrying = False
        self._rollback: Callable[..., Any] | None = None

    def start(self, rollback: Callable[..., Any]) -> None:
        """Begin to roll back, by a method of the channel's stub; first what dead processes left."""
        self._rollback = rollback
        if self._folder:
            threading.Thread(target=self.recover, name="rollbacks", daemon=True).start()

    def recover(self) -> int:
        """Roll back the transactions of dead processes of this instance; return how many."""
        recovered = 0
        for path in _files(self._folder):
            with _left_by_the_dead(path) as requests:
                for request in requests:
                    self._opened(request)  # Whoever kills this process leaves it to the next one.
            for request in requests:
                self._roll_back(request)
            recovered += len(requests)
        if recovered:
            log.warning("%d transactions of a killed process are rolled back", recovered)
        return recovered

    def intercept_unary_unary(
        self, continuation: Callable[[Any, Any], Any], details: Any, request: Any
    ) -> Any:
        rpc = details.method.rpartition("/")[2]
        call = continuation(details, request)
        if rpc == "BeginTransaction":
            call.add_done_callback(lambda done: self._follow_begin(request, done))
        elif rpc == "Commit" and request.transaction:
            call.add_done_callback(lambda done: self._follow_commit(request, done))
        elif rpc == "Rollback":
            call.add_done_callback(lambda done: self._follow_rollback(request, done))
        return call

    def _follow_begin(self, request: Any, call: Any) -> None:
        if call.exception() is None:
            self._opened(
                RollbackRequest.pb()(
                    project_id=request.project_id,
                    database_id=request.database_id,
                    transaction=call.result().transaction,
                )
            )

    def _follow_commit(self, request: Any, call: Any) -> None:
        if call.exception() is None:  # After one that failed its caller rolls back.
            self._ended(request.transaction)

    def _follow_rollback(self, request: Any, call: Any) -> None:
        if call.code() in _UNANSWERED:
            self._abandon(request)
        else:
            self._ended(request.transaction)

    def _opened(self, rollback: Any) -> None:
        if self._file is not None:
            self._file.add(rollback)

    def _ended(self, transaction: bytes) -> None:
        self._rollbacks.pop(transaction, None)
        if self._file is not None:
            self._file.remove(transaction)

    def _abandon(self, request: Any) -> None:
        with self._lock:
            self._rollbacks[request.transaction] += 1
            is_hopeless = self._rollbacks[request.transaction] >= MAX_ROLLBACKS
            if not is_hopeless:
                self._abandoned.append(request)
            is_to_start = not (is_hopeless or self._is_retrying or self._rollback is None)
            self._is_retrying |= is_to_start
        if is_hopeless:
            self._ended(request.transaction)
        if is_to_start:
            threading.Thread(target=self._retry, name="rollbacks", daemon=True).start()

    def _retry(self) -> None:
        while requests := self._take_abandoned():
            self._sleep(RETRY_EVERY_S)
            for request in requests:
                self._roll_back(request)

    def _take_abandoned(self) -> list[Any]:
        with self._lock:
            requests, self._abandoned = self._abandoned, []
            self._is_retrying = bool(requests)
            return requests

    def _roll_back(self, request: Any) -> None:
        """Roll back a transaction; this class sees its own call, and whether it was answered."""
        assert self._rollback is not None
        try:
            self._rollback(request, timeout=ROLLBACK_TIMEOUT_S)
        except grpc.RpcError as error:
            log.info("a transaction is not rolled back: %s", error)


class TransactionFile:
    """The open transactions of one process, in a file that is locked as long as it lives.

    Each has a slot with the request that rolls it back. One that is too long, or finds no slot
    free, is not written.
    """

    _LENGTH = struct.Struct("H")
    _SLOT_BYTES = 512
    _SLOTS = 256

    def __init__(self, folder: str) -> None:
        """Make the file, under a name of its own.

        Raises:
            OSError: the folder takes none.
        """
        self._fd, path = tempfile.mkstemp(dir=folder, prefix=_UNFINISHED)
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        # Zeros, not a hole: on a full disk writing to its memory later would kill the process.
        os.write(self._fd, bytes(self._SLOT_BYTES * self._SLOTS))
        self._memory = mmap.mmap(self._fd, 0)
        self.path = Path(path).rename(Path(folder) / f"{os.getpid()}{Path(path).name}")
        self._lock = threading.Lock()
        self._slots: dict[bytes, int] = {}
        self._free = list(range(self._SLOTS))

    def add(self, rollback: Any) -> None:
        """Write a transaction down, by the request that rolls it back."""
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
        """Strike out a transaction that has ended."""
        with self._lock:
            slot = self._slots.pop(transaction, None)
            if slot is not None:
                self._LENGTH.pack_into(self._memory, slot * self._SLOT_BYTES, 0)
                self._free.append(slot)

    def close(self) -> None:
        """Let go of the file, as the death of its process does."""
        self._memory.close()
        os.close(self._fd)

    @classmethod
    def read(cls, content: bytes) -> list[Any]:
        """Return the requests that roll back what a file names."""
        requests = []
        for at in range(0, len(content), cls._SLOT_BYTES):
            (length,) = cls._LENGTH.unpack_from(content, at)
            begins_at = at + cls._LENGTH.size
            with contextlib.suppress(DecodeError):
                if length:
                    text = content[begins_at : begins_at + length]
                    requests.append(RollbackRequest.pb().FromString(text))
        return requests


def _new_file(folder: str | None) -> TransactionFile | None:
    if folder is None:
        return None
    try:
        return TransactionFile(folder)
    except OSError as error:
        log.warning("nobody will know which transactions this process holds open: %s", error)
        return None


def _files(folder: str | None) -> list[Path]:
    if folder is None:
        return []
    try:
        return [path for path in Path(folder).iterdir() if not path.name.startswith(_UNFINISHED)]
    except FileNotFoundError:  # The master has ended.
        return []


@contextlib.contextmanager
def _left_by_the_dead(path: Path) -> Iterator[list[Any]]:
    """Yield what a file names if its process is dead, and then remove it; nothing otherwise."""
    try:
        file = path.open("rb")
    except FileNotFoundError:  # Another process was faster.
        yield []
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield []
            return
        yield TransactionFile.read(file.read())
        path.unlink(missing_ok=True)
