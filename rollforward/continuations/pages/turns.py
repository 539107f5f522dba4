"""Turns of pages, in a run that has a rate.

The pages of all chains are spread over the time that the rate is. A run that was held up, as by a
paused queue, makes good a minute, or one page of each chain. It does not make good an hour by a
burst: the rate protects somebody else.
"""

from __future__ import annotations

import datetime

from rollforward.continuations.entities import ContinuationRun

MADE_GOOD = datetime.timedelta(minutes=1)


def turn_of(
    run: ContinuationRun, chain: int, number: int, linked: datetime.datetime
) -> datetime.datetime | None:
    """Return when a page has its turn (UTC, naive); None: its run has no rate.

    Args:
        linked: When the page before it was pinned, or later.
    """
    if run.max_rate is None:
        return None
    turn = number * len(run.spans) + chain
    due = run.started + datetime.timedelta(seconds=turn * run.page_size / run.max_rate)
    pace = datetime.timedelta(seconds=len(run.spans) * run.page_size / run.max_rate)
    is_held_up = linked - due > max(pace, MADE_GOOD)
    return linked + pace if is_held_up else due
