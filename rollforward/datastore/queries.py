"""The one query loop: it asks on while the service says NOT_FINISHED.

The service may answer with a part of the results, or with none, and say that more follow. With
snapshots, all parts are of the moment of the first. ndb follows its own queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.cloud import ndb
from google.cloud.datastore_v1.types import (
    CompositeFilter,
    PropertyFilter,
    PropertyOrder,
    QueryResultBatch,
    RunQueryRequest,
    RunQueryResponse,
)

from rollforward.datastore.stub import call_in_parallel

MAX_IN_PARALLEL = 50  # A connection takes a hundred calls at a time, of all threads together.
NOT_FINISHED = QueryResultBatch.MoreResultsType.NOT_FINISHED
_AT_LEAST = PropertyFilter.Operator.GREATER_THAN_OR_EQUAL
_LESS = PropertyFilter.Operator.LESS_THAN


def request_of_range(
    client: ndb.Client,
    kind: str,
    name: str,
    low: Any,
    high: Any,
    limit: int,
    *,
    is_reversed: bool = False,
) -> Any:
    """Return the query for the entities of a kind by one of their properties, in its order.

    It is outside of any transaction.

    Args:
        name: The property; "__key__" for the key.
        low: Its values from there on: a text, or a key as protobuf,
        high: and before this one.
        limit: How many entities at most.
        is_reversed: In descending order.
    """
    request = RunQueryRequest.pb()(project_id=client.project, database_id=client.database or "")
    request.partition_id.project_id = client.project
    request.partition_id.database_id = client.database or ""
    request.partition_id.namespace_id = client.namespace or ""
    query = request.query
    query.kind.add(name=kind)
    order = query.order.add()
    order.property.name = name
    if is_reversed:
        order.direction = PropertyOrder.Direction.DESCENDING
    query.limit.value = limit
    query.filter.composite_filter.op = CompositeFilter.Operator.AND
    for operator, bound in ((_AT_LEAST, low), (_LESS, high)):
        condition = query.filter.composite_filter.filters.add().property_filter
        condition.property.name, condition.op = name, operator
        if isinstance(bound, str):
            condition.value.string_value = bound
        else:
            condition.value.key_value.CopyFrom(bound)
    return request


def run_query(client: ndb.Client, request: Any) -> list[Any]:
    """Return all results of a query, up to its limit.

    Args:
        request: A RunQueryRequest, as protobuf; the loop changes it.

    Raises:
        google.api_core.exceptions.GoogleAPICallError: the service's answer.
    """
    return run_queries(client, [request])[0]


def run_queries(client: ndb.Client, requests: Sequence[Any]) -> list[list[Any]]:
    """Return all results of each query; the queries run in parallel. See `run_query`."""
    results: list[list[Any]] = [[] for _ in requests]
    pending = list(zip(requests, results, strict=True))
    while pending:
        group, waiting = pending[:MAX_IN_PARALLEL], pending[MAX_IN_PARALLEL:]
        answers = call_in_parallel(client.stub.run_query, [request for request, _ in group])
        unfinished = []
        for (request, rows), answer in zip(group, answers, strict=True):
            batch = RunQueryResponse.pb(answer).batch
            rows += batch.entity_results
            if batch.more_results == NOT_FINISHED and _continue(request, batch):
                unfinished.append((request, rows))
        pending = unfinished + waiting
    return results


def _continue(request: Any, batch: Any) -> bool:
    """Ask for the results behind a part; return whether there may be any."""
    query, options = request.query, request.read_options
    query.start_cursor = batch.end_cursor
    query.offset = max(0, query.offset - batch.skipped_results)
    if options.WhichOneof("consistency_type") is None and batch.HasField("read_time"):
        options.read_time.CopyFrom(batch.read_time)
    if not query.HasField("limit"):
        return True
    query.limit.value -= len(batch.entity_results)
    return bool(query.limit.value > 0)
