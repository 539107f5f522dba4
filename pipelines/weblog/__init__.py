"""Web log: hits, sessions, error rates and top paths of an access log.

Pattern: streams with tumbling, sliding and session windows over a pull source.
Seed: T. Akidau and others, "MillWheel: Fault-Tolerant Stream Processing at Internet Scale", VLDB
2013.
"""
