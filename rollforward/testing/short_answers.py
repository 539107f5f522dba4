"""Answers of Datastore that are cut short, as its contract allows and its emulators hardly do.

A query may be answered with some of its results, or with none, and NOT_FINISHED; a lookup may leave
keys for the next one ("deferred"), in any order. Code that takes a part for the whole loses rows
silently.

`RandomAnswers` cuts some answers, always the same: those to a third of the shapes that queries
have, and to a third of all sets of keys, drawn by a seed. None of its answers has more than 300
results.
`shortened` cuts all answers for a while, and `whole` none.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from google.cloud.datastore_v1.types import (
    LookupRequest,
    LookupResponse,
    QueryResultBatch,
    RunQueryRequest,
    RunQueryResponse,
)

# Before the cursors that are given out: one that says nothing else stands for the beginning.
_MARK = b"short:"
NOT_FINISHED = QueryResultBatch.MoreResultsType.NOT_FINISHED
MAX_RESULTS = 300  # Of one answer, as the Datastore emulator cuts them.
CUT_OF = 3


class Wire(Protocol):
    """A wire to Datastore: it asks by a function that tests replace."""

    ask: Callable[..., Any]


class Wired(Protocol):
    """A world, as far as it is known here."""

    @property
    def wire(self) -> Wire: ...


@dataclass
class ShortAnswers:
    """Cuts answers: a query's first is empty, others are so, or have one result, or half."""

    chance: random.Random = field(default_factory=lambda: random.Random(0))
    cut: int = 0
    empty: int = 0
    deferred: int = 0

    def ask(self, continuation: Any, details: Any, request: Any) -> Any:
        """Make a call, or a part of it."""
        match details.method.rpartition("/")[2]:
            case "RunQuery":
                return self._query(continuation, details, request)
            case "Lookup":
                return self._lookup(continuation, details, request)
        return continuation(details, request)

    def _query(self, continuation: Any, details: Any, request: Any) -> Any:
        asked = RunQueryRequest.pb()()
        asked.CopyFrom(_plain(RunQueryRequest, request))
        query = asked.query
        is_first = not query.start_cursor
        begin = query.start_cursor = query.start_cursor.removeprefix(_MARK)
        limit = query.limit.value if query.HasField("limit") else 10**6
        some = self._results(query, limit, is_first=is_first)
        is_cut = some < limit and not query.offset
        if is_cut:
            query.limit.value = max(some, 1)
        call = continuation(details, asked)
        batch = RunQueryResponse.pb(call.result()).batch
        if is_cut and not some and batch.entity_results:
            del batch.entity_results[:]
            batch.more_results, batch.end_cursor = NOT_FINISHED, begin
            self.empty += 1
        elif is_cut and len(batch.entity_results) == query.limit.value:
            batch.more_results = NOT_FINISHED
            self.cut += 1
        batch.end_cursor = _MARK + batch.end_cursor
        return call

    def _lookup(self, continuation: Any, details: Any, request: Any) -> Any:
        asked = LookupRequest.pb()()
        asked.CopyFrom(_plain(LookupRequest, request))
        keys = list(asked.keys)
        some = self._found(keys)
        if some >= len(keys):
            return continuation(details, request)
        del asked.keys[:]
        asked.keys.extend(keys[:some])
        call = continuation(details, asked)
        LookupResponse.pb(call.result()).deferred.extend(keys[some:])
        self.deferred += len(keys) - some
        return call

    def _results(self, query: Any, limit: int, *, is_first: bool) -> int:
        """Return how many results a part of an answer has."""
        return 0 if is_first else self.chance.choice([0, 1, limit // 2])

    def _found(self, keys: list[Any]) -> int:
        """Return how many keys a lookup answers for: the first ones, in their new order."""
        if len(keys) < 2:
            return len(keys)
        self.chance.shuffle(keys)
        return self.chance.randrange(1, len(keys))


@dataclass
class RandomAnswers(ShortAnswers):
    """Cuts the first answer to some questions, and each above 300 results.

    The shape of a question decides, so a repeated play makes the same calls. A lookup outside of a
    transaction is cut only where its parts are of one moment; ndb would repeat others for ever.

    Attributes:
        uncut: Shapes (the kind, then the order) of queries by a repeated property: the Datastore
            emulator cannot continue from a cursor among its values.
    """

    has_snapshots: bool = True
    seed: str = ""
    uncut: Collection[Sequence[str]] = ()

    def _lookup(self, continuation: Any, details: Any, request: Any) -> Any:
        if not (self.has_snapshots or request.read_options.transaction):
            return continuation(details, request)
        return super()._lookup(continuation, details, request)

    def _results(self, query: Any, limit: int, *, is_first: bool) -> int:
        shape = [query.kind[0].name if query.kind else "", *(o.property.name for o in query.order)]
        drawn = _random_shape(self.seed, *shape, *(p.property.name for p in query.projection))
        if drawn % CUT_OF or not is_first or tuple(shape) in self.uncut:
            return min(limit, MAX_RESULTS)
        return (0, 1, limit // 2)[drawn // CUT_OF % 3]

    def _found(self, keys: list[Any]) -> int:
        drawn = _random_shape(
            self.seed, *sorted({key.path[-1].kind for key in keys}), str(len(keys))
        )
        if drawn % CUT_OF:
            return len(keys)
        keys.reverse()
        return max(1, len(keys) // 2)


def _random_shape(*shape: str) -> int:
    """Return a number for a shape, the same each time."""
    return zlib.crc32("|".join(shape).encode())


def _plain(kind: Any, request: Any) -> Any:
    """Return a request as protobuf, whichever of both it is."""
    return kind.pb(request) if isinstance(request, kind) else request


@contextmanager
def shortened(world: Wired, seed: int = 0) -> Iterator[ShortAnswers]:
    """Cut the answers to all that this block asks."""
    answers = ShortAnswers(random.Random(seed))
    with _asking(world, answers.ask):
        yield answers


@contextmanager
def whole(world: Wired) -> Iterator[None]:
    """Answer all that this block asks at once: it counts the calls."""
    with _asking(world, lambda goes_on, *call: goes_on(*call)):
        yield


@contextmanager
def _asking(world: Wired, ask: Callable[..., Any]) -> Iterator[None]:
    usual, world.wire.ask = world.wire.ask, ask
    try:
        yield
    finally:
        world.wire.ask = usual
