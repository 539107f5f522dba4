"""Calls of Datastore by the client's own stub, each followed to the end of its answer.

The service may answer a query with a part of its results, or with none, and say that more follow;
a lookup may leave keys for the next one, and takes 1,000. All code that does not read by ndb reads
by these two loops. ndb follows its own queries and lookups.

Where the service has snapshots, all parts of an answer are of one moment: that of the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import grpc
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb
from google.cloud.datastore_v1.types import (
    LookupRequest,
    LookupResponse,
    QueryResultBatch,
    RunQueryResponse,
)
from google.cloud.ndb._datastore_api import _add_routing_info

MAX_KEYS = 1000
MAX_SIDE_BY_SIDE = 50  # A connection takes a hundred calls at a time, also those of other threads.
NOT_FINISHED = QueryResultBatch.MoreResultsType.NOT_FINISHED


class Lookup(NamedTuple):
    """The entities that were found, and the moment they are of.

    `moment` is None where the service has no snapshots (the Datastore emulator).
    """

    results: list[Any]
    moment: Any
    is_one_moment: bool


def call_stub(method: Any, request: Any) -> Any:
    """Call a method of a client's stub, with the header by which it finds its database.

    Raises:
        google.api_core.exceptions.GoogleAPICallError: what the service said.
    """
    try:
        return method(request, metadata=_add_routing_info((), request))
    except grpc.RpcError as error:
        raise rpc_errors.from_grpc_error(error) from error  # type: ignore[no-untyped-call]


def _call_side_by_side(method: Any, requests: Sequence[Any]) -> list[Any]:
    """Call a method of a client's stub for each of some requests at once; all have to answer.

    Raises:
        google.api_core.exceptions.GoogleAPICallError: what the service said of one of them.
    """
    if len(requests) == 1:  # gRPC runs a thread for a future.
        return [call_stub(method, requests[0])]
    calls: list[Any] = []
    try:
        for request in requests:
            calls.append(method.future(request, metadata=_add_routing_info((), request)))
        return [call.result() for call in calls]
    except grpc.RpcError as error:
        raise rpc_errors.from_grpc_error(error) from error  # type: ignore[no-untyped-call]
    finally:
        for call in calls:
            call.cancel()  # Of those that have ended, nothing.


def look_up(
    client: ndb.Client, keys: Sequence[Any], *, at: Any = None, transaction: bytes | None = None
) -> Lookup:
    """Look up distinct keys, all of them, in any order.

    Args:
        keys: As protobuf.
        at: A moment that an earlier lookup returned.
        transaction: Whose part the lookup is.

    Raises:
        google.api_core.exceptions.GoogleAPICallError: what the service said.
    """
    found, moment, calls, left = [], at, 0, list(keys)
    while left:
        request = LookupRequest.pb()(
            project_id=client.project, database_id=client.database or "", keys=left[:MAX_KEYS]
        )
        if transaction is not None:
            request.read_options.transaction = transaction
        elif moment is not None:
            request.read_options.read_time.CopyFrom(moment)
        response = LookupResponse.pb(call_stub(client.stub.lookup, request))
        found += response.found
        if moment is None and response.HasField("read_time"):
            moment = response.read_time
        left, calls = [*response.deferred, *left[MAX_KEYS:]], calls + 1
    return Lookup(found, moment, moment is not None or calls <= 1)


def run_query(client: ndb.Client, request: Any) -> list[Any]:
    """Return all results of a query, up to its limit.

    Args:
        request: A RunQueryRequest, as protobuf; it is used up.

    Raises:
        google.api_core.exceptions.GoogleAPICallError: what the service said.
    """
    return run_queries(client, [request])[0]


def run_queries(client: ndb.Client, requests: Sequence[Any]) -> list[list[Any]]:
    """Return all results of each of some queries, which are asked side by side.

    Args:
        requests: As `run_query` takes them.

    Raises:
        google.api_core.exceptions.GoogleAPICallError: what the service said of one of them.
    """
    found: list[list[Any]] = [[] for _ in requests]
    left = list(zip(requests, found, strict=True))
    while left:
        now, after = left[:MAX_SIDE_BY_SIDE], left[MAX_SIDE_BY_SIDE:]
        answers = _call_side_by_side(client.stub.run_query, [request for request, _ in now])
        parts = [RunQueryResponse.pb(answer).batch for answer in answers]
        left = []
        for (request, results), batch in zip(now, parts, strict=True):
            results += batch.entity_results
            if batch.more_results == NOT_FINISHED and _continue(request, batch):
                left.append((request, results))
        left += after
    return found


def _continue(request: Any, batch: Any) -> bool:
    """Ask for what follows a part of a query's results; return whether anything may."""
    query, options = request.query, request.read_options
    query.start_cursor = batch.end_cursor
    query.offset = max(0, query.offset - batch.skipped_results)
    if options.WhichOneof("consistency_type") is None and batch.HasField("read_time"):
        options.read_time.CopyFrom(batch.read_time)
    if not query.HasField("limit"):
        return True
    query.limit.value -= len(batch.entity_results)
    return bool(query.limit.value > 0)
