"""Errors of calls that have ended: a cancelled call raises instead of naming its error."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from google.cloud.datastore_v1 import types

from rollforward.runtime.channel.failed_call import FailedCall, error_of
from rollforward.runtime.channel.limits import DatastoreLimits
from rollforward.runtime.channel.rpc import Meter
from rollforward.runtime.process.open_transactions import OpenTransactions

pytestmark = pytest.mark.fast

DATASTORE = "/google.datastore.v1.Datastore"


class CancelledCall:
    """A call of gRPC that was cancelled: its callbacks run, and its error is raised."""

    def exception(self) -> Exception:
        raise grpc.FutureCancelledError

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        callback(self)


def test_the_error_of_a_cancelled_call_is_the_cancellation() -> None:
    """That of another one is its own, and one that has succeeded has none."""
    failed = FailedCall(grpc.StatusCode.ABORTED, "lost a race")

    assert isinstance(error_of(CancelledCall()), grpc.FutureCancelledError)
    assert error_of(failed) is failed
    assert error_of(SimpleNamespace(exception=lambda: None)) is None


@pytest.mark.parametrize(
    ("interceptor", "rpc"),
    [
        (Meter(), "Lookup"),
        (Meter(), "RunQuery"),
        (DatastoreLimits(), "BeginTransaction"),
        (OpenTransactions(), "BeginTransaction"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_cancelled_call_raises_in_no_callback(interceptor: Any, rpc: str) -> None:
    """GRPC logs such an error, with a traceback and no word of what to do."""
    request = getattr(types, f"{rpc}Request").pb()()
    details = SimpleNamespace(method=f"{DATASTORE}/{rpc}")

    call = interceptor.intercept_unary_unary(lambda *_: CancelledCall(), details, request)

    assert isinstance(call, CancelledCall)
