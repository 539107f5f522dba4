"""Answers of Datastore that a proxy cuts short for a while: parts of queries, deferred keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from google.cloud.datastore_v1.types import (
    LookupRequest,
    LookupResponse,
    RunQueryRequest,
    RunQueryResponse,
)

from rollforward.testing.short_answers import ShortAnswers

_TYPES = {
    "RunQuery": (RunQueryRequest, RunQueryResponse),
    "Lookup": (LookupRequest, LookupResponse),
}
# The emulators cannot continue from a cursor among the values of a repeated property.
_UNCUT = "places"


@dataclass
class SwitchedAnswers(ShortAnswers):
    """Cuts answers while it is on. Cursors that it gave out work also when it is off."""

    is_on: bool = False

    def ask_by(self, send: Callable[[bytes], bytes], method: str, request: bytes) -> bytes:
        """Ask a service, in the form of a proxy."""
        kinds = _TYPES.get(method.rpartition("/")[2])
        if kinds is None:
            return send(request)
        asked, told = kinds

        def goes_on(details: Any, message: Any) -> _Done:
            is_plus = isinstance(message, asked)
            raw = asked.serialize(message) if is_plus else message.SerializeToString()
            return _Done(told.deserialize(send(raw)))

        details = SimpleNamespace(method=method)
        answer: bytes = told.serialize(
            self.ask(goes_on, details, asked.deserialize(request)).result()
        )
        return answer

    def _query(self, continuation: Any, details: Any, request: Any) -> Any:
        if any(order.property.name == _UNCUT for order in request.query.order):
            return continuation(details, request)
        return super()._query(continuation, details, request)

    def _results(self, query: Any, limit: int, *, is_first: bool) -> int:
        return super()._results(query, limit, is_first=is_first) if self.is_on else limit

    def _found(self, keys: list[Any]) -> int:
        return super()._found(keys) if self.is_on else len(keys)


@dataclass(frozen=True)
class _Done:
    """A call that was answered."""

    answer: Any

    def result(self) -> Any:
        return self.answer
