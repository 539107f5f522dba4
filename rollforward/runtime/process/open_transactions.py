"""Rollback of abandoned transactions, left by killed processes or lost rollbacks.

On a service that locks the rows of a transaction, the transaction of a killed process keeps its
locks until it expires: those rows cannot be written for a minute. So each process records its open
transactions (`processes.py`). The other processes roll them back when it has died.

A rollback without an answer leaves locks behind, too: its process retries it until it is answered.

Only rollbacks are sent, and none for a living process. If one did hit a living transaction, that
transaction would have no effect, and its caller would get the error.

Lost on failure: nothing. If all processes of an instance are gone, rows stay locked until the
service expires the transaction.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import grpc
from google.cloud.datastore_v1.types import RollbackRequest

from rollforward.runtime.channel.failed_call import error_of
from rollforward.runtime.process.daemons import start_daemon
from rollforward.runtime.process.processes import LockedFiles

log = logging.getLogger(__name__)

LOOK_EVERY_S = RETRY_EVERY_S = 1.0
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


class OpenTransactions(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    """Tracks the transactions of a channel to Datastore; rolls back abandoned ones."""

    def __init__(
        self,
        processes: LockedFiles | None = None,
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Track nothing yet.

        Args:
            processes: The processes of this instance; None: there is no other.
            sleep: Waits between two rollbacks of one transaction; its argument is in seconds.
        """
        self._processes = processes
        self._sleep = sleep
        self._lock = threading.Lock()
        self._abandoned: list[Any] = []
        self._rollbacks: Counter[bytes] = Counter()
        self._is_retrying = False
        self._rollback: Callable[..., Any] | None = None

    def start(self, rollback: Callable[..., Any]) -> None:
        """Start rolling back by a method of the channel's stub; watch for dead processes."""
        self._rollback = rollback
        if self._processes is not None:
            threading.Thread(target=self._check, name="rollbacks", daemon=True).start()

    def recover(self) -> int:
        """Roll back the transactions of dead processes of this instance; return how many."""
        requests = self._processes.remove_dead() if self._processes is not None else []
        for request in requests:
            self._roll_back(request)
        if requests:
            log.info("%d transactions of a killed process are rolled back", len(requests))
        return len(requests)

    def _check(self) -> None:
        while True:
            try:
                self.recover()
            except Exception:
                log.exception("dead processes are looked for again in a moment")
            self._sleep(LOOK_EVERY_S)

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
        if self._processes is not None and error_of(call) is None:
            self._processes.mine.add(
                RollbackRequest.pb()(
                    project_id=request.project_id,
                    database_id=request.database_id,
                    transaction=call.result().transaction,
                )
            )

    def _follow_commit(self, request: Any, call: Any) -> None:
        if error_of(call) is None:  # After one that failed its caller rolls back.
            self._ended(request.transaction)

    def _follow_rollback(self, request: Any, call: Any) -> None:
        if call.code() in _UNANSWERED:
            self._abandon(request)
        else:
            self._ended(request.transaction)

    def _ended(self, transaction: bytes) -> None:
        self._rollbacks.pop(transaction, None)
        if self._processes is not None:
            self._processes.mine.remove(transaction)

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
        if is_to_start and not start_daemon(self._retry, "rollbacks"):
            with self._lock:
                self._is_retrying = False

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
