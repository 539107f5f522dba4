"""The measured app: the demo's own API of sums, and the requests to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flask import Flask

from benchmarks.harness.testbed import app_for
from pipelines.registry import APP
from pipelines.sums import sums

SUM = "bench"
BATCH_ITEMS = 1_000
_ADDITION = '{"amount":1}'


@dataclass(frozen=True)
class Workload:
    """A request with its path and its body; an empty body makes it a GET."""

    path: str
    body: str = ""
    kind: str = "application/json"
    has_key: bool = False
    items: int = 1


WORKLOADS: Mapping[str, Workload] = {
    "live": Workload("/health/live", items=0),
    "insert": Workload(f"/api/v1/sums/{SUM}", _ADDITION),
    "insert_with_key": Workload(f"/api/v1/sums/{SUM}", _ADDITION, has_key=True),
    "insert_batch": Workload(
        f"/api/v1/sums/{SUM}/batch",
        f"{_ADDITION}\n" * BATCH_ITEMS,
        "application/x-ndjson",
        has_key=True,
        items=BATCH_ITEMS,
    ),
}


def serve() -> Flask:
    """Return the demo app, which notes its costs."""
    app, clients = app_for(APP)
    with clients.context():
        sums.create(SUM)
    return app
