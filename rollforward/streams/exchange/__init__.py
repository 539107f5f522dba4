"""Exchange: records on their way from sources and workers into inboxes.

A source ingests records (`ingest`, `pulling`) and a worker emits them (`outgoing`), each in one
commit with its own position. Stateless computations run inside that commit (`inline`), and weak
sinks act before it (`effect_pool`). `wakeups` wakes the readers afterwards; `forwarding` moves
records out of retired inboxes, and `recovery` finds stranded ones.

It uses `execution` to run hooks, and the rows of `storage`; `scaling`, `workers` and `watermarks`
use it.
"""
