"""Patterns: the parts, tasks, sweep, gauges and runs that each adds to an app.

The registry asks each pattern; no handler names one. A new pattern subclasses `Pattern` in its own
package and is added to `PATTERNS` in rollforward/registry.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from rollforward.runtime.clients import Clients
from rollforward.tasks import dead_tasks
from rollforward.tasks.declaration import Task
from rollforward.tasks.runs import (
    Letter,
    LetterPage,
    LetterQuery,
    LetterVerb,
    Run,
    RunDetails,
    RunLink,
    RunList,
    RunQuery,
    RunVerb,
    UnknownRunError,
)
from rollforward.tasks.stored.near import create_near, late_s
from rollforward.tasks.stored.sweep import EXPIRED

P = TypeVar("P")


@dataclass(frozen=True)
class Gauge:
    """A current value. `labels` distinguish gauges of one name."""

    name: str
    help: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def sample(self) -> str:
        labels = ",".join(f'{name}="{value}"' for name, value in self.labels.items())
        name = f"{self.name}{{{labels}}}" if labels else self.name
        return f"{name} {self.value:g}"


@dataclass(frozen=True)
class CompositeIndex:
    """An index over several properties that queries need: names with "asc" or "desc", in order."""

    kind: str
    properties: tuple[tuple[str, str], ...]
    has_ancestor: bool = False


def exposition(gauges: Iterable[Gauge]) -> str:
    """Return gauges in the format of Prometheus, grouped by name.

    >>> print(exposition([Gauge("tasks_open", "Tasks that wait.", 3, {"queue": "mail"})]), end="")
    # HELP tasks_open Tasks that wait.
    # TYPE tasks_open gauge
    tasks_open{queue="mail"} 3
    """
    by_name: dict[str, list[Gauge]] = {}
    for gauge in gauges:
        by_name.setdefault(gauge.name, []).append(gauge)
    lines: list[str] = []
    for name, same in by_name.items():
        lines += [f"# HELP {name} {same[0].help}", f"# TYPE {name} gauge"]
        lines += [gauge.sample for gauge in same]
    return "".join(f"{line}\n" for line in lines)


class Pattern(Generic[P]):
    """A pattern, for all its parts in one app. Every method may stay as it is here.

    Attributes:
        name: In the URL of its sweep, GET /cron/<name>/sweep.
        takes: The class of the parts that an app registers; None: it has none.
        has_unique_names: Whether each part must have a `name` of its own.
        indexes: Composite indexes that the pattern's queries need; none of ours needs one.
        can_fail: Whether its runs can wait for a person.
    """

    name: str
    takes: type[P] | None = None
    has_unique_names: bool = False
    indexes: Sequence[CompositeIndex] = ()
    can_fail: bool = False

    def expand(self, part: P) -> Iterable[object]:
        """Return the parts of other patterns that a part brings along."""
        return ()

    def extra_parts(self) -> Iterable[object]:
        """Return the parts of other patterns that the pattern brings into every app."""
        return ()

    def tasks(self, parts: Sequence[P]) -> Iterable[Task[Any]]:
        """Return the tasks that have to be delivered for some parts."""
        return ()

    def check(self, parts: Sequence[P]) -> None:
        """Check that some parts may live in one app.

        Raises:
            TypeError: they may not; the text says which and what to do.
        """
        names = Counter(getattr(part, "name", "") for part in parts if self.has_unique_names)
        for name, count in names.items():
            if count > 1:
                kind = self.takes.__name__ if self.takes else self.name
                raise TypeError(f"each {kind} must have a name of its own, got {name!r} twice")

    def sweep(
        self, clients: Clients, parts: Sequence[P], *, stale_s: float | None = None
    ) -> Mapping[str, int]:
        """Wake overdue work; return counts of the actions.

        Args:
            stale_s: Minimum age of overdue work; None: longer than a worker's lease.
        """
        return {}

    def delete_expired(self, clients: Clients) -> int:
        """Delete expired entities, a bounded number each time. Return how many entities went."""
        return 0

    def gauges(self, clients: Clients, parts: Sequence[P]) -> Sequence[Gauge]:
        """Return metrics for monitoring."""
        return ()

    def runs(self, clients: Clients, parts: Sequence[P], query: RunQuery) -> RunList:
        """Return runs, the newest first, at a bounded cost; its tasks carry their `run_id`."""
        return RunList()

    def owner_of(self, parts: Sequence[P], run: Run) -> RunLink | None:
        """Return the run of this pattern that a run of another one works for; reads nothing."""
        return None

    def part_names(self, parts: Sequence[P]) -> Iterable[str]:
        """Return the names of parts that work without an end: ids of runs that no list has."""
        return ()

    def run(self, clients: Clients, parts: Sequence[P], run_id: str) -> RunDetails:
        """Return one run with its items, or a part that works without an end.

        Raises:
            UnknownRunError: there is none.
        """
        raise UnknownRunError(run_id)

    def control_run(self, clients: Clients, parts: Sequence[P], run_id: str, verb: RunVerb) -> str:
        """Tell a run what to do; return the id of the run that is now active or stopped.

        Raises:
            UnknownRunError: there is none.
            RunRefusedError: not as it is now.
        """
        raise UnknownRunError(run_id)

    def letters(
        self, clients: Clients, parts: Sequence[P], part_id: str, query: LetterQuery
    ) -> LetterPage:
        """Return a page of the dead letters of a part, in an order that lasts.

        Raises:
            UnknownRunError: there is no such part, or it keeps none.
        """
        raise UnknownRunError(part_id)

    def letter(self, clients: Clients, parts: Sequence[P], part_id: str, letter_id: str) -> Letter:
        """Return a dead letter.

        Raises:
            UnknownRunError, UnknownLetterError: there is none.
        """
        raise UnknownRunError(part_id)

    def change_letter(
        self,
        clients: Clients,
        parts: Sequence[P],
        part_id: str,
        letter_id: str,
        verb: LetterVerb,
    ) -> None:
        """Replay or delete a dead letter by one commit; a pipeline wakes its worker after it.

        Raises:
            UnknownRunError, UnknownLetterError: there is none, or no more.
            LetterRefusedError: it cannot be replayed.
        """
        raise UnknownRunError(part_id)

    @property
    def is_swept(self) -> bool:
        """Return whether cron has to call this pattern."""
        kind = type(self)
        return kind.sweep is not Pattern.sweep or kind.delete_expired is not Pattern.delete_expired


class Tasks(Pattern[Task[Any]]):
    """Declared tasks, and the dead letters among them."""

    name = "tasks"
    takes = Task

    def tasks(self, parts: Sequence[Task[Any]]) -> Iterable[Task[Any]]:
        return [*parts, EXPIRED.task]

    def sweep(
        self, clients: Clients, parts: Sequence[Task[Any]], *, stale_s: float | None = None
    ) -> Mapping[str, int]:
        return {"created": create_near(clients)}

    def delete_expired(self, clients: Clients) -> int:
        return EXPIRED.sweep(clients)

    def gauges(self, clients: Clients, parts: Sequence[Task[Any]]) -> Sequence[Gauge]:
        return [
            Gauge(
                "dead_tasks_open",
                f"Dead tasks that wait for somebody; at most {dead_tasks.MAX_LISTED} are counted.",
                dead_tasks.count_open(),
            ),
            Gauge(
                "distant_tasks_late_seconds",
                "Time by which a task due in more than 30 days is too late for its queue.",
                late_s(clients),
            ),
        ]


class SteppedPattern(Pattern[P]):
    """A pattern whose runs have steps by name, and wait for a person when one has failed."""

    can_fail = True

    def retry(
        self,
        clients: Clients,
        parts: Sequence[P],
        run_id: str,
        *,
        from_step: str = "",
        runs: int = 0,
        request_id: str = "",
    ) -> str:
        """Retry a run that has failed, or run a step and all later ones again; return its id.

        Args:
            from_step: The first step to run again; "": the failed one.
            runs: The expected number of its runs, or else it is refused; 0: any.
            request_id: A second call with this id does nothing.

        Raises:
            UnknownRunError: there is none.
            RunRefusedError: not as it is now, or it has no step of this name.
        """
        raise UnknownRunError(run_id)

    def cancel(
        self, clients: Clients, parts: Sequence[P], run_id: str, *, request_id: str = ""
    ) -> str:
        """Undo a run that has not ended; return its id.

        Args:
            request_id: A second call with this id does nothing.

        Raises:
            UnknownRunError: there is none.
            RunRefusedError: not as it is now.
        """
        return self.control_run(clients, parts, run_id, "cancel")

    def count_failed(self, limit: int) -> int:
        """Return how many runs wait for a person, at most `limit`."""
        return 0
