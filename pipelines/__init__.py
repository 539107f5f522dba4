"""The patterns, as a library: no Flask, no demo. Each package has one door, its `__init__`.

    runtime             clients, clock, cache, cost: what every pattern is handed
    tasks               declared tasks on Cloud Tasks, and dead tasks
    outbox              a task that is committed with the data, or not at all
    continuations       any number of items, in linked pages, each item once
    fork_join           many small writes gathered into few
    batches             many tasks, and one more when all of them have ended
    materialized_views  rows that follow their sources, in whatever order updates come
    registry            all that an app can be asked to do, in one list

A package imports those below it in this order, and an app imports doors only; of continuations
also `runs`, `sources`, `csv_source`, `progress` and `errors`. `make lint` checks both.
"""
