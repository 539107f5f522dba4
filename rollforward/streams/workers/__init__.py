"""Workers: a run of one interval, from its lease to its release.

A worker leases an interval (`lease`), reads its inbox (`inbox_reader`), processes one bundle after
another (`worker`), and releases the lease. Sinks have workers of their own (`sink_worker`), whose
commit is a transaction with the sink's writes (`sink_commit`).

It uses `execution`, `exchange` and `scaling`; the tasks of a pipeline run it.
"""
