"""Every job and every task of this app, in one list: nothing else can be delivered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipelines import invitations
from pipelines.dead_tasks import replay_task
from pipelines.jobs import Job
from pipelines.pages import page_task
from pipelines.tasks import Task

JOBS: Mapping[str, Job[Any, Any]] = {
    job.name: job for job in (invitations.IMPORT, invitations.TELL)
}

_PAGES = {task.path: task for task in map(page_task, JOBS.values())}
_REPLAY = replay_task(_PAGES)

TASKS: Mapping[str, Task[Any]] = {**_PAGES, _REPLAY.path: _REPLAY}
