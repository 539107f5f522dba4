"""Coordinator: a tick advances the watermarks of a pipeline and wakes intervals with work.

A computation has two watermarks. Its input watermark is the minimum of the times in its inbox and
of the output watermarks upstream. Its output watermark is the minimum of that and of the times that
its timers hold. Both follow from rows, since a record stays in its inbox until a commit consumes
it. Late records hold the input at the watermark by which they were late (`exchange/outgoing.py`),
and the input of every computation that may get their results. So their lateness does not depend on
how slow workers are.

If the service has snapshots, all reads see one moment, and all inboxes are scanned side by side
(`watermarks/inbox_scan.py`). A tick of many intervals reads only the rows that may have changed
since the last one of its process (`watermarks/following.py`). Without snapshots the order of the
reads makes up for it: sources first, then computations downstream. Of a computation, inboxes come
before timers, and a retired inbox before its successors. A record that moves meanwhile moves
towards rows that are read later.

Each tick raises the generation of the head. While watermarks move, it creates the next tick's task
under a new name. When all is idle it reads once more, so that it sees every sender that read the
old generation. Two concurrent ticks are harmless: watermarks only rise, and one commit of two
fails.
"""

from __future__ import annotations

from rollforward.streams.exchange.wakeups import tick_wake, wake
from rollforward.streams.graph.environment import Environment
from rollforward.streams.scaling.autosplit import merge_idle
from rollforward.streams.storage.remote_calls import ChangedError, CreateTasks, Read, Steps
from rollforward.streams.storage.schema import Head
from rollforward.streams.topology.teardown import advance
from rollforward.streams.watermarks.backpressure import resume_sources
from rollforward.streams.watermarks.cut import Cut
from rollforward.streams.watermarks.cut_reader import read_cut
from rollforward.streams.watermarks.phases import is_idle
from rollforward.streams.watermarks.publishing import published

MAX_ROUNDS = 5


def tick(environment: Environment, *suffix: str | int) -> Steps[int]:
    """Advance the watermarks, wake intervals that have work, and schedule the next tick if needed.

    Args:
        suffix: Distinguishes the wake-up tasks from the tasks of senders, whose names stay taken
            for hours after a purge.

    Returns:
        How many intervals were woken.

    Raises:
        ChangedError: lost the race against sources on every attempt; nothing was published.
        OutcomeUnknownError: the watermarks may have been published.
    """
    woken, head = 0, None
    for _ in range(MAX_ROUNDS):
        cut = yield from read_cut(environment)
        if cut is None:
            return 0
        now_ms = environment.now_ms()
        was_idle = is_idle(cut, now_ms)
        try:
            head = yield from _publish(environment, cut)
        except ChangedError:
            [current] = yield Read([environment.names.head])
            if current.body.gen != cut.head.body.gen:
                return woken  # Another tick was faster, and does the rest.
            continue  # A source has written meanwhile, and relies on this tick.
        woken += yield from _wake(environment, cut, now_ms, suffix)
        yield from resume_sources(environment, cut.head.body, cut.paused, cut.rows)
        yield from merge_idle(environment, head, cut.idle_intervals(now_ms))
        yield from advance(environment, cut)
        if not was_idle:
            break
        last_cut = yield from read_cut(environment)
        if last_cut is None or is_idle(last_cut, environment.now_ms()):
            return woken
    if head is None:
        raise ChangedError
    yield CreateTasks([tick_wake(environment, head)])
    return woken


def _publish(environment: Environment, cut: Cut) -> Steps[Head]:
    """Commit the watermarks under the next generation; return the new head.

    Raises:
        ChangedError: another tick was faster.
        OutcomeUnknownError: the task is retried, and reads again.
    """
    commit, head = published(environment, cut)
    head = head._replace(gen=head.gen + 1)
    commit.puts.insert(0, (environment.names.head, head, cut.head.version))
    yield commit
    return head


def _wake(
    environment: Environment, cut: Cut, now_ms: int, suffix: tuple[str | int, ...]
) -> Steps[int]:
    wakes = [
        wake(environment, (name, lo), cut.intervals[name, lo].gen, *suffix)
        for name, lo in cut.to_wake(environment, now_ms)
    ]
    if wakes:
        yield CreateTasks(wakes)
    return len(wakes)
