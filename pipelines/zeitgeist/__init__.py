"""Zeitgeist: queries asked for more, or less, than is usual at this hour of the week.

Pattern: streams with low watermarks, timers and state per key; spikes and dips against a model.
Seed: T. Akidau and others, "MillWheel: Fault-Tolerant Stream Processing at Internet Scale", VLDB
2013: its Zeitgeist pipeline.
"""
