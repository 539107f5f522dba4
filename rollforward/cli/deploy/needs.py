"""The queues, sweeps and indexes that the registry of an app asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rollforward.registry import Registry

# Every app has them: transactions may enqueue, and the outbox's rows may wait.
ALWAYS = ("tasks", "outbox")


@dataclass(frozen=True)
class Needs:
    """Derived from a registry.

    Attributes:
        queues: The paths of the tasks of each queue, in order.
        patterns: The names of the patterns of each queue's tasks.
        swept: The patterns in use that cron has to call.
        unused: The patterns that cron could call, and that this app does not use.
    """

    queues: Mapping[str, Sequence[str]]
    patterns: Mapping[str, frozenset[str]] = field(default_factory=dict)
    swept: Sequence[str] = ()
    unused: Sequence[str] = ()

    def patterns_of(self, queue: str) -> frozenset[str]:
        """Return the names of the patterns whose tasks go to a queue."""
        return self.patterns.get(queue, frozenset())


def needs_of(registry: Registry) -> Needs:
    """Return what an app with this registry needs."""
    queues: dict[str, list[str]] = {}
    for path, task in sorted(registry.tasks.items()):
        queues.setdefault(task.queue, []).append(path)
    patterns: dict[str, set[str]] = {}
    for name, pattern in registry.patterns.items():
        for task in pattern.tasks(registry.parts(name)):
            patterns.setdefault(task.queue, set()).add(name)
    sweepable = [name for name, pattern in registry.patterns.items() if pattern.is_swept]
    used = {name for name in sweepable if name in ALWAYS or registry.parts(name)}
    return Needs(
        queues,
        {queue: frozenset(names) for queue, names in patterns.items()},
        [name for name in sweepable if name in used],
        [name for name in sweepable if name not in used],
    )
