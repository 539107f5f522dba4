"""Connectors: ready-made readers for pull sources, and ready-made sinks.

`readers` read files, uploads, entities and views, and `rotated_logs` logs that grow. `sinks` write
tasks, fork-join items and views, or call an external effect.

Below: `model`, and the doors of the patterns they connect to. Above: only apps import them.
"""
