"""The queues, sweeps and indexes that the registry of an app asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rollforward.registry import Registry
from rollforward.tasks.pattern import CompositeIndex, Pattern

# Of Cloud Tasks, for a task that declares none.
DEADLINE_S = 600


@dataclass(frozen=True)
class Needs:
    """The demands of a registry.

    Attributes:
        queues: The paths of the tasks of each queue, in order.
        patterns: The names of the patterns of each queue's tasks.
        swept: The patterns in use that cron has to call.
        waking: Those whose sweep wakes work, and does not only delete expired rows.
        indexes: The composite indexes of the patterns in use.
        deadline_s: The longest time that a delivery may take.
    """

    queues: Mapping[str, Sequence[str]]
    patterns: Mapping[str, frozenset[str]] = field(default_factory=dict)
    swept: Sequence[str] = ()
    waking: frozenset[str] = frozenset()
    indexes: Sequence[CompositeIndex] = ()
    deadline_s: int = DEADLINE_S

    def patterns_of(self, queue: str) -> frozenset[str]:
        """Return the names of the patterns whose tasks go to a queue."""
        return self.patterns.get(queue, frozenset())


def needs_of(registry: Registry) -> Needs:
    """Return the needs of an app with this registry."""
    queues: dict[str, list[str]] = {}
    for path, task in sorted(registry.tasks.items()):
        queues.setdefault(task.queue, []).append(path)
    patterns: dict[str, set[str]] = {}
    for name, pattern in registry.patterns.items():
        for task in pattern.tasks(registry.parts(name)):
            patterns.setdefault(task.queue, set()).add(name)
    # A pattern without parts of its own, such as the outbox, is in every app.
    used = [
        pattern
        for name, pattern in registry.patterns.items()
        if pattern.takes is None or registry.parts(name)
    ]
    return Needs(
        queues,
        {queue: frozenset(names) for queue, names in patterns.items()},
        [pattern.name for pattern in used if pattern.is_swept],
        frozenset(p.name for p in used if type(p).sweep is not Pattern.sweep),
        [index for pattern in used for index in pattern.indexes],
        max([DEADLINE_S, *(task.deadline_s or 0 for task in registry.tasks.values())]),
    )
