"""Every job and every task of this app, in one list: nothing else can be delivered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipelines import comparisons, grades, invitations, outbox, sum_loads
from pipelines.dead_tasks import replay_task
from pipelines.fork_join import ForkJoin
from pipelines.fork_join_sweeps import forget_all
from pipelines.jobs import Job
from pipelines.materialized_views import check_groups
from pipelines.pages import page_task
from pipelines.sums import add_up
from pipelines.tasks import Task
from pipelines.view_builds import Builds


@dataclass(frozen=True)
class Registry:
    """Jobs by name, and tasks by path: all that can be delivered, and the replay."""

    jobs: Mapping[str, Job[Any, Any]]
    tasks: Mapping[str, Task[Any]]
    builds: Sequence[Builds] = ()
    fork_joins: Sequence[ForkJoin[Any]] = ()

    @classmethod
    def of(
        cls,
        jobs: Iterable[Job[Any, Any]],
        tasks: Iterable[Task[Any]] = (),
        builds: Sequence[Builds] = (),
        fork_joins: Sequence[ForkJoin[Any]] = (),
    ) -> Registry:
        """Return the registry for some jobs, tasks that belong to none, views and queues.

        Raises:
            TypeError: two groups of views share a name, a view or a kind of source.
        """
        check_groups([group.views for group in builds])
        fork_joins = [*(group.views.fan_in for group in builds), *fork_joins]
        views = [job for group in builds for job in group.jobs]
        by_name = {job.name: job for job in [*jobs, *views]}
        pages = [page_task(job) for job in by_name.values()]
        of_views = [task for group in builds for task in group.views.tasks]
        joins = [task for queue in fork_joins for task in queue.tasks]
        known: list[Task[Any]] = [*pages, *of_views, *joins, forget_all, outbox.drain, *tasks]
        by_path = {task.path: task for task in known}
        replay = replay_task(by_path)
        return cls(by_name, {**by_path, replay.path: replay}, builds, fork_joins)


APP = Registry.of(
    [invitations.IMPORT, invitations.TELL, grades.ADD_MANY, grades.IMPORT, comparisons.FILL],
    [comparisons.measure, sum_loads.begin, sum_loads.write],
    [grades.BUILDS],
    [add_up],
)
