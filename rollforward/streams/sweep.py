"""The sweep of a pipeline: what a process has left behind that died after its commit.

Who commits a record wakes its reader afterwards. A process may die in between; then nobody works on
the record until this, once a minute, looks at all inboxes and timers, as each tick does, and at the
pull sources that nobody reads. It also looks where no worker does (`recovery.py`).
"""

from __future__ import annotations

from rollforward.runtime.clients import Clients
from rollforward.streams.coordinator import tick
from rollforward.streams.driver import Engine
from rollforward.streams.exchange.pulling import pull_wake
from rollforward.streams.exchange.recovery import recover
from rollforward.streams.graph.declaration import Declaration
from rollforward.streams.graph.environment import Environment
from rollforward.streams.model.records import FOREVER
from rollforward.streams.model.sources import PullSource
from rollforward.streams.storage.remote_calls import CreateTasks, Read, Steps
from rollforward.streams.watermarks.backpressure import source_name

STALE_MS = 60_000
NEWS_MS = 60 * STALE_MS


def sweep_pipeline(clients: Clients, pipeline: Declaration) -> int:
    """Wake what has work and no worker; return how many intervals and sources that were."""
    engine = Engine(clients, pipeline)
    return engine.run(sweep(engine.environment))


def sweep(environment: Environment) -> Steps[int]:
    """Do so, in steps."""
    woken = yield from tick(environment, *sweep_suffix(environment))
    yield from recover(environment)
    return woken + (yield from wake_sources(environment))


def sweep_suffix(environment: Environment) -> tuple[str, int]:
    """Return what sets the tasks of one minute's sweep apart."""
    return "sweep", environment.now_ms() // STALE_MS


def wake_sources(environment: Environment) -> Steps[int]:
    """Have pull sources read that were read before, have not ended, and are read by nobody."""
    woken = 0
    [head] = yield Read([environment.names.head])
    if head is None:
        return 0
    for stream, source in environment.at(head.body).sources.items():
        if isinstance(source, PullSource):
            woken += yield from _wake_source(environment, stream, source)
    return woken


def _wake_source(environment: Environment, stream: str, source: PullSource) -> Steps[int]:
    """Have a source read that was read before and has not ended; return 1 if so."""
    names = environment.names
    found, head = yield Read([names.source(stream, ""), names.head])
    if found is None or not found.body.seq or found.body.watermark >= FOREVER:
        return 0
    if source_name(stream, "") in head.body.paused:
        return 0
    # Who let it go may have died before it was read again.
    paused_at_ms = head.body.paused_at_ms.get(source_name(stream, ""), 0)
    silent_ms = environment.now_ms() - max(found.body.seen_ms, paused_at_ms)
    if source.poll is None and paused_at_ms < found.body.seen_ms:
        # It may have no more for now, or its task was purged: look ever less often, while that is
        # news. To look once is not enough: that task may be purged, too.
        why: tuple[str | int, ...] = ("sweep", (silent_ms // STALE_MS).bit_length())
        is_due = STALE_MS <= silent_ms < NEWS_MS
    else:
        poll_s = source.poll.total_seconds() if source.poll else 0
        why = sweep_suffix(environment)
        is_due = silent_ms >= STALE_MS + 1000 * poll_s
    if is_due:
        yield CreateTasks([pull_wake(environment, stream, found.body.seq, *why)])
    return int(is_due)
