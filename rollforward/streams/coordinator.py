"""The tick: it moves the watermarks of a pipeline, and wakes intervals that nobody works on.

A computation has two: `input`, the smallest of the times of what is in its inbox and of the outputs
of those who write for it; and the output, the smaller one of that and of what its timers hold back.
Both follow from rows: what a worker works on stays in its inbox until the commit that takes it out.
Late records hold the input at the watermark by which they were late (`exchange/outgoing.py`), and
that of all who may get what follows from them. So how late they are does not follow from who is
slow.

All is read of one moment, where the service has such, and all inboxes are looked into side by side
(`watermarks/inbox_scan.py`). Where it has none, the order of the reads makes up for it: sources
first, then stage by stage downstream, of each the inboxes before the timers, and of these a left
one before those that have taken its place. A record that moves meanwhile moves towards what is read
later, so it is seen.

Each tick raises the generation of the head. While anything moves it asks for the next one by a task
of the new name; when nothing does it looks once more, so that who saw the old generation is seen.
Two ticks at a time do no harm: the watermarks only rise, and one of two commits fails.
"""

from __future__ import annotations

from rollforward.streams.exchange.wakeups import tick_wake, wake
from rollforward.streams.graph.environment import Environment
from rollforward.streams.scaling.autosplit import merge_idle
from rollforward.streams.storage.remote_calls import (
    ChangedError,
    CreateTasks,
    Read,
    Steps,
)
from rollforward.streams.storage.schema import Head
from rollforward.streams.topology.teardown import advance
from rollforward.streams.watermarks.backpressure import (
    resume_sources,
)
from rollforward.streams.watermarks.cut import Cut
from rollforward.streams.watermarks.cut_reader import read_cut
from rollforward.streams.watermarks.phases import is_idle_cut
from rollforward.streams.watermarks.publishing import published

MAX_ROUNDS = 5


def tick(environment: Environment, *why: str | int) -> Steps[int]:
    """Move the watermarks once, wake who has work, and have the next tick come if need be.

    Args:
        why: Wakes by other tasks than senders do: theirs may have been purged, and a name stays
            taken for hours after that.

    Returns:
        How many intervals were woken.

    Raises:
        ChangedError: sources were faster again and again; nothing was published.
        OutcomeUnknownError: perhaps something was.
    """
    woken, published = 0, None
    for _ in range(MAX_ROUNDS):
        cut = yield from read_cut(environment)
        if cut is None:
            return 0
        now_ms = environment.now_ms()
        rests = is_idle_cut(cut, now_ms)
        try:
            published = yield from _publish(environment, cut)
        except ChangedError:
            [head] = yield Read([environment.names.head])
            if head.body.gen != cut.head.body.gen:
                return woken  # By another tick, which looks after that.
            continue  # A source has written meanwhile, and counts on this tick.
        woken += yield from _wake(environment, cut, now_ms, why)
        yield from resume_sources(environment, cut.head.body, cut.paused, cut.rows)
        yield from merge_idle(environment, published, cut.idle_intervals(now_ms))
        yield from advance(environment, cut)
        if not rests:
            break
        again = yield from read_cut(environment)
        if again is None or is_idle_cut(again, environment.now_ms()):
            return woken
    if published is None:
        raise ChangedError
    yield CreateTasks([tick_wake(environment, published)])
    return woken


def _publish(environment: Environment, cut: Cut) -> Steps[Head]:
    """Commit the watermarks under the next generation; return the head as it is then.

    Raises:
        ChangedError: another tick was faster.
        OutcomeUnknownError: the task comes again, and looks again.
    """
    commit, new = published(environment, cut)
    new = new._replace(gen=new.gen + 1)
    commit.puts.insert(0, (environment.names.head, new, cut.head.version))
    yield commit
    return new


def _wake(
    environment: Environment, cut: Cut, now_ms: int, why: tuple[str | int, ...]
) -> Steps[int]:
    wakes = [
        wake(environment, (name, lo), cut.intervals[name, lo].gen, *why)
        for name, lo in cut.to_wake(environment, now_ms)
    ]
    if wakes:
        yield CreateTasks(wakes)
    return len(wakes)
