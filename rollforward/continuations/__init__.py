"""Continuations: long work in pages, each of which links the next before it does its own.

A run walks a source. One task per page, and page g does, in this order:

1. pin   Its items are read and stored in its row: a retry sees the same page, even if rows
         were inserted meanwhile. The same commit takes a lease, so that two deliveries of one
         task do not work side by side; heartbeats keep it while the work lasts.
2. link  Page g+1 gets its task, by a name made of run, chain and number. "Already exists"
         means that it is linked. So failures stay in their page, and pages run in parallel.
3. work  Items are worked on in small groups. The outcome of each is committed to the page's
         row, one letter an item, under the lease: an attempt that lost it commits nothing.
4. close When a page and all before it are done, it is closed, and closes the page
         after it. The last page to be closed ends the chain, and the last chain the run.
         Each page costs one commit for that. Pages share no row but those of the totals.

Two kinds of work. `apply` writes to Datastore in the very commit that holds the receipts:
exactly once. `side_effect` acts on the outside world first, and the receipts follow within ten
items or 50 ms. A crash in between may repeat those items: the one window that cannot be
closed. Each page counts the items in it (`in_doubt`).

Lost on failure: nothing. A crash costs a lease (6 s) or a sweep (a minute).

Routes: POST /tasks/continuations/<job> for each job; GET /cron/continuations/sweep.
Source: B. Slatkin, "Building high-throughput data pipelines on Google App Engine", 2010,
"Continuation passing (the right way)". Why not its code: docs/adr/0003.
"""

from rollforward.continuations.declaration import job
from rollforward.continuations.jobs import (
    DeferredItemError,
    ItemError,
    Job,
    RefusedItemError,
    SkippedItemError,
)
from rollforward.continuations.runs import (
    cancel,
    resume,
    retry_failed,
    start,
)
from rollforward.continuations.sources import EntitySource

__all__ = [
    "DeferredItemError",
    "EntitySource",
    "ItemError",
    "Job",
    "RefusedItemError",
    "SkippedItemError",
    "cancel",
    "job",
    "resume",
    "retry_failed",
    "start",
]
