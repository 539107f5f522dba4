"""Registry of an app's parts: unregistered ones are neither delivered nor swept.

    serve = rf.serve(app, ship, RAISE_PRICES, SALES, count_visits)

An app in several modules makes it itself, `APP = Registry(ship, ...)`, and serves that.

Tasks, jobs, groups of views, fork-join queues, batches and pipelines of streams, in any order. From
them the registry derives the tasks that can be delivered, the sweeps, the gauges of /metrics, and
the queues that have to exist.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from inspect import isfunction
from typing import Any

from google.api_core.exceptions import GoogleAPIError

from rollforward.batches.pattern import Batches
from rollforward.continuations import Job
from rollforward.continuations.pattern import Continuations
from rollforward.counters.pattern import Counters
from rollforward.flows.pattern import Flows
from rollforward.fork_join.pattern import ForkJoins
from rollforward.lanes.pattern import Lanes
from rollforward.materialized_views import View, ViewGroup
from rollforward.materialized_views.pattern import MaterializedViews
from rollforward.operations.failed_runs import failed_runs_job
from rollforward.operations.letters import letters_jobs
from rollforward.operations.pattern import Operations
from rollforward.operations.run_sources import AppRuns
from rollforward.outbox.pattern import Outbox
from rollforward.pull_queues.pattern import PullQueues
from rollforward.runtime import Clients
from rollforward.runtime.run_all import run_all
from rollforward.schedules.pattern import Schedules
from rollforward.streams import Computation
from rollforward.streams.pattern import Streams
from rollforward.tasks import Task
from rollforward.tasks.dead_tasks import replay_task
from rollforward.tasks.errors import Retry, Unavailable, UnknownQueueError
from rollforward.tasks.pattern import Gauge, Pattern, SteppedPattern, Tasks
from rollforward.tasks.runs import (
    BadCursorError,
    Letter,
    LetterPage,
    LetterQuery,
    LetterVerb,
    NamedPart,
    Run,
    RunDetails,
    RunList,
    RunQuery,
    RunRefusedError,
    RunVerb,
    UnknownRunError,
    merged,
    unreadable_run,
)

log = logging.getLogger(__name__)

# Of a page of dead letters: a name that Datastore takes, with the part's name in front.
MAX_CURSOR_BYTES = 1_200

# In the order of their sweeps. A new pattern is added here, and nowhere else.
PATTERNS: tuple[Pattern[Any], ...] = (
    Tasks(),
    Outbox(),
    Lanes(),
    Continuations(),
    ForkJoins(),
    PullQueues(),
    Counters(),
    MaterializedViews(),
    Batches(),
    Flows(),
    Schedules(),
    Streams(),
    AppRuns(),
    Operations(),
)


class Registry:
    """The parts of an app, by pattern."""

    def __init__(self, *parts: object, patterns: Sequence[Pattern[Any]] = PATTERNS) -> None:
        """Register parts, in any order.

        Raises:
            TypeError: no pattern takes a part, or two parts cannot live in one app.
        """
        self.declared = parts
        self.patterns = {pattern.name: pattern for pattern in patterns}
        self._parts: dict[str, list[Any]] = {name: [] for name in self.patterns}
        for part in parts:
            self._add(part)
        for pattern in patterns:
            for part in pattern.extra_parts():
                self._add(part)
        if Continuations.name in self.patterns:
            for job in letters_jobs(self):
                self._add(job)
            self._add(failed_runs_job(self))
        for name, pattern in self.patterns.items():
            pattern.check(self._parts[name])
        declared: dict[str, Task[Any]] = {}
        replay = replay_task(declared)
        by_path: dict[str, Task[Any]] = {}
        for task in (*self._tasks(), replay):
            if by_path.setdefault(task.path, task) is not task:
                raise TypeError(
                    f"{task.path} is declared twice, by {by_path[task.path].function} and "
                    f"{task.function}: give one of them another name"
                )
        declared.update({path: task for path, task in by_path.items() if task is not replay})
        self.tasks: Mapping[str, Task[Any]] = by_path

    def parts(self, pattern: str) -> Sequence[Any]:
        """Return the parts of a pattern, as registered or brought along by others."""
        return self._parts[pattern]

    @cached_property
    def jobs(self) -> Mapping[str, Job[Any, Any]]:
        """Return the jobs by name."""
        return {job.name: job for job in self._parts[Continuations.name]}

    @property
    def swept(self) -> Sequence[str]:
        """Return the patterns that cron has to sweep, in the order of their sweeps."""
        return [name for name, pattern in self.patterns.items() if pattern.is_swept]

    def sweep(
        self, clients: Clients, name: str, *, stale_s: float | None = None, deletes: bool = False
    ) -> Mapping[str, int]:
        """Sweep one pattern; return the numbers of its work.

        Args:
            deletes: Whether to delete expired rows as well, even if the sweep fails.
        """
        pattern = self.patterns[name]
        expired: dict[str, int] = {}
        try:
            done = pattern.sweep(clients, self._parts[name], stale_s=stale_s)
        finally:
            if deletes:
                expired["expired"] = pattern.delete_expired(clients)
        return {**done, **expired}

    def sweep_all(
        self, clients: Clients, *, stale_s: float | None = None, deletes: bool = False
    ) -> Mapping[str, Mapping[str, int] | None]:
        """Sweep every pattern, whichever of them fail; return what each did, None if it failed."""
        swept = self.swept
        done: dict[str, Mapping[str, int] | None] = dict.fromkeys(swept)

        def sweep(name: str) -> None:
            done[name] = self.sweep(clients, name, stale_s=stale_s, deletes=deletes)

        run_all((f"the sweep of {name} failed", partial(sweep, name)) for name in swept)
        return done

    def gauges(self, clients: Clients) -> Iterator[Gauge]:
        """Return the gauges of all patterns."""
        for name, pattern in self.patterns.items():
            yield from pattern.gauges(clients, self._parts[name])

    def read_gauges(self, clients: Clients) -> tuple[Sequence[Gauge], Sequence[str]]:
        """Return the gauges that can be read, and the patterns whose gauges cannot.

        A service that is away is asked once.
        """
        gauges: dict[str, Sequence[Gauge]] = {}

        def read(name: str) -> None:
            gauges[name] = list(self.patterns[name].gauges(clients, self._parts[name]))

        names = self.patterns
        reads = ((f"the gauges of {name} cannot be read", partial(read, name)) for name in names)
        run_all(reads, max_unavailable=1)
        unread = [name for name in names if name not in gauges]
        return [gauge for some in gauges.values() for gauge in some], unread

    def runs(self, clients: Clients, query: RunQuery) -> RunList:
        """Return the runs of all patterns, or of one, the newest first."""
        lists = [
            pattern.runs(clients, self._parts[name], query)
            for name, pattern in self.patterns.items()
            if query.pattern in ("", name) and (query.state != "failed" or pattern.can_fail)
        ]
        listed = merged(lists, query.limit)
        return replace(listed, runs=[self._with_owner(run) for run in listed.runs])

    def named_parts(self) -> Sequence[NamedPart]:
        """Return the parts that work without an end: queues, counters, views, pipelines."""
        return [
            NamedPart(name, part)
            for name, pattern in self.patterns.items()
            for part in pattern.part_names(self._parts[name])
        ]

    def run(self, clients: Clients, pattern: str, run_id: str) -> RunDetails:
        """Return one run of a pattern, with its items.

        Raises:
            UnknownRunError: there is none.
        """
        asked = self._pattern_of_runs(pattern)
        try:
            details = asked.run(clients, self._parts[pattern], run_id)
        except (UnknownRunError, GoogleAPIError, Retry, Unavailable):
            raise
        except Exception as error:
            log.debug("the run %s of %s cannot be read", run_id, pattern, exc_info=True)
            details = RunDetails(unreadable_run(pattern, run_id, run_id, None, error))
        return replace(details, run=self._with_owner(details.run))

    def _with_owner(self, run: Run) -> Run:
        """Return a run with the one that it works for, if a pattern knows it."""
        if run.part_of is not None:
            return run
        owners = (
            pattern.owner_of(self._parts[name], run)
            for name, pattern in self.patterns.items()
            if name != run.pattern
        )
        return replace(run, part_of=next((owner for owner in owners if owner is not None), None))

    def control_run(
        self,
        clients: Clients,
        pattern: str,
        run_id: str,
        verb: RunVerb,
        *,
        from_step: str = "",
        runs: int = 0,
        request_id: str = "",
    ) -> str:
        """Tell a run what to do; return the id of the run that continues, or is cancelled.

        Args:
            from_step: The first step to run again; "": the failed one.
            runs: The expected number of its runs, or else it is refused; 0: any.
            request_id: A second retry or cancellation of steps with this id does nothing.

        Raises:
            UnknownRunError: there is none.
            RunRefusedError: not as it is now.
        """
        controlled, parts = self._pattern_of_runs(pattern), self._parts[pattern]
        if from_step and verb != "retry":
            raise RunRefusedError("only a retry has a step")
        if verb == "retry" and isinstance(controlled, SteppedPattern):
            return controlled.retry(
                *(clients, parts, run_id), from_step=from_step, runs=runs, request_id=request_id
            )
        if verb == "cancel" and isinstance(controlled, SteppedPattern):
            return controlled.cancel(clients, parts, run_id, request_id=request_id)
        if from_step:
            raise RunRefusedError("its pattern has no steps")
        return controlled.control_run(clients, parts, run_id, verb)

    def letters(self, clients: Clients, pattern: str, part: str, query: LetterQuery) -> LetterPage:
        """Return a page of the dead letters of a pipeline or a pull queue.

        Raises:
            UnknownRunError: there is no such part, or it keeps none.
            BadCursorError: the cursor is not from a page.
        """
        if len(query.cursor.encode()) > MAX_CURSOR_BYTES:
            raise BadCursorError(f"cursor must have at most {MAX_CURSOR_BYTES:,} bytes")
        return self._pattern_of_runs(pattern).letters(clients, self._parts[pattern], part, query)

    def letter(self, clients: Clients, pattern: str, part: str, letter_id: str) -> Letter:
        """Return a dead letter.

        Raises:
            UnknownRunError, UnknownLetterError: there is none.
        """
        return self._pattern_of_runs(pattern).letter(clients, self._parts[pattern], part, letter_id)

    def change_letter(
        self, clients: Clients, pattern: str, part: str, letter_id: str, verb: LetterVerb
    ) -> None:
        """Replay or delete a dead letter.

        Raises:
            UnknownRunError, UnknownLetterError: there is none, or no more.
            LetterRefusedError: it cannot be replayed.
        """
        parts = self._pattern_of_runs(pattern)
        parts.change_letter(clients, self._parts[pattern], part, letter_id, verb)

    def _pattern_of_runs(self, name: str) -> Pattern[Any]:
        if name not in self.patterns:
            raise UnknownRunError(f"there is no pattern {name}")
        return self.patterns[name]

    def check_queues(self, existing: Iterable[str]) -> None:
        """Check that every task has a queue.

        Raises:
            UnknownQueueError: one has none, and would never be delivered.
        """
        queues = set(existing)
        unknown = sorted({task.queue for task in self.tasks.values()} - queues)
        for task in self.tasks.values():
            if task.queue not in queues:
                absent = ", ".join(name for name in unknown if name != task.queue)
                raise UnknownQueueError(
                    f"{task.path} goes to the queue {task.queue!r}, which does not exist"
                    f"{f' (nor do {absent})' if absent else ''}: add "
                    f"`- name: {task.queue}` with its `rate: 100/s` to queue.yaml, or let "
                    "`rollforward deploy --check --write` write that file. The queues are "
                    f"{', '.join(sorted(queues)) or 'none'}"
                )

    def _add(self, part: object) -> None:
        for name, pattern in self.patterns.items():
            if pattern.takes is not None and isinstance(part, pattern.takes):
                if not any(part is registered for registered in self._parts[name]):
                    self._parts[name].append(part)
                    for other in pattern.expand(part):
                        self._add(other)
                return
        kinds = ", ".join(p.takes.__name__ for p in self.patterns.values() if p.takes)
        raise TypeError(
            f"{part!r:.100} cannot be registered: a registry takes {kinds}{_hint(part)}"
        )

    def _tasks(self) -> Iterator[Task[Any]]:
        for name, pattern in self.patterns.items():
            yield from pattern.tasks(self._parts[name])


def _hint(part: object) -> str:
    """Return what to write instead of a part that no pattern takes."""
    if isfunction(part):
        return ". To make a function a task, write @rf.task above it"
    kind = part if isinstance(part, type) else type(part)
    if issubclass(kind, ViewGroup | View):
        return ". Of views it takes the maintenance of their group: ViewMaintenance(group)"
    if issubclass(kind, Computation):
        return ". Of computations it takes their pipeline: Pipeline(name, Clicks)"
    if isinstance(part, list | tuple | set):
        return ". Write a star before parts in a list: Registry(*parts)"
    return ""
