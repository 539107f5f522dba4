"""Fair shares of scarce things of a process: places of streams, and turns.

A caller that asks by the hundred, or holds every stream, delays only itself.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from dataclasses import dataclass, field

# Streams that end to give up their place to another caller, and still have a thread.
MAX_ENDING = 2


@dataclass(eq=False)
class StreamSlot:
    """One of the streams that a process has open."""

    caller: str
    is_ending: bool = False


@dataclass
class OpenStreams:
    """The open streams of a process, up to a number.

    One caller may have all of them. When there is no place left, the caller with the most gives one
    up to a caller that has at least two fewer.
    """

    limit: int
    is_closing: bool = False
    _places: list[StreamSlot] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def enter(self, caller: str) -> StreamSlot | None:
        """Take a place; None: there is none for this caller."""
        with self._lock:
            if self.is_closing or not self._evict_for(caller):
                return None
            place = StreamSlot(caller)
            self._places.append(place)
            return place

    def _evict_for(self, caller: str) -> bool:
        staying = [place for place in self._places if not place.is_ending]
        if len(staying) < self.limit:
            return True
        held = Counter(place.caller for place in staying)
        if not held or len(self._places) >= self.limit + MAX_ENDING:
            return False
        largest = max(held, key=held.__getitem__)
        if held[largest] < held[caller] + 2:
            return False
        next(place for place in staying if place.caller == largest).is_ending = True
        return True

    def leave(self, place: StreamSlot) -> None:
        with self._lock:
            self._places.remove(place)

    def close(self) -> None:
        """Let all streams end. Called by a signal: it must not wait for a lock."""
        self.is_closing = True


@dataclass
class _Round:
    """A turn for each caller that wants one, one after the other."""

    starts_s: float
    turns: int = 0


@dataclass
class FairRate:
    """Turns at a rate, in rounds: a caller has at most one turn in each (round robin).

    So turns come evenly, however many were asked for at once. A caller that asks for many is in
    many rounds, and another one has its turn in the first of them.
    """

    per_s: float
    max_wait_s: float
    _rounds: list[_Round] = field(default_factory=list)
    _passed: int = 0  # Rounds that are over.
    _last: dict[str, int] = field(default_factory=dict)  # The last round that a caller is in.
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def wait_s(self, now_s: float, caller: str, min_s: float = 0.0) -> float:
        """Take a turn; return in how many seconds it is.

        Args:
            now_s: By a clock that is never put back.
        """
        with self._lock:
            self._pass(now_s)
            at_s, number = self._free_slot(now_s + min_s, self._last.get(caller, -1) + 1)
            if at_s - now_s > self.max_wait_s:
                return self.max_wait_s  # Too far ahead to hold a turn.
            self._rounds[number - self._passed].turns += 1
            self._last[caller] = number
            return at_s - now_s

    def _pass(self, now_s: float) -> None:
        over = 0
        for round_ in self._rounds:
            if round_.starts_s + round_.turns / self.per_s > now_s:
                break
            over += 1
        if over:
            del self._rounds[:over]
            self._passed += over
            self._last = {
                caller: number for caller, number in self._last.items() if number >= self._passed
            }

    def _free_slot(self, from_s: float, min_round: int) -> tuple[float, int]:
        """Return the earliest free turn from a time and a round on, and its round."""
        ends_s = -math.inf
        for number, round_ in enumerate(self._rounds, self._passed):
            round_.starts_s = max(round_.starts_s, ends_s)  # The one before has become longer.
            ends_s = round_.starts_s + round_.turns / self.per_s
            if number >= min_round and ends_s >= from_s:
                return ends_s, number
        self._rounds.append(_Round(max(from_s, ends_s)))
        return self._rounds[-1].starts_s, self._passed + len(self._rounds) - 1
