"""Inputs of a bundle of records, and the effects of the hooks that it runs."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rollforward.streams.model.key_state import KeyState, SetTimer

REPLAY = "\0"  # In no id that somebody has given.


# The stream of timers that were dead letters and fire again: [tag, time, is it of the clock].
DEAD_TIMERS = ""


class KeyedRecord(NamedTuple):
    """A record on its way to a key; `id` is empty for what needs no deduplication.

    `late_at`: see Production.
    `text`: the value as it was stored. A hook may change the value: whatever goes on without the
    hook, a further attempt, a dead letter, a late stream, begins with the text.
    """

    key: str
    value: Any
    timestamp_ms: int
    stream: str
    late_at: int = 0
    id: str = ""
    text: str = ""


class Target(NamedTuple):
    """Where a production goes: to a computation, under a key; or nowhere, for it has no key."""

    computation: str
    key: str
    error: str = ""


class EmittedRecord(NamedTuple):
    """A record that a hook has written: its value as text, and who gets it.

    `late_at`: the watermark by which it, or the record that it follows from, came late. It holds
    the watermark of its readers there, until it is worked on. 0: it is in time.
    `id`: follows from that of its input, if that has one and the computation is weak.
    """

    stream: str
    text: str
    timestamp_ms: int
    late_at: int
    targets: tuple[Target, ...]
    id: str = ""


class Failure(NamedTuple):
    """A record or a timer whose hook has raised too often."""

    key: str
    input: KeyedRecord | tuple[str, SetTimer]
    error: str


def replay_id(id_: str, nonce: str) -> str:
    """Return another id that leads to the same ones: of a record that is worked on again."""
    return f"{id_.partition(REPLAY)[0]}{REPLAY}{nonce}"


def derived_id(stream: str, id_: str, *more: str | int) -> str:
    """Return an id that follows from that of a record, always the same: 96 bits, as text."""
    text = json.dumps([stream, id_.partition(REPLAY)[0], *more])
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()  # It is ASCII.


@dataclass
class Counts:
    """What a batch did, in numbers."""

    records: int = 0  # Worked on, late ones included unless they were dropped.
    late: int = 0  # Dropped.
    late_between_parts: int = (
        0  # Dropped by a part of a fused computation, and written by another one.
    )
    timers: int = 0
    dead: int = 0
    produced: int = 0


@dataclass
class Effects:
    """What a batch leads to.

    Attributes:
        keys: The keys that were touched, as they are now.
        consumed: How many of the inputs were worked on, from the first one on.
        fired: The timers that fired, in order, each with its key.
    """

    keys: dict[str, KeyState] = field(default_factory=dict)
    productions: list[EmittedRecord] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    fired: list[tuple[str, SetTimer]] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    consumed: int = 0
