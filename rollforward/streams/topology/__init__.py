"""Topology: computations are attached, replaced and detached while a pipeline runs.

`changes` validates a change and begins it by one commit, after `compatibility` has read the stored
states. The ticks of the coordinator finish it (`teardown`, and `phases` of `watermarks`).

It uses `watermarks`, whose cut it needs, and `graph`; the pipeline and the coordinator use it.
"""
