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
from collections.abc import Iterable, Mapping
from typing import Any

from rollforward.streams.calls import Create, Key, Read, Steps, Wake
from rollforward.streams.environment import Environment
from rollforward.streams.keys import Production, Target
from rollforward.streams.layout import birth_of, interval_of
from rollforward.streams.records import FOREVER, NEVER
from rollforward.streams.rows import LATE, ON_TIME, DeadRow, Head, Letter, slot_of

MAX_LETTERS = 500
MAX_TICK_S = 1.0
MAX_CHUNK_BYTES = 256_000
LETTER_BYTES = 50  # Besides its text, its key and its id.
CHAR_BYTES = 12  # Of an emoji, as JSON has it.
# Cloud Tasks takes a task for up to 30 days ahead; a timer for later is found by the sweep.
MAX_DELAY_S = 29 * 24 * 3600.0


class Mail:
    """What one commit sends.

    A late record holds the watermark of its readers where it was when the record came, until it is
    worked on: how late it is does not follow from who is slow. So late records that came at
    different watermarks go into chunks of their own.
    """

    def __init__(self, environment: Environment, head: Head) -> None:
        self._environment = environment
        self._head = head
        self._letters: dict[tuple[str, int, int], list[Letter]] = defaultdict(list)
        self._by_target: dict[Target, list[Letter]] = {}  # The same lists, of what is in time.
        self._dead: list[DeadRow] = []

    def produce(self, productions: Iterable[Production]) -> None:
        """Send what hooks have written."""
        for stream, text, at, late_at, targets, id_ in productions:
            for target in targets:
                self.send(target, Letter(target.key, at, stream, id_, text), late_at=late_at)

    def send(self, target: Target, letter: Letter, *, late_at: int) -> None:
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
        hold = min(max(late_at, letter.at + 1), FOREVER - 1) if late_at else 0
        letters = self._letters[computation, lo, hold]
        letters.append(letter)
        if not hold:
            self._by_target[target] = letters

    def bury(self, dead: DeadRow) -> None:
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
                at = hold or min([letter.at for letter in part])
                name = f"{id_}.{len(rows)}.{len(part)}.{size}"
                born = birth_of(self._head, computation, lo)
                key = names.chunk(computation, lo, lane, at, name, born)
                rows.append((key, tuple(part)))
        for dead in self._dead:
            rows.append((names.dead(dead.computation, f"{id_}.{len(rows)}"), dead))
        return rows


def ring(
    environment: Environment, destinations: Iterable[tuple[str, int]], *, tick: bool = False
) -> Steps[set[tuple[str, int]]]:
    """Wake intervals that nobody works on; with `tick` have the watermarks looked at, too.

    A task that this process has created for the same version of a row exists: no call asks for it.

    Returns:
        The intervals that nobody was working on.
    """
    targets = list(destinations)
    if not targets and not tick:
        return set()
    names, now_ms = environment.names, environment.now_ms()
    keys = [names.interval(computation, lo) for computation, lo in targets]
    found = yield Read([*keys, names.head] if tick else keys)
    wakes = {
        (key, row.version): wake(environment, target, row.body.gen)
        for key, target, row in zip(keys, targets, found, strict=False)
        if row is not None and not environment.is_worked_on(row.body, now_ms)
    }
    if tick and found[-1] is not None:
        head = found[-1]
        wakes[names.head, head.version] = tick_wake(environment, head.body._replace(still=0))
    yield from _create(environment, wakes)
    rows = list(zip(targets, found, strict=False))
    gone = [target for target, row in rows if row is None]
    if gone:
        yield from _ring_heirs(environment, gone)
    return {target for target, row in rows if row is None or not row.body.is_held(now_ms)}


def _ring_heirs(environment: Environment, gone: Iterable[tuple[str, int]]) -> Steps[None]:
    """Wake the intervals that have taken the place of others, by a merge."""
    [head] = yield Read([environment.names.head])
    # A computation that was detached has none.
    heirs = {
        (name, interval_of(head.body, name, lo)) for name, lo in gone if name in head.body.intervals
    }
    yield from ring(environment, sorted(heirs.difference(gone)))


def _create(environment: Environment, wakes: Mapping[tuple[Key, int], Wake]) -> Steps[None]:
    """Create tasks that wake rows of a version, but not again for the same one."""
    memories = environment.memories
    new = {row: wake for row, wake in wakes.items() if memories.get(("woken", row[0])) != row[1]}
    if new:
        yield Create(list(new.values()))
        memories.update({("woken", key): version for key, version in new})


def wake(environment: Environment, target: tuple[str, int], gen: int, *why: str | int) -> Wake:
    """Return the task that wakes an interval, of one generation of it.

    Args:
        why: Makes it another task than the one that each sender asks for.
    """
    return Wake(target, (environment.pipeline.name, *target, gen, *why))


def ring_at(environment: Environment, target: tuple[str, int], wall: int) -> Steps[None]:
    """Have an interval woken at a time of day, for its next timer of the clock."""
    if wall < NEVER:
        delay_s = max(0.0, (wall - environment.now_ms()) / 1000)
        name = (environment.pipeline.name, *target, "wall", wall)
        yield Create([Wake(target, name, min(delay_s, MAX_DELAY_S))])


def tick_wake(environment: Environment, head: Head) -> Wake:
    """Return the task of the next tick: ever later while nothing moves, up to a second."""
    delay_s = environment.pace.tick_s * 2 ** min(head.still, 10)
    return Wake(("", 0), (environment.pipeline.name, head.gen), min(delay_s, MAX_TICK_S))


def _cut(letters: list[Letter]) -> Iterable[tuple[list[Letter], int]]:
    """Cut letters into chunks, by number and by size; yield each with its size.

    In its row a chunk has up to twice that, for what JSON escapes in its texts.
    """
    part: list[Letter] = []
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
