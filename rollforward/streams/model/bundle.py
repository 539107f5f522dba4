"""Inputs of a bundle (a batch of records that one commit processes), and the hooks' effects."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rollforward.streams.model.key_state import KeyState, SetTimer

REPLAY = "\0"  # Separates an id from the nonce of its replay; no given id contains it.
# The stream of timers that were dead letters and fire again: [tag, time, is it processing time].
DEAD_TIMERS = ""


class KeyedRecord(NamedTuple):
    """An input of a hook: an inbox record with its value decoded.

    `late_at`: see `EmittedRecord`.
    `id`: empty if the record needs no deduplication.
    `value`: an `Undecodable`, if its codec could not decode it.
    `text`: the value as it was stored. A hook may change the value, so retries, dead letters and
    late streams start from the text.
    """

    key: str
    value: Any
    timestamp_ms: int
    stream: str
    late_at: int = 0
    id: str = ""
    text: str = ""


class Target(NamedTuple):
    """Destination of an emitted record: a reader and a key, or the error that left it keyless."""

    computation: str
    key: str
    error: str = ""


class EmittedRecord(NamedTuple):
    """A record that a hook has written: its value as text, and its destinations.

    `late_at`: the watermark behind which the record, or its cause, arrived. Until it is processed,
    it holds its readers' watermark at that time. 0: it is on time.
    `id`: derived from the input's id, if the input has one and the computation is weak.
    """

    stream: str
    text: str
    timestamp_ms: int
    late_at: int
    targets: tuple[Target, ...]
    id: str = ""


class Failure(NamedTuple):
    """A record or a timer whose hook raised on every attempt: a dead letter."""

    key: str
    input: KeyedRecord | tuple[str, SetTimer]
    error: str


def replay_id(id_: str, nonce: str) -> str:
    """Return the id of a replayed record: a new one, from which the same ids are derived."""
    return f"{id_.partition(REPLAY)[0]}{REPLAY}{nonce}"


def derived_id(stream: str, id_: str, *parts: str | int) -> str:
    """Return an id that depends only on a record's id and some parts: 96 bits, as text."""
    text = json.dumps([stream, id_.partition(REPLAY)[0], *parts])
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()  # It is ASCII.


@dataclass
class Counts:
    """Counters of a bundle."""

    records: int = 0  # Processed, late ones included unless they were dropped.
    late: int = 0  # Dropped.
    # Written by one part of a fused computation, and dropped by another one.
    late_between_parts: int = 0
    timers: int = 0
    dead: int = 0
    produced: int = 0


@dataclass
class Effects:
    """Effects of a bundle.

    Attributes:
        keys: The touched keys with their new states.
        consumed: How many inputs were processed, counted from the first one.
        fired: The timers that fired, in order, each with its key.
    """

    keys: dict[str, KeyState] = field(default_factory=dict)
    productions: list[EmittedRecord] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    fired: list[tuple[str, SetTimer]] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    consumed: int = 0
