"""The plays of `make soak`: everything, in an order drawn by a seed, as far as its minutes go.

Each test gets an equal share of the minutes, so that a short soak visits every scenario; one that
is marked `soak_share` gets that part of them. What it covered is counted and printed at the end.
SOAK_MINUTES=0 plays all there is.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")

IS_SOAK = os.environ.get("SOAK") == "1"
MINUTES = float(os.environ.get("SOAK_MINUTES") or 0)
SEED = os.environ.get("SOAK_SEED") or "0"


class Budget:
    """The time that the running test may play, and the plays so far."""

    def __init__(self) -> None:
        self.all_s = float("inf")  # The minutes of all workers.
        self.share_s = float("inf")
        self.ends_at = float("inf")
        self.counts: Counter[str] = Counter()
        self.happened: Counter[str] = Counter()
        self.breakable: set[tuple[str, str]] = set()
        self.broken: set[tuple[str, str]] = set()

    def begin(self, share: float = 0) -> None:
        """Begin a test; `share`: what part of all time it gets, 0: as much as others."""
        self.ends_at = time.monotonic() + (share * self.all_s if share else self.share_s)
        self.counts.clear()
        self.happened.clear()
        self.breakable.clear()
        self.broken.clear()

    def drawn(self, plays: Sequence[T]) -> list[T]:
        """Return plays in the order of the seed; in `make test` as they stand."""
        self.counts["of"] += len(plays)
        ordered = list(plays)
        if IS_SOAK and MINUTES:
            random.Random(f"{SEED} {len(plays)}").shuffle(ordered)
        return ordered

    def is_over(self) -> bool:
        """Return whether the test has used its share; its first play is always done."""
        return self.counts["played"] > 0 and time.monotonic() > self.ends_at

    def plays(self, plays: Sequence[T]) -> Iterator[T]:
        """Yield plays in the order of the seed, as far as the share goes; each counts as played."""
        for each in self.drawn(plays):
            if self.is_over():
                return
            yield each
            self.played()

    def played(self) -> None:
        self.counts["played"] += 1

    def note(self, happened: Mapping[str, int]) -> None:
        """Note what has happened in one schedule of a simulator."""
        self.happened.update(happened)
        self.happened["schedules"] += 1

    def could_break(self, calls: set[tuple[str, str]]) -> None:
        """Note which remote calls a test makes, each with the kinds of fault that it draws from."""
        self.breakable |= calls

    def has_broken(self, call: tuple[str, str]) -> None:
        """Note a remote call and the kind of fault that broke it."""
        self.broken.add(call)

    def properties(self) -> list[tuple[str, object]]:
        """Return what a test has covered, for its report."""
        return [
            *((f"plays {key}", n) for key, n in self.counts.items()),
            *((f"happened {key}", n) for key, n in self.happened.items()),
            ("breakable", sorted(self.breakable)),
            ("broken", sorted(self.broken)),
        ]


BUDGET = Budget()
