"""Every job and every task of this app, in one list: nothing else can be delivered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pipelines import invitations, outbox
from pipelines.dead_tasks import replay_task
from pipelines.jobs import Job
from pipelines.pages import page_task
from pipelines.tasks import Task


@dataclass(frozen=True)
class Registry:
    """Jobs by name, and tasks by path: the jobs', the outbox's, and the replay of dead ones."""

    jobs: Mapping[str, Job[Any, Any]]
    tasks: Mapping[str, Task[Any]]

    @classmethod
    def of(cls, jobs: Iterable[Job[Any, Any]], tasks: Iterable[Task[Any]] = ()) -> Registry:
        """Return the registry for some jobs, and for tasks that belong to none."""
        by_name = {job.name: job for job in jobs}
        known: list[Task[Any]] = [*map(page_task, by_name.values()), outbox.drain, *tasks]
        by_path = {task.path: task for task in known}
        replay = replay_task(by_path)
        return cls(by_name, {**by_path, replay.path: replay})


APP = Registry.of([invitations.IMPORT, invitations.TELL])
