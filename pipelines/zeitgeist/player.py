"""The player: pushes the records of a playback when they are due, in steps, a task each.

A step reads the playback, pushes the due records of each feed with the feed's watermark, and
commits the new position with the task of the next step. A step that is killed, retried or delivered
twice pushes records of the same ids, which count once.

The pipeline sets the pace by backpressure: a push that it refuses is retried later. It refuses one
if its backlog is too long, or another feed is far behind.

Lost on failure: nothing. Overdue records are pushed later.
Routes: POST /tasks/zeitgeist/play.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import pydantic

from pipelines.times import now_ms
from pipelines.zeitgeist.pipeline import FEEDS, ZEITGEIST
from pipelines.zeitgeist.playbacks import (
    Playback,
    PlaybackGoesOnError,
    current,
    new_playback,
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

# Limits of the interval of the steps, which is about a minute of the stream.
MIN_STEP_S = 0.25
MAX_STEP_S = 5.0


@dataclass(frozen=True)
class Step:
    """One step of a playback."""

    playback: Annotated[str, pydantic.Field(pattern="^[0-9a-f]{32}$")]
    number: int


def start(clients: Clients, playback: Playback) -> bool:
    """Start a playback; return False if it was started before.

    Raises:
        PlaybackGoesOnError: another one is running.
    """

    def body() -> bool:
        running = current()
        if running is not None and running.id == playback.id:
            return False
        if running is not None and not running.is_over:
            raise PlaybackGoesOnError(f"{running.title} is being played")
        save(playback)
        outbox.enqueue(clients, play, Step(playback.id, 0))
        return True

    return transact(body)


def start_sample(clients: Clients, playback_id: str, speed: int) -> bool:
    """Start the made-up sample, like `start`."""
    running = current()
    if running is not None and running.id == playback_id:
        return False
    parts = sample_parts(playback_id)
    return start(clients, new_playback(clients, playback_id, "the sample", parts, speed))


@task("/tasks/zeitgeist/play", queue="streams-ticks")
def play(clients: Clients, args: Step) -> None:
    """Push the due records, and enqueue the next step."""
    started_ms = now_ms(
        clients
    )  # Before the read, so that `Playback.ahead` is after all records of this step.
    seen = current()
    if seen is None or seen.id != args.playback or seen.step != args.number:
        return  # A repeated delivery, or another playback.
    reached, due = dict(seen.reached), seen.due(started_ms)
    delay_s = min(MAX_STEP_S, max(MIN_STEP_S, MINUTE_MS / 1000 / seen.speed))
    for feed in [feed for feed in FEEDS if feed not in seen.held]:
        try:
            reached[feed] = _push(clients, seen, feed, due)
        except BackpressureError as error:
            delay_s = error.retry_after_s  # The other feeds continue: it may wait for one of them.

    def body() -> None:
        stored = current()
        if stored is None or stored.id != args.playback or stored.step != args.number:
            return
        following = replace(stored, reached=reached, step=stored.step + 1)
        if following.is_over:
            following = replace(following, ended_ms=started_ms)
        save(following)
        if not following.is_over:
            outbox.enqueue(clients, play, Step(args.playback, following.step), delay_s=delay_s)

    transact(body)


def _push(clients: Clients, playback: Playback, feed: str, due: int) -> int:
    """Push due records of a feed, up to a limit; return the new end of its records."""
    begin = playback.reached[feed]
    end = min(due, begin + playback.stride)
    if end <= begin:
        return begin
    records = records_of(playback, feed, begin, end)
    ZEITGEIST.push(clients, "queries", records, process=feed, watermark=end)
    return end
