"""Operations of the store in memory, by kind of row."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import grpc

SERVICE = "google.datastore.v1.Datastore"
METHOD = "Counts"  # A call of this store only; Datastore has none like it.


def operations(method: str, request: Any, answer: Any) -> Iterator[str]:
    """Yield the operations of an answered call: "read <kind>" for each entity, and so on.

    The results of a keys-only query count as listed, not as read.
    """
    if method == "Lookup":
        for key in request.keys:
            yield f"read {key.path[-1].kind}"
    elif method == "RunQuery":
        kind = request.query.kind[0].name
        yield f"query {kind}"
        verb = "list" if request.query.projection else "read"
        for _ in answer.batch.entity_results:
            yield f"{verb} {kind}"
    elif method == "Commit":
        for mutation in request.mutations:
            operation = mutation.WhichOneof("operation")
            changed = getattr(mutation, operation)
            key = changed if operation == "delete" else changed.key
            yield f"{'delete' if operation == 'delete' else 'write'} {key.path[-1].kind}"


def counts_of(address: str) -> Counter[str]:
    """Return the operations of the store at an address so far."""
    with grpc.insecure_channel(address) as channel:
        answer = channel.unary_unary(f"/{SERVICE}/{METHOD}")(b"")
    return Counter(json.loads(answer))
