"""Deliveries: what a commit produces, it puts into the inboxes of those who read it.

So a production is sent by the commit that leads to it, once, and there is nothing to confirm. The
readers are woken after the commit: by one task for each interval, named by the interval's
generation. Whoever takes an interval raises its generation first and looks into the inbox then: so
a sender that saw the old one has its chunk seen, and one that sees the new one makes a new task.
An interval with a live lease needs no task: its worker looks once more after it gave up the lease,
and one that dies is delivered again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from rollforward.streams.graph.environment import Environment
from rollforward.streams.model.bundle import EmittedRecord, Target
from rollforward.streams.model.records import FOREVER
from rollforward.streams.model.slots import slot_of
from rollforward.streams.storage.layout import creation_layout, interval_of
from rollforward.streams.storage.remote_calls import Key
from rollforward.streams.storage.schema import LATE, ON_TIME, DeadRow, Head, InboxRecord

MAX_LETTERS = 500
MAX_CHUNK_BYTES = 256_000
LETTER_BYTES = 50  # Besides its text, its key and its id.
CHAR_BYTES = 12  # Of an emoji, as JSON has it.


class Outgoing:
    """What one commit sends.

    A late record holds the watermark of its readers where it was when the record came, until it is
    worked on: how late it is does not follow from who is slow. So late records that came at
    different watermarks go into chunks of their own.
    """

    def __init__(self, environment: Environment, head: Head) -> None:
        self._environment = environment
        self._head = head
        self._letters: dict[tuple[str, int, int], list[InboxRecord]] = defaultdict(list)
        self._by_target: dict[Target, list[InboxRecord]] = {}  # The same lists, of what is in time.
        self._dead: list[DeadRow] = []

    def produce(self, productions: Iterable[EmittedRecord]) -> None:
        """Send what hooks have written."""
        for stream, text, at, late_at, targets, id_ in productions:
            for target in targets:
                self.send(target, InboxRecord(target.key, at, stream, id_, text), late_at=late_at)

    def send(self, target: Target, letter: InboxRecord, *, late_at: int) -> None:
        """Send a letter to an interval, or, if it has no key, to the dead letters.

        Args:
            late_at: The watermark by which it came late; 0: it is in time.
        """
        if not late_at and (known := self._by_target.get(target)) is not None:
            known.append(letter)
            return
        computation, key, error = target
        if error:
            now_ms = self._environment.now_ms()
            self._dead.append(DeadRow(computation, "", error, now_ms, letter))
            return
        lo = interval_of(self._head, computation, slot_of(key))
        # What is late may have to wait until the watermark has passed it (forwarding.py).
        hold = min(max(late_at, letter.timestamp_ms + 1), FOREVER - 1) if late_at else 0
        letters = self._letters[computation, lo, hold]
        letters.append(letter)
        if not hold:
            self._by_target[target] = letters

    def add_dead_letter(self, dead: DeadRow) -> None:
        """Send a failure to the dead letters."""
        self._dead.append(dead)

    @property
    def dead(self) -> int:
        return len(self._dead)

    @property
    def destinations(self) -> list[tuple[str, int]]:
        """Return the intervals that get something."""
        return sorted({(computation, lo) for computation, lo, _ in self._letters})

    def inserts(self) -> list[tuple[Key, Any]]:
        """Return the rows of all that is sent."""
        names, id_ = self._environment.names, self._environment.new_id()
        rows: list[tuple[Key, Any]] = []
        for (computation, lo, hold), letters in self._letters.items():
            lane = LATE if hold else ON_TIME
            for part, size in _cut(letters):
                at = hold or min([letter.timestamp_ms for letter in part])
                name = f"{id_}.{len(rows)}.{len(part)}.{size}"
                created_in = creation_layout(self._head, computation, lo)
                key = names.chunk(computation, lo, lane, at, name, created_in)
                rows.append((key, tuple(part)))
        for dead in self._dead:
            rows.append((names.dead(dead.computation, f"{id_}.{len(rows)}"), dead))
        return rows


def _cut(letters: list[InboxRecord]) -> Iterable[tuple[list[InboxRecord], int]]:
    """Cut letters into chunks, by number and by size; yield each with its size.

    In its row a chunk has up to twice that, for what JSON escapes in its texts.
    """
    part: list[InboxRecord] = []
    size = 0
    for letter in letters:
        key, _, _, id_, text = letter
        more = len(key) + len(id_)
        if not (key.isascii() and id_.isascii()):
            more *= CHAR_BYTES
        more += len(text) + LETTER_BYTES
        if part and (len(part) >= MAX_LETTERS or size + more > MAX_CHUNK_BYTES):
            yield part, size
            part, size = [], 0
        part.append(letter)
        size += more
    yield part, size
