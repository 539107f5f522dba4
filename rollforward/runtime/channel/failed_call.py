"""Calls that fail before they leave the process, as if the service had refused them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc


def error_of(call: Any) -> Exception | None:
    """Return the error of a call that has ended; of a cancelled one, the cancellation.

    gRPC raises that one, and logs an error of the callback that has asked.
    """
    try:
        error: Exception | None = call.exception()
    except grpc.FutureCancelledError as cancellation:
        return cancellation  # type: ignore[no-any-return]
    return error


class FailedCall(grpc.RpcError, grpc.Call, grpc.Future):  # type: ignore[misc]
    """A failed call. An interceptor raises it, and earlier interceptors get it as the call."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    def initial_metadata(self) -> tuple[()]:
        return ()

    def trailing_metadata(self) -> tuple[()]:
        return ()

    def is_active(self) -> bool:
        return False

    def time_remaining(self) -> None:
        return None

    def cancel(self) -> bool:
        return False

    def add_callback(self, callback: Callable[[], None]) -> bool:
        return False

    def cancelled(self) -> bool:
        return False

    def running(self) -> bool:
        return False

    def done(self) -> bool:
        return True

    def result(self, timeout: float | None = None) -> Any:
        raise self

    def exception(self, timeout: float | None = None) -> Exception:
        return self

    def traceback(self, timeout: float | None = None) -> None:
        return None

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        callback(self)
