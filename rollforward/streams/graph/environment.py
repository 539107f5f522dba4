"""Environment of a pipeline's generators: declaration, clock, randomness, names, configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from rollforward.streams.graph.declaration import Declaration
from rollforward.streams.graph.plan import (
    ActivePipeline,
    initial_computations,
    running_computations,
)
from rollforward.streams.storage.remote_calls import Steps
from rollforward.streams.storage.schema import Head, Interval, Names


@dataclass(frozen=True)
class StreamConfig:
    """Durations and sizes of a pipeline's work.

    Attributes:
        lease_ms: The lease of a worker, unless it renews it.
        run_ms: The time after which a worker yields its interval to the next task.
        give_way_ms: The time after which a worker with an empty inbox yields its interval while
            other intervals wait for a worker. An idle worker yields immediately.
        waits_ms: The time that an interval waits for a worker before others yield to it.
        hooks_ms: The time limit of a bundle; after it no further hook starts.
        linger: Pauses, in seconds, after which an idle worker checks its inbox before it leaves.
        gather_s: The minimum time between bundles if the last one drained the inbox. Commits of
            more records are cheaper per record. Doubled after a bundle of a hundred or more
            records. 0: no pause.
        watermark_ms: The maximum age of a worker's cached watermark.
        wakeup_ms: The period in which repeated commits wake their readers at most once.
        tick_s: The period of watermark ticks while anything moves.
        max_records, max_chunks: The limits of a bundle.
        max_small_chunks: The limit of a bundle's chunks while they hold fewer than `max_records`.
        inline_ms, max_inlined: The limits of time and records for running weak computations inline
            in one commit. Other records go into the inboxes of these computations.
        effect_ms: The time for which a source waits for weak sinks. Effects that are not complete
            by then are committed as records.
        follow_from: The number of intervals from which on commits note which inboxes they
            write to, and ticks read only the rows that may have changed.
        unjoined_ms: The time after a crash of a worker in which pushes do not join its commits.
        cache_bytes: The limit of cached states per interval of a worker, and per process for all
            intervals that it has processed.
    """

    lease_ms: int = 15_000
    run_ms: int = 20_000
    give_way_ms: int = 1_000
    waits_ms: int = 1_000
    hooks_ms: int = 5_000
    linger: tuple[float, ...] = (0.005, 0.01, 0.02, 0.04, 0.08)
    gather_s: float = 0.005
    watermark_ms: int = 100
    wakeup_ms: int = 50
    tick_s: float = 0.25
    max_records: int = 2_000
    max_chunks: int = 20
    max_small_chunks: int = 200
    inline_ms: int = 100
    max_inlined: int = 2_000
    effect_ms: int = 1_000
    follow_from: int = 33
    unjoined_ms: int = 600_000
    cache_bytes: int = 32_000_000


@dataclass(frozen=True)
class Environment:
    """The pipeline and the capabilities of the process that runs it.

    Attributes:
        caches: Rows that the process has read or written. They are hints: the next commit verifies
            each by its version. The rows of a tick are verified by the next tick, by the notes of
            senders.
        run_in_background: Starts steps concurrently, without waiting for them. None: unsupported.
        sign: Turns an id into the id of a lease owner in this process.
        is_dead: Whether the process of an owner is known to be dead, so that its lease is void.
        can_join: Whether pushes may join the commits of workers (`joint_commits.py`).
    """

    pipeline: Declaration
    now_ms: Callable[[], int]
    elapsed_ms: Callable[[], float]  # A clock that never goes back.
    new_id: Callable[[], str]
    warn: Callable[[str], None]
    config: StreamConfig = field(default_factory=StreamConfig)
    caches: dict[Any, Any] = field(default_factory=dict)
    run_in_background: Callable[[Steps[Any]], None] | None = None
    sign: Callable[[str], str] = str
    is_dead: Callable[[str], bool] = lambda owner: False
    can_join: bool = False

    def is_worked_on(self, interval: Interval, now_ms: int) -> bool:
        """Return whether a worker that may be alive has the lease of an interval."""
        return interval.is_leased(now_ms) and not self.is_dead(interval.owner)

    def follows(self, head: Head) -> bool:
        """Return whether commits note where they send: the pipeline has many intervals."""
        return sum(map(len, head.intervals.values())) >= self.config.follow_from

    def at(self, head: Head) -> ActivePipeline:
        """Return the pipeline by the topology of a head.

        Two plans are cached: the newest one, and the plan for an empty head, with which each worker
        begins.
        """
        declared, topology = self.pipeline, head.topology
        slot = "plan" if topology else "first plan"
        plan: ActivePipeline
        cached_declared, cached_topology, plan = self.caches.get(slot, (None, None, None))
        if cached_declared is declared and cached_topology is topology:
            return plan
        if cached_declared is not declared or cached_topology != topology:
            plan = ActivePipeline(
                declared, running_computations(head) or initial_computations(declared)
            )
        self.caches[slot] = declared, topology, plan
        return plan

    @cached_property
    def names(self) -> Names:
        return Names(self.pipeline.name)
