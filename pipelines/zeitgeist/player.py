"""The player: pushes the records of a playback when they are due, in steps, a task each.

A step reads the playback, pushes for each feed what is due with the watermark that the feed has
reached, and commits how far it is with the task of the next step. A step that is killed, retried or
delivered twice pushes records of the same ids, which count once.

The pipeline sets the pace: a push that it refuses, because too much waits or another feed is far
behind, is made again later.

Lost on failure: nothing. What was due meanwhile is pushed later.
Routes: POST /tasks/zeitgeist/play.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import pydantic

from pipelines.zeitgeist.pipeline import FEEDS, ZEITGEIST
from pipelines.zeitgeist.playbacks import (
    Playback,
    PlaybackGoesOnError,
    current,
    new_playback,
    now_ms,
    sample_parts,
    save,
)
from pipelines.zeitgeist.records import records_of
from pipelines.zeitgeist.series import MINUTE_MS
from rollforward import outbox
from rollforward.datastore import transact
from rollforward.runtime import Clients
from rollforward.streams.model.errors import BackpressureError
from rollforward.tasks import task

# A step about each minute of the stream, between these.
MIN_STEP_S = 0.25
MAX_STEP_S = 5.0


@dataclass(frozen=True)
class Step:
    """One step of a playback."""

    playback: Annotated[str, pydantic.Field(pattern="^[0-9a-f]{32}$")]
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


def start_sample(clients: Clients, playback_id: str, speed: int) -> bool:
    """Start the made-up sample; the rest is as of `start`."""
    old = current()
    if old is not None and old.id == playback_id:
        return False
    parts = sample_parts(playback_id)
    return start(clients, new_playback(clients, playback_id, "the sample", parts, speed))


@task("/tasks/zeitgeist/play", queue="streams-ticks")
def play(clients: Clients, args: Step) -> None:
    """Push what is due, and enqueue the next step."""
    now = now_ms(clients)  # Before it looks: so `Playback.ahead` lies behind all that it pushes.
    seen = current()
    if seen is None or seen.id != args.playback or seen.step != args.number:
        return  # It was done before, or the playback has gone.
    reached, due = dict(seen.reached), seen.due(now)
    delay_s = min(MAX_STEP_S, max(MIN_STEP_S, MINUTE_MS / 1000 / seen.speed))
    for feed in [feed for feed in FEEDS if feed not in seen.held]:
        try:
            reached[feed] = _push(clients, seen, feed, due)
        except (
            BackpressureError
        ) as error:  # The others go on: it may be one of them that it waits for.
            delay_s = error.retry_after_s

    def body() -> None:
        old = current()
        if old is None or old.id != args.playback or old.step != args.number:
            return
        after = replace(old, reached=reached, step=old.step + 1)
        if after.is_over:
            after = replace(after, ended_ms=now)
        save(after)
        if not after.is_over:
            outbox.enqueue(clients, play, Step(args.playback, after.step), delay_s=delay_s)

    transact(body)


def _push(clients: Clients, playback: Playback, feed: str, due: int) -> int:
    """Push what is due of a feed, up to a bound; return up to where all was pushed."""
    begin = playback.reached[feed]
    end = min(due, begin + playback.stride)
    if end <= begin:
        return begin
    records = records_of(playback, feed, begin, end)
    ZEITGEIST.push(clients, "queries", records, process=feed, watermark=end)
    return end
