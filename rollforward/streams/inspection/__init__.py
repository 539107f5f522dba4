"""Inspection: states, status, topology and dead letters, read at any time.

`queryable_state` reads keyed state as it was last committed, `status` watermarks, backlogs and
counts, and `topology_status` the running computations. `dead_letters` also replays and discards.

It uses all rooms below, and writes only dead letters; the pipeline and the gauges use it.
"""
