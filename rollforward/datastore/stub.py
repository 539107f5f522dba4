"""Calls by the client's own stub, and the keys that they name: ndb has no public way to either."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc
from google.api_core import exceptions as rpc_errors
from google.cloud import ndb
from google.cloud.datastore_v1.types import CommitRequest, Key, LookupRequest
from google.cloud.ndb._datastore_api import _add_routing_info

_Key = Key.pb()
# Of the client's wrappers of messages. It copies a message that comes without its wrapper.
_WRAPPERS = {wrapper.pb(): wrapper for wrapper in (CommitRequest, LookupRequest)}


def call_stub(method: Any, request: Any) -> Any:
    """Call a method of a client's stub, with the header that routes it to its database.

    Raises:
        google.api_core.exceptions.GoogleAPICallError: the service's answer.
    """
    try:
        metadata = _add_routing_info((), request)
        wrapper = _WRAPPERS.get(type(request))
        return method(wrapper.wrap(request) if wrapper else request, metadata=metadata)
    except grpc.RpcError as error:
        raise rpc_errors.from_grpc_error(error) from error  # type: ignore[no-untyped-call]


def call_in_parallel(method: Any, requests: Sequence[Any]) -> list[Any]:
    """Call a method of a client's stub for all requests at once; return their answers.

    Raises:
        google.api_core.exceptions.GoogleAPICallError: the service's answer to one of them.
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
            call.cancel()  # Does nothing to a call that has ended.


def key_of(client: ndb.Client, kind: str, name: str) -> Any:
    """Return a key in the client's namespace, as protobuf."""
    key = _Key()
    key.partition_id.project_id = client.project
    key.partition_id.database_id = client.database or ""
    key.partition_id.namespace_id = client.namespace or ""
    key.path.add(kind=kind, name=name)
    return key
