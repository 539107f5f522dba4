"""Every job and every task of an app, in one list: nothing else can be delivered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipelines import outbox
from pipelines.continuations import Job
from pipelines.continuations.attempt import page_task
from pipelines.fork_join import ForkJoin
from pipelines.fork_join.sweep import delete_partition
from pipelines.materialized_views import ViewMaintenance
from pipelines.materialized_views.group import check_groups
from pipelines.tasks import Task
from pipelines.tasks.dead_tasks import replay_task


@dataclass(frozen=True)
class Registry:
    """Jobs by name, and tasks by path: all that can be delivered, and the replay."""

    jobs: Mapping[str, Job[Any, Any]]
    tasks: Mapping[str, Task[Any]]
    builds: Sequence[ViewMaintenance] = ()
    fork_joins: Sequence[ForkJoin[Any]] = ()

    @classmethod
    def of(
        cls,
        jobs: Iterable[Job[Any, Any]],
        tasks: Iterable[Task[Any]] = (),
        builds: Sequence[ViewMaintenance] = (),
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
        known: list[Task[Any]] = [*pages, *of_views, *joins, delete_partition, outbox.drain, *tasks]
        by_path = {task.path: task for task in known}
        replay = replay_task(by_path)
        return cls(by_name, {**by_path, replay.path: replay}, builds, fork_joins)
