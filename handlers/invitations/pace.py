"""Length of a send at the pace to watch: 15 s, or longer where this stack sends fewer mails.

The rate of the last send that was not held back by its own limit is kept in memcached. Without one
nothing is promised of many guests.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from pipelines.invitations.send_progress import SendProgress
from pipelines.invitations.sending import WATCHED_S
from rollforward.continuations.entities import FINISHED
from rollforward.runtime import Clients, naive_utc

KEY = "invitations:mails-a-second"
KEPT_S = 24 * 3600
# An old send says nothing of the stack as it is now.
RECENT_S = 120
# Fewer mails are over before all workers take part.
ENOUGH = 500
# A run nearer to its limit says nothing of what the stack can do.
AT_ITS_LIMIT = 0.9
# So many a second are taken for granted: a laptop sends them.
EASY_RATE = 100


@dataclass(frozen=True)
class WatchedLength:
    """Seconds that a send to watch takes; `rate`: mails a second at which this stack sends less.

    `is_known`: the stack has shown what it can do, or need not.
    """

    seconds: float
    rate: float
    is_known: bool

    @property
    def is_longer(self) -> bool:
        return self.seconds > WATCHED_S * 1.1


def watched_length(clients: Clients, guests: int) -> WatchedLength:
    """Return the length of a send to as many guests."""
    wanted = guests / WATCHED_S
    rate = _rate(clients)
    if rate is None:
        return WatchedLength(WATCHED_S, wanted, is_known=wanted <= EASY_RATE)
    return WatchedLength(max(WATCHED_S, guests / rate), min(rate, wanted), is_known=True)


def note_rate(clients: Clients, send: SendProgress | None, now: datetime.datetime) -> None:
    """Keep the rate of a send that has just ended, if it shows what the stack can do."""
    if send is None or send.latest.state != FINISHED or send.latest.started is None:
        return
    run = send.latest
    if run.totals.done < ENOUGH or not run.elapsed_s:
        return
    age_s = (naive_utc(now) - send.latest.started).total_seconds()
    if age_s - run.elapsed_s > RECENT_S:
        return
    rate = run.totals.done / run.elapsed_s
    if run.max_rate is None or rate < AT_ITS_LIMIT * run.max_rate:
        clients.cache.set(KEY, f"{rate:.1f}".encode(), KEPT_S)


def _rate(clients: Clients) -> float | None:
    try:
        return max(1.0, float(clients.cache.get(KEY) or b""))
    except ValueError:
        return None
