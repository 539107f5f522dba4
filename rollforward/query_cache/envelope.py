"""Stored form of a value in memcached: a header line, and the value as JSON.

The header is checked before the value: a version, finite numbers, and a checksum over the key and
the value. So a truncated value, a planted one, or one of another key is a miss. The checksum is no
signature, since a client that may write to memcached can forge it. The value's type is checked
next, so the worst result is a wrong text on a page.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from typing import Any

VERSION = 1
# memcached takes 1 MiB with key and overhead.
MAX_BYTES = 1_000_000
MAX_HEADER_BYTES = 300


@dataclass(frozen=True)
class Envelope:
    """A value, its age and its cost.

    Attributes:
        body: The value, as JSON.
        at_s: The time when it was read from its source, in seconds since 1970.
        took_s: The duration of its computation.
        reads, round_trips: The cost of its computation.
    """

    body: bytes
    at_s: float
    took_s: float
    reads: int
    round_trips: int


def pack(key: str, envelope: Envelope) -> bytes | None:
    """Return what to store under a key; None: it is too large."""
    header = [
        VERSION,
        envelope.at_s,
        envelope.took_s,
        envelope.reads,
        envelope.round_trips,
        _checksum(key, envelope.body),
    ]
    data = json.dumps(header).encode() + b"\n" + envelope.body
    return data if len(data) <= MAX_BYTES else None


def unpack(key: str, data: bytes | None) -> Envelope | None:
    """Return the envelope stored under a key; None for any other data.

    >>> envelope = Envelope(b'["a"]', 12.5, 0.25, 3, 1)
    >>> unpack("k", pack("k", envelope)) == envelope
    True
    >>> unpack("another key", pack("k", envelope)), unpack("k", b"junk"), unpack("k", None)
    (None, None, None)
    """
    if data is None or len(data) > MAX_BYTES:
        return None
    line, _, body = data.partition(b"\n")
    header = _parsed(line)
    if not isinstance(header, list) or len(header) != 6 or not _is_valid(header):
        return None
    version, at_s, took_s, reads, round_trips, checksum = header
    if version != VERSION or checksum != _checksum(key, body):
        return None
    return Envelope(body, float(at_s), float(took_s), reads, round_trips)


def _parsed(line: bytes) -> Any:
    if len(line) > MAX_HEADER_BYTES:
        return None
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _is_valid(header: list[Any]) -> bool:
    *numbers, checksum = header
    are_numbers = all(type(n) in (int, float) and math.isfinite(n) and n >= 0 for n in numbers)
    return are_numbers and all(type(n) is int for n in numbers[3:]) and isinstance(checksum, str)


def _checksum(key: str, body: bytes) -> str:
    digest = hashlib.sha256(f"{len(key)}:{key}".encode())
    digest.update(body)
    return digest.hexdigest()
