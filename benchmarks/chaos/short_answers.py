"""Partial answers of Datastore by a proxy, for some time: parts of queries, deferred keys."""

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
# The emulators cannot resume from a cursor between the values of a repeated property.
_UNCUT = "places"


@dataclass
class SwitchedAnswers(ShortAnswers):
    """Cuts answers short while it is on; the cursors of those answers also work when it is off."""

    is_on: bool = False

    def ask_by(self, send: Callable[[bytes], bytes], method: str, request: bytes) -> bytes:
        """Call a service; a proxy can use this as its `Ask`."""
        kinds = _TYPES.get(method.rpartition("/")[2])
        if kinds is None:
            return send(request)
        request_type, response_type = kinds

        def forward(details: Any, message: Any) -> _Done:
            is_plus = isinstance(message, request_type)
            raw = request_type.serialize(message) if is_plus else message.SerializeToString()
            return _Done(response_type.deserialize(send(raw)))

        details = SimpleNamespace(method=method)
        answer: bytes = response_type.serialize(
            self.ask(forward, details, request_type.deserialize(request)).result()
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
    """A completed call with its answer."""

    answer: Any

    def result(self) -> Any:
        return self.answer
