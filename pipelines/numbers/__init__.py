"""Numbers everyone should know: the latency of this stack's operations, measured on it.

Pattern: a continuation whose items are probes, and a chain of named tasks.
Seed: B. Slatkin, "Building scalable web apps with Google App Engine", Google I/O 2008.
"""
