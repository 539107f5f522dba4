"""Pipelines over Datastore and Cloud Tasks, as a library. A package has one door, its `__init__`.

    datastore           transactions, commits and rows: the one way to the store
    runtime             clients, clock, cache, cost: what every pattern is handed
    tasks               declared tasks on Cloud Tasks, and dead tasks
    outbox              a task that is committed with the data, or not at all
    continuations       any number of items, in linked pages, each item once
    fork_join           many small writes gathered into few
    batches             many tasks, and one more when all of them have ended
    counters            totals under many writers, in shards or gathered
    paging              lists in pages, forward and back, each row once
    materialized_views  rows that follow their sources, in whatever order updates come
    query_cache         results that everyone shares, kept in memcached for a stated time
    streams             computations over keyed records, with state, timers and watermarks
    registry            all that an app can be asked to do, in one list
    flask               what an app mounts: tasks, cron, health, metrics, runs
    local               the local platform; nothing that is deployed imports it
    cloud_profile       latencies and limits of the services, for the local platform

A package imports those below it in this order, and an app imports doors only; of continuations
also `runs`, `sources`, `csv_source`, `progress` and `errors`. `make lint` checks both.
"""

from rollforward import lazy_imports

lazy_imports.install()  # Before the first of the packages below imports ndb.
