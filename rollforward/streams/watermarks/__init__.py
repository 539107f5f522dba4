"""Watermarks: a consistent cut through all rows of a pipeline, and what follows from it.

A tick reads sources, inboxes and intervals (`cut_reader`) into a `Cut`. From it follow the
watermarks of sources (`idleness`) and computations, percentile watermarks (`percentiles`), and
`backpressure`. It also shows the end of retired inboxes (`retirement`) and of changes (`phases`).
`publishing` makes the next head of it.

It uses `graph`, `storage` and `exchange`; `topology`, `inspection` and the coordinator use it.
"""
