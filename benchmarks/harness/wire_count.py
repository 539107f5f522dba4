"""Operations of the services, counted outside of the app from the bytes on the wire.

The meter counts inside of the app, from the requests (rollforward/runtime/channel/rpc.py). Here a
proxy in front of each emulator counts from the answers, and Cloud Tasks counts its own deliveries.
A bill in dollars is only as good as the agreement of these two.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from google.cloud.datastore_v1 import types

from benchmarks.harness.results import Result
from rollforward.runtime import Cost

CHUNK_BYTES = 32 * 1024
MOST_PERCENT_APART = 1.0
CHARGED = ("reads", "query_reads", "writes", "deletes", "task_operations")
_KEYS_ALONE = types.EntityResult.ResultType.KEY_ONLY
_NOT_FINISHED = types.QueryResultBatch.MoreResultsType.NOT_FINISHED


class WireCount:
    """Counts the operations of forwarded calls, and deliveries.

    Args:
        deliveries: Returns the number of deliveries that Cloud Tasks has counted.
    """

    def __init__(self, deliveries: Callable[[], int] = lambda: 0) -> None:
        self.deliveries = deliveries
        self._counts: Counter[str] = Counter()
        self._rows: Counter[tuple[str, ...]] = Counter()
        self._lock = threading.Lock()

    def saw(self, method: str, request: bytes, answer: bytes | None) -> None:
        """Count a call by its answer; None: the service refused it."""
        rpc = method.rpartition("/")[2]
        operations = _count(rpc, request, answer)
        rows = _written(request) if rpc == "Commit" and answer is not None else []
        with self._lock:
            self._counts.update(operations)
            self._rows.update(rows)

    def counts(self) -> dict[str, int]:
        """Return the counts so far, by the names of `Cost`."""
        with self._lock:
            counts = {name: self._counts[name] for name in CHARGED}
        counts["task_operations"] += self.deliveries()
        return counts

    def rows(self) -> Counter[tuple[str, ...]]:
        """Return how often each row was written or deleted so far, by its kind and its name."""
        with self._lock:
            return self._rows.copy()


def percent_apart(cost: Cost, counts: Mapping[str, int]) -> dict[str, float]:
    """Return the difference of the meter's count from the wire's, in percent of the wire's."""
    metered = cost.as_dict()
    return {
        name: 100 * abs(metered[name] - counts[name]) / max(1, counts[name]) for name in CHARGED
    }


def apart(metered: Cost, wired: Counter[str]) -> Result:
    """Compare the meter's and the emulators' counts of the operation with the largest gap."""
    percents = percent_apart(metered, wired)
    worst = max(percents, key=lambda name: percents[name])
    return Result(
        "dollars.percent_miscounted",
        percents[worst],
        "%",
        f"what the emulators counted, {worst.replace('_', ' ')}",
        MOST_PERCENT_APART,
        at_least=False,
        raw={
            "meter": {name: metered.as_dict()[name] for name in CHARGED},
            "emulators": {name: wired[name] for name in CHARGED},
        },
    )


def _count(rpc: str, request: bytes, answer: bytes | None) -> dict[str, int]:
    match rpc:
        case "Lookup" | "Commit" | "RunQuery" | "RunAggregationQuery":
            return {} if answer is None else _ANSWERED[rpc](request, answer)
        case "BeginTransaction" | "Rollback" | "AllocateIds" | "ReserveIds":
            return {}
        case "BatchCreateTasks":
            from google.cloud.tasks_v2.types import BatchCreateTasksRequest

            asked = _parsed(BatchCreateTasksRequest, request).requests
            return {"task_operations": sum(-(-task.ByteSize() // CHUNK_BYTES) for task in asked)}
        case _:
            return {"task_operations": max(1, -(-len(request) // CHUNK_BYTES))}


def _parsed(kind: Any, content: bytes) -> Any:
    return kind.pb().FromString(content)


def _looked_up(request: bytes, answer: bytes) -> dict[str, int]:
    results = _parsed(types.LookupResponse, answer)
    return {"reads": len(results.found) + len(results.missing)}


def _committed(request: bytes, answer: bytes) -> dict[str, int]:
    asked = _parsed(types.CommitRequest, request).mutations
    deletes = sum(mutation.WhichOneof("operation") == "delete" for mutation in asked)
    results = _parsed(types.CommitResponse, answer).mutation_results
    return {"writes": len(results), "deletes": deletes}


def _written(request: bytes) -> list[tuple[str, ...]]:
    """Return the kinds and names of the rows that a commit writes or deletes."""
    rows = []
    for mutation in _parsed(types.CommitRequest, request).mutations:
        operation = mutation.WhichOneof("operation")
        written = getattr(mutation, operation)
        path = (written if operation == "delete" else written.key).path
        rows.append((path[-1].kind, *(f"{element.name or element.id}" for element in path)))
    return rows


def _queried(request: bytes, answer: bytes) -> dict[str, int]:
    batch = _parsed(types.RunQueryResponse, answer).batch
    entities = 0 if batch.entity_result_type == _KEYS_ALONE else len(batch.entity_results)
    if reads := entities + batch.skipped_results:
        return {"reads": reads}
    return {"query_reads": int(batch.more_results != _NOT_FINISHED)}


_ANSWERED: dict[str, Callable[[bytes, bytes], dict[str, int]]] = {
    "Lookup": _looked_up,
    "Commit": _committed,
    "RunQuery": _queried,
    "RunAggregationQuery": lambda request, answer: {"query_reads": 1},
}
