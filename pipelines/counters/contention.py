"""How many commits of a counter meet a conflict, and what follows for the number of its shards.

A commit is contended when it lost its race (ABORTED), or when it took much longer than commits of
this process do: on a service that locks, rivals wait for each other and nobody loses. Each process
judges by its own commits. Its verdict changes how fast increments are, never whether they count.
"""

from __future__ import annotations

from dataclasses import dataclass

# A verdict follows from so many commits at least, and a bad one from so many contended ones.
MIN_COMMITS = 20
MIN_CONTENDED = 3
# More than this share of contended commits: more shards. Less than the other: fewer would do.
GROW_ABOVE = 0.04
CALM_BELOW = 0.01
# More than this share: four times as many at once, so that a rush is met in a second or two.
RUSH_ABOVE = 0.5
# A wait is longer than this, and longer than so many commits usually take.
MIN_WAIT_S = 0.04
WAIT_FACTOR = 5.0
EWMA_ALPHA = 0.1

CALM, BUSY, GROW, RUSH = "calm", "busy", "grow", "rush"


@dataclass
class Contention:
    """The commits of one counter by one process since its last verdict."""

    commits: int = 0
    contended: int = 0
    usual_s: float | None = None

    def record(self, took_s: float, *, is_lost: bool = False) -> bool:
        """Count a commit; return whether it was contended.

        >>> contention = Contention()
        >>> [contention.record(0.002), contention.record(0.9), contention.record(0, is_lost=True)]
        [False, True, True]
        """
        is_contended = is_lost or self._is_wait(took_s)
        self.commits += 1
        self.contended += is_contended
        if not is_contended:
            usual_s = took_s if self.usual_s is None else self.usual_s
            self.usual_s = usual_s + EWMA_ALPHA * (took_s - usual_s)
        return is_contended

    def verdict(self) -> str | None:
        """Return what these commits say, and begin again; None: they are too few to tell.

        >>> Contention(commits=6, contended=4).verdict(), Contention(commits=6).verdict()
        ('rush', None)
        >>> [Contention(100, contended).verdict() for contended in (0, 2, 10, 60)]
        ['calm', 'busy', 'grow', 'rush']
        """
        share = self.contended / self.commits if self.commits else 0.0
        is_bad = self.contended >= MIN_CONTENDED and share > GROW_ABOVE
        if not is_bad and self.commits < MIN_COMMITS:
            return None
        self.commits = self.contended = 0
        if is_bad:
            return RUSH if share > RUSH_ABOVE else GROW
        return CALM if share < CALM_BELOW else BUSY

    def _is_wait(self, took_s: float) -> bool:
        usual_s = MIN_WAIT_S if self.usual_s is None else self.usual_s
        return took_s > max(MIN_WAIT_S, WAIT_FACTOR * usual_s)
