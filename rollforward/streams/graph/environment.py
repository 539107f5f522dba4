"""What the generators of a pipeline are handed: the declaration, a clock, randomness, names."""

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
    """How long things take, and how much is done at once.

    Attributes:
        lease_ms: For how long a worker that says nothing keeps its interval.
        run_ms: After so long a worker hands its interval on to the next task.
        give_way_ms: After so long a worker that has taken all that waited hands its interval on,
            while others wait for a worker; an idle one leaves at once.
        waits_ms: So long an interval has to wait for a worker before one gives way.
        hooks_ms: After so long in one batch no further record is begun.
        linger: Pauses, in seconds, after which an idle worker looks again before it leaves.
        gather_s: Who had all that waited in a batch begins the next one so long after that, not
            sooner: where records keep coming, commits of more of them are cheaper for each. Twice
            as long after a batch of a hundred and more. 0: at once.
        watermark_ms: How old a watermark may be that a worker goes by.
        ring_ms: Who commits again and again wakes its readers once in so long.
        tick_s: Between two looks at the watermarks, while anything moves.
        max_records, max_chunks: Of one batch.
        max_small_chunks: Of one batch, while they do not fill it.
        pass_ms, max_passed: For how long, and how many records at most, one commit passes through
            weak computations; the others go into their inboxes.
        hand_ms: So long a source waits for weak sinks before what they have not done is committed.
        cache_bytes: Of states that a worker keeps of its interval; and of those that a process
            keeps of all intervals that it has worked on.
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
    cache_bytes: int = 32_000_000


@dataclass(frozen=True)
class Environment:
    """Where a pipeline runs.

    `caches` are what its process knows of rows since it read or wrote them: hints, of which each
    is proved by the version that the next commit names. `later` runs steps beside those that ask
    for it, and nobody waits for them; None: there is nobody who could. `sign` makes an id that of
    an owner in this process; others may know that it `is_dead`, and do not wait for its lease.
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

    def is_worked_on(self, interval: Interval, now_ms: int) -> bool:
        """Return whether a worker has the lease of an interval, and is not known to be dead."""
        return interval.is_leased(now_ms) and not self.is_dead(interval.owner)

    def at(self, head: Head) -> ActivePipeline:
        """Return the pipeline as the topology of a head has it.

        The plan before any head was read is kept beside the newest one: each worker begins with it.
        """
        declared, topology = self.pipeline, head.topology
        slot = "plan" if topology else "first plan"
        plan: ActivePipeline
        known, of, plan = self.caches.get(slot, (None, None, None))
        if known is declared and of is topology:
            return plan
        if known is not declared or of != topology:
            plan = ActivePipeline(
                declared, running_computations(head) or initial_computations(declared)
            )
        self.caches[slot] = declared, topology, plan
        return plan

    @cached_property
    def names(self) -> Names:
        return Names(self.pipeline.name)
