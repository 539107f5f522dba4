"""Contention: the share of a counter's commits that meet a conflict, and the verdict from it.

A commit is contended if it lost its race (ABORTED), or took much longer than usual. On a service
that locks, rivals wait for each other and none loses its race. A wait is weaker evidence than a
lost race, since the machine may be busy. The usual duration follows slow commits, too, but slowly,
so a slow service does not count as a conflict for long.

Each process judges by its own commits. Its verdict changes how fast increments are, never whether
they count.
"""

from __future__ import annotations

from dataclasses import dataclass

# The least number of commits for a verdict, and of lost or contended ones for a bad verdict.
MIN_COMMITS = 20
MIN_LOST = 3
MIN_CONTENDED = 5
# Above this share of contended commits: more shards. Below the other: fewer are enough.
GROW_ABOVE = 0.04
CALM_BELOW = 0.01
# Above this share of lost races: four times as many at once, so that a rush needs a second or two.
RUSH_ABOVE = 0.4
# A wait is longer than this, and than this many times the usual duration.
MIN_WAIT_S = 0.04
WAIT_FACTOR = 5.0
EWMA_ALPHA = 0.1
EWMA_ALPHA_OF_WAITS = 0.02

CALM, BUSY, GROW, RUSH = "calm", "busy", "grow", "rush"


@dataclass
class Contention:
    """The commits of one counter by one process since its last verdict."""

    commits: int = 0
    lost: int = 0
    waited: int = 0
    usual_s: float = MIN_WAIT_S

    def record(self, took_s: float, *, is_lost: bool = False) -> bool:
        """Count a commit; return whether it was contended.

        >>> contention = Contention()
        >>> [contention.record(0.002), contention.record(0.9), contention.record(0, is_lost=True)]
        [False, True, True]
        """
        self.commits += 1
        if is_lost:
            self.lost += 1
            return True
        is_wait = took_s > max(MIN_WAIT_S, WAIT_FACTOR * self.usual_s)
        self.waited += is_wait
        alpha = EWMA_ALPHA_OF_WAITS if is_wait else EWMA_ALPHA
        self.usual_s += alpha * (took_s - self.usual_s)
        return is_wait

    def verdict(self) -> str | None:
        """Return the verdict on these commits, and start over; None: they are too few.

        >>> Contention(commits=6, lost=4).verdict(), Contention(commits=6, waited=4).verdict()
        ('rush', None)
        >>> [Contention(100, waited=waited).verdict() for waited in (0, 2, 10, 60)]
        ['calm', 'busy', 'grow', 'grow']
        """
        if not self.commits:
            return None
        contended = self.lost + self.waited
        share, lost_share = contended / self.commits, self.lost / self.commits
        is_seen = self.lost >= MIN_LOST or contended >= MIN_CONTENDED
        is_bad = is_seen and share > GROW_ABOVE
        if not is_bad and self.commits < MIN_COMMITS:
            return None
        is_rush = is_bad and self.lost >= MIN_LOST and lost_share > RUSH_ABOVE
        self.commits = self.lost = self.waited = 0
        if is_bad:
            return RUSH if is_rush else GROW
        return CALM if share < CALM_BELOW else BUSY
