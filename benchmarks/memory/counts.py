"""Operations that the store in memory was asked for, by kind of row."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import grpc

SERVICE = "google.datastore.v1.Datastore"
METHOD = "Counts"  # Of this store alone: Datastore has no such call.


def operations(method: str, request: Any, answer: Any) -> Iterator[str]:
    """Yield the operations of a call that was answered: "read <kind>" for each entity, and so on.

    Keys of a query that asks for nothing else are listed, not read.
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
    """Return the operations that the store at an address was asked for so far."""
    with grpc.insecure_channel(address) as channel:
        answer = channel.unary_unary(f"/{SERVICE}/{METHOD}")(b"")
    return Counter(json.loads(answer))
