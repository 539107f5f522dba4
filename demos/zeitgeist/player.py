"""The player: pushes the records of a playback when they are due, in steps, a task each.

A step reads the playback, pushes for each feed what is due with the watermark that the feed has
reached, and commits how far it is with the task of the next step. A step that is killed, retried or
delivered twice pushes records of the same ids, which count once.

The pipeline sets the pace: while it has much in its inboxes, nothing is pushed.

Lost on failure: nothing. What was due meanwhile is pushed later.
Routes: POST /tasks/zeitgeist/play.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from demos.zeitgeist.pipeline import FEEDS, ZEITGEIST
from demos.zeitgeist.playbacks import Playback, PlaybackGoesOnError, current, now_ms, save
from demos.zeitgeist.records import records_of
from demos.zeitgeist.series import BUCKET_MS, MINUTE_MS
from models.transactions import transact
from pipelines import outbox
from pipelines.runtime import Clients
from pipelines.tasks import task

MAX_RECORDS = 400  # Of one push.
MAX_WAITING = 2_000
# A step about each minute of the stream, between these.
MIN_STEP_S = 0.25
MAX_STEP_S = 5.0


@dataclass(frozen=True)
class Step:
    """One step of a playback."""

    playback: Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
    number: int


def start(clients: Clients, wanted: Playback) -> bool:
    """Start a playback; return False if this very one was started before.

    Raises:
        PlaybackGoesOnError: another one goes on.
    """

    def body() -> bool:
        old = current()
        if old is not None and old.id == wanted.id:
            return False
        if old is not None and not old.is_over:
            raise PlaybackGoesOnError(f"{old.title} is being played")
        save(wanted)
        outbox.enqueue(clients, play, Step(wanted.id, 0))
        return True

    return transact(body)


@task("/tasks/zeitgeist/play", queue="streams")
def play(clients: Clients, args: Step) -> None:
    """Push what is due, and enqueue the next step."""
    seen = current()
    if seen is None or seen.id != args.playback or seen.step != args.number:
        return  # It was done before, or the playback has gone.
    reached = dict(seen.reached)
    if _waiting(clients) < MAX_WAITING:
        due = seen.due(now_ms(clients))
        for feed in FEEDS:
            if feed not in seen.held:
                reached[feed] = _push(clients, seen, feed, due)

    def body() -> None:
        now = current()
        if now is None or now.id != args.playback or now.step != args.number:
            return
        after = replace(now, reached=reached, step=now.step + 1)
        save(after)
        if not after.is_over:
            delay_s = min(MAX_STEP_S, max(MIN_STEP_S, MINUTE_MS / 1000 / now.speed))
            outbox.enqueue(clients, play, Step(args.playback, after.step), delay_s=delay_s)

    transact(body)


def _waiting(clients: Clients) -> int:
    """Return how many records wait in all inboxes."""
    return sum(each.waiting for each in ZEITGEIST.status(clients).computations.values())


def _push(clients: Clients, playback: Playback, feed: str, due: int) -> int:
    """Push what is due of a feed, up to a bound; return up to where all was pushed."""
    begin, end = playback.reached[feed], due
    if end <= begin:
        return begin
    # Cut at a bucket, so that no push is too long.
    most = max(1, MAX_RECORDS // len(playback.parts)) * BUCKET_MS
    end = min(end, begin + most)
    records = records_of(playback, feed, begin, end)
    ZEITGEIST.push(clients, "queries", records, process=feed, watermark=end)
    return end
