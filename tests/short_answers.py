"""Answers of Datastore that are cut short, as its contract allows and its emulators hardly do.

A query may be answered with some of its results, or with none, and NOT_FINISHED; a lookup may leave
keys for the next one ("deferred"), in any order. Who takes such an answer for the whole loses rows
without a word. `shortened` lets a world answer so for a while.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from google.cloud.datastore_v1.types import (
    LookupRequest,
    LookupResponse,
    QueryResultBatch,
    RunQueryRequest,
    RunQueryResponse,
)

from tests.world import World

# Before the cursors that are given out: one that says nothing else stands for the beginning.
_MARK = b"short:"
NOT_FINISHED = QueryResultBatch.MoreResultsType.NOT_FINISHED


@dataclass
class ShortAnswers:
    """Cuts answers: a query's first is empty, others are so, or have one result, or half."""

    chance: random.Random
    cut: int = 0
    empty: int = 0
    deferred: int = 0

    def ask(self, continuation: Any, details: Any, request: Any) -> Any:
        """Make a call, or a part of it."""
        match details.method.rpartition("/")[2]:
            case "RunQuery":
                return self._query(continuation, details, request)
            case "Lookup":
                return self._look_up(continuation, details, request)
        return continuation(details, request)

    def _query(self, continuation: Any, details: Any, request: Any) -> Any:
        asked = RunQueryRequest.pb()()
        asked.CopyFrom(_plain(RunQueryRequest, request))
        query = asked.query
        is_first = not query.start_cursor
        begin = query.start_cursor = query.start_cursor.removeprefix(_MARK)
        limit = query.limit.value if query.HasField("limit") else 10**6
        some = 0 if is_first else self.chance.choice([0, 1, limit // 2])
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

    def _look_up(self, continuation: Any, details: Any, request: Any) -> Any:
        asked = LookupRequest.pb()()
        asked.CopyFrom(_plain(LookupRequest, request))
        keys = list(asked.keys)
        if len(keys) == 1:
            return continuation(details, request)
        self.chance.shuffle(keys)
        some = self.chance.randrange(1, len(keys))
        del asked.keys[:]
        asked.keys.extend(keys[:some])
        call = continuation(details, asked)
        LookupResponse.pb(call.result()).deferred.extend(keys[some:])
        self.deferred += len(keys) - some
        return call


def _plain(kind: Any, request: Any) -> Any:
    """Return a request as protobuf, whichever of both it is."""
    return kind.pb(request) if isinstance(request, kind) else request


@contextmanager
def shortened(world: World, seed: int = 0) -> Iterator[ShortAnswers]:
    """Cut the answers to all that this block asks."""
    before, answers = world.wire.ask, ShortAnswers(random.Random(seed))
    world.wire.ask = answers.ask
    try:
        yield answers
    finally:
        world.wire.ask = before
