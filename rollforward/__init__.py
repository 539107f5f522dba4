"""Pipelines over Datastore and Cloud Tasks, as a library.

    import rollforward as rf

    app = Flask(__name__)

    @rf.task
    def greet(name: str) -> None:
        print(f"Hello, {name}!")

    @app.get("/")
    def show() -> str:
        greet.enqueue("world")
        return "Look at the terminal."

    serve = rf.serve(app, greet)

This front door offers one way into each pattern, and `rf.<package>` the rest. Each name is
imported on first use, so `import rollforward` alone loads neither Datastore nor Flask.

    tracing             spans of OpenTelemetry, and traces that travel with tasks
    datastore           transactions, commits and rows: the one way to the store
    runtime             clients, clock, cache, cost: what every pattern is handed
    tasks               declared tasks on Cloud Tasks, and dead tasks
    outbox              a task that is committed with the data, or not at all
    lanes               tasks that wait by key: order, limit, rate and a fair share for each
    continuations       any number of items, in linked pages, each item once
    fork_join           many small writes gathered into few
    pull_queues         items that workers lease, each in turn
    schedules           functions at the times of cron expressions, each tick once
    batches             many tasks, and one more when all of them have ended
    flows               one thing and many steps over time, each step with one outcome
    counters            totals under many writers, in shards or gathered
    paging              lists in pages, forward and back, each row once
    materialized_views  rows that follow their sources, in any order of updates
    query_cache         results that everyone shares, kept in memcached for a stated time
    streams             computations over keyed records, with state, timers and watermarks
    operations          dead tasks replayed in bulk, waiting tasks, the audit trail
    registry            all parts of an app, in one list
    flask               endpoints that an app mounts: tasks, cron, health, metrics, runs
    console             pages and JSON of the app's operators
    gunicorn            how gunicorn serves an app: its configuration and its worker
    compat              modules with the calls of App Engine's services, for apps that move
    look                words, style and frame of the consoles' pages
    local               the local platform; no deployed module imports it
    testing             a test kit for apps: services, a clock, faults at each remote call
    cli                 the command `rollforward`
    cloud_profile       latencies and limits of the services, for the local platform

Each package has a door of its own, its `__init__`. A package imports those above it in this list,
and an app imports doors only; of continuations also `runs`, `sources`, `csv_source`, `progress`
and `errors`. `make lint` checks both.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from rollforward import lazy_imports

if TYPE_CHECKING:  # For mypy and editors: `_HOMES` says the same to Python.
    from rollforward import (  # noqa: I001  `as` exports a package to mypy.
        batches as batches,
        compat as compat,
        console as console,
        continuations as continuations,
        counters as counters,
        datastore as datastore,
        flask as flask,
        flows as flows,
        fork_join as fork_join,
        lanes as lanes,
        materialized_views as materialized_views,
        operations as operations,
        outbox as outbox,
        paging as paging,
        pull_queues as pull_queues,
        query_cache as query_cache,
        registry as registry,
        runtime as runtime,
        schedules as schedules,
        streams as streams,
        tasks as tasks,
        telemetry as telemetry,
    )
    from rollforward.batches import TaskBatch
    from rollforward.console import Console
    from rollforward.continuations import EntitySource, job
    from rollforward.counters import Counter
    from rollforward.datastore import transact
    from rollforward.flask import clients, serve
    from rollforward.flows import flow
    from rollforward.fork_join import ForkJoin
    from rollforward.lanes import Lane
    from rollforward.materialized_views import View, ViewGroup
    from rollforward.outbox import enqueue
    from rollforward.pull_queues import PullQueue
    from rollforward.query_cache import cached
    from rollforward.registry import Registry
    from rollforward.runtime import Clients
    from rollforward.streams import Pipeline
    from rollforward.tasks import task

__all__ = [
    "Clients",
    "Console",
    "Counter",
    "EntitySource",
    "ForkJoin",
    "Lane",
    "Pipeline",
    "PullQueue",
    "Registry",
    "TaskBatch",
    "View",
    "ViewGroup",
    "cached",
    "clients",
    "enqueue",
    "flow",
    "job",
    "serve",
    "task",
    "transact",
]

_HOMES = {
    "Clients": "runtime",
    "Console": "console",
    "Counter": "counters",
    "EntitySource": "continuations",
    "ForkJoin": "fork_join",
    "Lane": "lanes",
    "Pipeline": "streams",
    "PullQueue": "pull_queues",
    "Registry": "registry",
    "TaskBatch": "batches",
    "View": "materialized_views",
    "ViewGroup": "materialized_views",
    "cached": "query_cache",
    "clients": "flask",
    "enqueue": "outbox",
    "flow": "flows",
    "job": "continuations",
    "serve": "flask",
    "task": "tasks",
    "transact": "datastore",
}
_PACKAGES = frozenset(_HOMES.values()) | {
    "compat",
    "operations",
    "paging",
    "schedules",
    "telemetry",
}

lazy_imports.install()  # Before the first of the packages imports ndb.

if not TYPE_CHECKING:

    def __getattr__(name):
        """Import a package, or a name from its package, on first use (PEP 562)."""
        if name in _PACKAGES:
            return importlib.import_module(f"rollforward.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module 'rollforward' has no attribute {name!r}")
        value = getattr(importlib.import_module(f"rollforward.{_HOMES[name]}"), name)
        globals()[name] = value
        return value

    def __dir__():
        return sorted({*globals(), *__all__, *_PACKAGES})
