"""Sweep of a pipeline: it finds work that a process has left behind.

A process wakes the readers of a record after its commit. If it dies in between, no worker processes
the record until the next sweep. Once a minute it checks all inboxes and timers, as each tick does,
and the pull sources without a reader. It also finds stranded records (`exchange/recovery.py`).
"""

from __future__ import annotations

from rollforward.runtime.clients import Clients
from rollforward.streams.coordinator import tick
from rollforward.streams.driver import run_steps
from rollforward.streams.exchange.pulling import Partition, pull_wake
from rollforward.streams.exchange.recovery import recover
from rollforward.streams.graph.declaration import Declaration
from rollforward.streams.graph.environment import Environment
from rollforward.streams.graph.plan import history_of, running_computations
from rollforward.streams.model.records import FOREVER
from rollforward.streams.model.sources import PullSource
from rollforward.streams.publications.log import has_more
from rollforward.streams.publications.retention import delete_read_rows
from rollforward.streams.publications.subscription import Subscription
from rollforward.streams.storage.remote_calls import CreateTasks, Read, Steps
from rollforward.streams.storage.schema import Head, SourceRow
from rollforward.streams.watermarks.backpressure import source_name

STALE_MS = 60_000
# Sweeps may be fewer than one a minute; tasks of those in between have the same name.
FOUND_WITHIN_MINUTES = 16


def sweep_pipeline(clients: Clients, pipeline: Declaration) -> int:
    """Wake intervals and sources that have work and no worker; return how many."""
    return run_steps(clients, pipeline, sweep)


def sweep(environment: Environment) -> Steps[int]:
    """Wake intervals and sources in steps; return how many.

    Recovery comes last: a stranded record that cannot be put back holds up nothing else.
    """
    woken = yield from tick(environment, *sweep_suffix(environment))
    woken += yield from wake_sources(environment)
    yield from delete_read_rows(environment)
    yield from recover(environment)
    return woken


def sweep_suffix(environment: Environment) -> tuple[str, int]:
    """Return the suffix of task names for one minute's sweep."""
    return "sweep", environment.now_ms() // STALE_MS


def wake_sources(environment: Environment) -> Steps[int]:
    """Restart abandoned pull sources: started, not finished, and without a reader.

    Warns of running computations whose code is missing: their records wait.
    """
    woken = 0
    [head] = yield Read([environment.names.head])
    if head is None:
        return 0
    plan = environment.at(head.body)
    for code in plan.missing:
        environment.warn(
            f"{plan.name} does not process {code.name} here: version {code.version} runs, and this "
            "code has no such version with the same streams. If no instance has it: deploy that "
            "code again, or detach it"
        )
    for stream, source in plan.sources.items():
        if isinstance(source, PullSource):
            woken += yield from _wake_source(environment, stream, source)
    return woken


def _wake_source(environment: Environment, stream: str, source: PullSource) -> Steps[int]:
    """Restart the abandoned partitions of a pull source; return how many.

    One that was added to a running pipeline is begun, and so is each subscription.
    """
    woken, names = 0, environment.names
    partitions = [Partition(stream, name) for name in source.processes]
    keys = [names.head, *(names.source(*partition) for partition in partitions)]
    head, *rows = yield Read(keys)
    has_begun = any(row is not None and row.body.seq for row in rows)
    has_begun = has_begun or isinstance(source, Subscription)
    for partition, row in zip(partitions, rows, strict=True):
        if row is not None and row.body.seq:
            woken += yield from _wake_partition(environment, head.body, partition, row.body, source)
        elif has_begun:
            quarter = environment.now_ms() // (FOUND_WITHIN_MINUTES * STALE_MS)
            yield CreateTasks([pull_wake(environment, partition, SourceRow(), "sweep", quarter)])
            woken += 1
    return woken


def _wake_partition(
    environment: Environment, head: Head, partition: Partition, row: SourceRow, source: PullSource
) -> Steps[int]:
    """Restart a partition that has begun if it is abandoned; return 1 if so."""
    name = source_name(*partition)
    if name in head.paused:
        return 0
    if row.watermark >= FOREVER:
        return (yield from _wake_ended(environment, partition, row, source))
    # The tick that resumed it may have died before it created the task.
    resumed_ms = max(head.paused_at_ms.get(name, 0), _attached_ms(head, partition.stream))
    idle_ms = environment.now_ms() - max(row.seen_ms, resumed_ms)
    resumed = (resumed_ms,) if resumed_ms >= row.seen_ms else ()
    number, is_due = _look(source, idle_ms)
    if is_due:
        suffix = ("sweep", *resumed, number)
        yield CreateTasks([pull_wake(environment, partition, row, *suffix)])
    return int(is_due)


def _look(source: PullSource, idle_ms: int) -> tuple[int, bool]:
    """Return the number of the look at a source that stands still, and whether it is due."""
    if source.poll is None:
        # It may have no records for now, or its task was purged. Check ever less often: one check
        # is not enough, since its task may be purged, too.
        minutes = max(0, idle_ms // STALE_MS)
        return minutes.bit_length(), has_doubled(minutes)
    # Its task is gone, or its reader raises: then each task is retried for most of an hour, so a
    # new one each minute would be many.
    minutes = max(0, int(idle_ms - 1000 * source.poll.total_seconds()) // STALE_MS)
    return check_number(minutes), minutes > 0


def _attached_ms(head: Head, stream: str) -> int:
    """Return when the latest of the computations that read a stream was attached; 0: not lately.

    Its readers stop while nobody takes its records.
    """
    readers = {name for name, entry in running_computations(head).items() if stream in entry.inputs}
    return max(
        (
            change.at_ms
            for change in history_of(head)
            if change.action == "attached" and change.computation in readers
        ),
        default=0,
    )


def has_doubled(minutes: int) -> bool:
    """Return whether a time has reached a power of two within `FOUND_WITHIN_MINUTES`.

    >>> [minutes for minutes in (0, 1, 31, 47, 48, 63, 64, 79, 80) if has_doubled(minutes)]
    [1, 31, 47, 64, 79]
    """
    return minutes > 0 and minutes - 2 ** (minutes.bit_length() - 1) < FOUND_WITHIN_MINUTES


def check_number(minutes: int) -> int:
    """Return the number of a look that comes after 1, 2, 4, 8, 16, 32, 48... minutes.

    >>> [check_number(minutes) for minutes in (1, 2, 3, 8, 15, 16, 31, 32, 47, 48)]
    [1, 2, 2, 4, 4, 5, 5, 6, 6, 7]
    """
    if minutes < FOUND_WITHIN_MINUTES:
        return minutes.bit_length()
    return FOUND_WITHIN_MINUTES.bit_length() - 1 + minutes // FOUND_WITHIN_MINUTES


def _wake_ended(
    environment: Environment, partition: Partition, row: SourceRow, source: PullSource
) -> Steps[int]:
    """Wake the reader of a published stream that has got late records after its end."""
    if not isinstance(source, Subscription):
        return 0
    is_due = yield from has_more(source, partition.name, row.position)
    if is_due:
        suffix = sweep_suffix(environment)
        yield CreateTasks([pull_wake(environment, partition, row, *suffix)])
    return int(is_due)
