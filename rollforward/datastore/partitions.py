"""Sixteen partitions of a kind: ranges of its keys, or of an index, by a first hex digit.

The digit comes from a random id or a hash, so writes spread over all ranges.
"""

from __future__ import annotations

PARTITIONS = "0123456789abcdef"
