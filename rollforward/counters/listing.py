"""Counters as an operator sees them: their mode, and how many keys are to be drained or shrunk."""

from __future__ import annotations

from rollforward.counters.counter import Counter
from rollforward.counters.entities import due_configs
from rollforward.runtime import Clients
from rollforward.runtime.clock import naive_utc
from rollforward.tasks.runs import RunDetails, named_run

PATTERN = "counters"
MAX_COUNTED = 1_000


def counter_details(clients: Clients, counter: Counter) -> RunDetails:
    """Return the numbers of a declaration; its keys cannot be listed, since they are spread."""
    numbers: dict[str, float | str] = {"mode": counter.mode}
    if counter.fork_join is None:
        due = due_configs(counter.name, naive_utc(clients.clock.now()))
        numbers["due_keys"] = len(due.fetch(MAX_COUNTED, keys_only=True))
        numbers["min_shards"], numbers["max_shards"] = counter.shard_bounds
    else:
        numbers["gathered_by"] = f"fork-join queue {counter.fork_join.settings.name}"
    return RunDetails(named_run(PATTERN, counter.name), numbers=numbers)
