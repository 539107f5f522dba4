"""Turns for transactions that read and write one row: they follow each other, and do not collide.

If reads lock, as by default in the service, transactions that have read one row wait for each
other's locks before they can write it, until the store gives one or all of them up. As long as
others begin meanwhile, none may ever commit: of eight at a time on the Firestore emulator none did
in fifty minutes. If the first commit wins, all others were for nothing.

So after some collisions on a row, a transaction takes its turn before it reads that row, and ends
it with its commit or rollback. The rows of a query count as one. Other rows are as fast as
before. The turn is an advisory lock: nothing depends on it, and a transaction goes ahead without it
after some seconds (ADR 0037).

Lost on failure: nothing. The turn of a killed process ends in two seconds.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import grpc

from rollforward.runtime.advisory_lock import advisory_lock
from rollforward.runtime.channel.failed_call import error_of
from rollforward.runtime.channel.row_names import names_read, names_written, shown
from rollforward.runtime.channel.rpc import message_of
from rollforward.runtime.clients import Clients

log = logging.getLogger(__name__)

# Collisions of one row within `HOT_S` from which on its transactions take turns, and for how long.
COLLISIONS = 2
HOT_S = 10.0
# A turn among the processes that took longer was waited for.
AT_ONCE_S = 0.002
# A transaction begins no attempt after ten seconds (`transact`).
MAX_WAIT_S = 8.0
# The service ends a transaction that has been idle for a minute, whose thread may have lost it.
TRANSACTION_S = 60.0
MAX_TRANSACTIONS = 1_000
MAX_ROWS = 1_000
_READS = ("Lookup", "RunQuery", "RunAggregationQuery")


@dataclass
class _Row:
    """A row with collisions.

    Attributes:
        collisions: How many there were since it was hot last.
        until_s: When they are forgotten, by `time.monotonic`.
        mutex: Its turns in this process.
        thread: The thread that took the last of them.
    """

    collisions: int = 0
    until_s: float = 0.0
    mutex: threading.Lock = field(default_factory=threading.Lock)
    thread: threading.Thread | None = None

    def wait(self, timeout_s: float, hot_until_s: float) -> threading.Lock | None:
        """Wait for a turn in this process; return what to release, None: it did not come."""
        mutex, thread = self.mutex, threading.current_thread()
        if mutex.acquire(blocking=False):
            self.thread = thread
            return mutex
        self.until_s = hot_until_s  # Others are here still.
        if self.thread is thread:
            return None  # A tasklet of this thread has it, which cannot end while this one waits.
        if timeout_s and mutex.acquire(timeout=timeout_s):
            self.thread = thread
            return mutex
        if timeout_s > MAX_WAIT_S / 2 and mutex is self.mutex:
            self.mutex = threading.Lock()  # Its holder does not end: the others need not wait.
        return None


@dataclass
class _Open:
    """An open transaction: when it was seen first, what it has read, and the turns that it has.

    One that only reads locks nothing, and takes no turns.
    """

    since_s: float
    read: dict[bytes, bytes] = field(default_factory=dict)
    rows: set[bytes] = field(default_factory=set)
    turns: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    is_read_only: bool = False


class HotRows(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    """Lets transactions of a channel to Datastore take turns on rows where they collide."""

    def __init__(
        self,
        now_s: Callable[[], float] = time.monotonic,
        *,
        by_kind: bool = False,
    ) -> None:
        """Take turns among the threads of this process.

        Args:
            by_kind: Whether all queries of a kind count as one row, as an emulator needs it.
        """
        self._now_s = now_s
        self._by_kind = by_kind
        self._lock = threading.Lock()
        self._rows: OrderedDict[bytes, _Row] = OrderedDict()
        self._open: OrderedDict[bytes, _Open] = OrderedDict()
        self._clients: Clients | None = None

    def start(self, clients: Clients) -> None:
        """Take turns with the transactions of other processes, too, by memcached."""
        self._clients = clients

    def intercept_unary_unary(
        self, continuation: Callable[[Any, Any], Any], details: Any, request: Any
    ) -> Any:
        rpc = details.method.rpartition("/")[2]
        if rpc in _READS and request.read_options.transaction:
            read = names_read(rpc, request, by_kind=self._by_kind)
            return self._read(continuation, details, request, read)
        if rpc in ("Commit", "Rollback") and request.transaction:
            return self._end(continuation, details, request, is_commit=rpc == "Commit")
        call = continuation(details, request)
        if rpc == "BeginTransaction" and _is_read_only(request):
            self._begin_read_only(call)
        return call

    def _begin_read_only(self, call: Any) -> None:
        if error_of(call) is None:
            self._opened(call.result().transaction).is_read_only = True

    def _read(
        self,
        continuation: Callable[[Any, Any], Any],
        details: Any,
        request: Any,
        read: dict[bytes, bytes],
    ) -> Any:
        opened = self._opened(request.read_options.transaction)
        if opened.is_read_only:
            return continuation(details, request)
        if self._rows:
            self._take_turns(opened, read)
        opened.read |= read
        call = continuation(details, request)
        if _is_aborted(call):
            self._collided(read)
        return call

    def _end(
        self,
        continuation: Callable[[Any, Any], Any],
        details: Any,
        request: Any,
        *,
        is_commit: bool,
    ) -> Any:
        with self._lock:
            opened = self._open.pop(request.transaction, None)
        if opened is None:
            return continuation(details, request)
        with opened.turns:
            call = continuation(details, request)
            if is_commit and _is_aborted(call):
                written = names_written(message_of(request).mutations, by_kind=self._by_kind)
                self._collided(name for name, row in opened.read.items() if row in written)
        return call

    def _opened(self, transaction: bytes) -> _Open:
        forgotten, now_s = None, self._now_s()
        with self._lock:
            opened = self._open.setdefault(transaction, _Open(now_s))
            oldest = next(iter(self._open.values()))
            is_lost = oldest is not opened and oldest.since_s <= now_s - TRANSACTION_S
            # It was neither committed nor rolled back, and others wait for its turns in vain.
            if is_lost or len(self._open) > MAX_TRANSACTIONS:
                _, forgotten = self._open.popitem(last=False)
        if forgotten is not None:
            forgotten.turns.close()
        return opened

    def _take_turns(self, opened: _Open, names: Iterable[bytes]) -> None:
        """Take the turns of hot rows, in an order that all transactions share.

        One that has the turn of a later row waits for none before it, since the holder of that one
        may wait for this transaction.
        """
        for name in sorted(set(names) - opened.rows):
            row = self._hot(name)
            if row is not None:
                is_in_order = name > max(opened.rows, default=b"")
                now_s = self._now_s()
                left_s = max(0.0, opened.since_s + MAX_WAIT_S - now_s)
                mutex = row.wait(left_s if is_in_order else 0.0, now_s + HOT_S)
                if mutex is not None:
                    opened.turns.callback(mutex.release)
                    opened.rows.add(name)
                    if self._clients is not None and is_in_order:
                        self._take_turn_of_all(self._clients, opened, name, row)

    def _take_turn_of_all(self, clients: Clients, opened: _Open, name: bytes, row: _Row) -> None:
        """Wait for the turn among all processes."""
        asked_s, name_of_lock = self._now_s(), f"rows:{hashlib.sha256(name).hexdigest()}"
        opened.turns.enter_context(advisory_lock(clients, name_of_lock, max_wait_s=MAX_WAIT_S))
        if (now_s := self._now_s()) - asked_s > AT_ONCE_S:
            row.until_s = now_s + HOT_S

    def _hot(self, name: bytes) -> _Row | None:
        with self._lock:
            row = self._rows.get(name)
            if row is not None and row.until_s <= self._now_s():
                del self._rows[name]
                return None
            return row if row is not None and row.collisions >= COLLISIONS else None

    def _collided(self, names: Iterable[bytes]) -> None:
        now_s, hot = self._now_s(), list[bytes]()
        with self._lock:
            for name in names:
                row = self._rows.setdefault(name, _Row())
                if row.until_s <= now_s:
                    row.collisions = 0
                row.collisions, row.until_s = row.collisions + 1, now_s + HOT_S
                self._rows.move_to_end(name)
                if row.collisions == COLLISIONS:
                    hot.append(name)
            while len(self._rows) > MAX_ROWS:
                self._rows.popitem(last=False)
        if hot:  # Nobody says on which of its rows a transaction has lost.
            others = f", or on {len(hot) - 1} others" if len(hot) > 1 else ""
            row_shown = f"{shown(hot[0])}{others}"
            log.info("transactions collide on %s, and take turns from now on", row_shown)


def _is_aborted(call: Any) -> bool:
    error = error_of(call)
    return isinstance(error, grpc.RpcError) and error.code() == grpc.StatusCode.ABORTED


def _is_read_only(request: Any) -> bool:
    return bool(message_of(request).transaction_options.HasField("read_only"))
