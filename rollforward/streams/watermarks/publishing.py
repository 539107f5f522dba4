"""Publishing of a cut: the next head, and the layout acknowledgements of idle senders."""

from __future__ import annotations

from rollforward.streams.graph.environment import Environment
from rollforward.streams.graph.plan import with_idle
from rollforward.streams.scaling.yielding import unserved
from rollforward.streams.storage.remote_calls import Commit
from rollforward.streams.storage.schema import Head
from rollforward.streams.watermarks.cut import Cut
from rollforward.streams.watermarks.phases import with_finished_changes
from rollforward.streams.watermarks.retirement import acknowledgements


def published(
    environment: Environment, cut: Cut, *, acknowledges: bool = True
) -> tuple[Commit, Head]:
    """Return the next head with the results of a cut, and a commit of the other rows.

    Args:
        acknowledges: Whether the commit acknowledges the layout for idle senders. Such a commit
            loses its race against each sender that begins to work.
    """
    head: Head = cut.head.body
    now_ms = environment.now_ms()
    puts = acknowledgements(environment, head, cut.versions, now_ms) if acknowledges else []
    new_head = with_finished_changes(head, cut.versions, now_ms)._replace(
        inputs={**head.inputs, **cut.inputs},
        published={**head.published, **cut.published},
        percentile_watermarks={**head.percentile_watermarks, **cut.percentile_watermarks},
        sources={**head.sources, **cut.sources},
        idle_ticks=0 if cut.has_moved else head.idle_ticks + 1,
        retired=cut.retired,
        waiting=cut.backlogs,
        paused=cut.paused,
        last_heard={**head.last_heard, **cut.activities},
        paused_at_ms={**head.paused_at_ms, **dict.fromkeys(cut.paused, now_ms)},
        unserved=unserved(head, cut.to_wake(environment, now_ms), cut.intervals, now_ms),
    )
    by_key = {key: (key, body, version) for key, body, version in [*puts, *cut.idle_puts]}
    return Commit(puts=[*by_key.values()]), with_idle(cut.plan, new_head)
