"""Operations: dead tasks listed, replayed and deleted, one or all that match, on record.

    page = list_dead_tasks(DeadTaskFilter(queue="mail"), limit=20)
    run_id = start_bulk(clients, "replay", DeadTaskFilter(error="SMTPError"), run_id=request_id)

A replay enqueues the task and takes the dead task from its list in one commit, so it happens once,
however often it is asked for. Many at once are a run of a continuation: it can be watched,
cancelled and resumed, and lists the tasks that cannot be replayed.

Lists are read by an index that has the newest first, so a page costs its rows, however many dead
tasks there are.

`audit` keeps who changed what. The entry is written before the change, and its result after it: a
change without an entry cannot be; an entry without a result is a change whose process died.

`rollforward.operations.run_sources`: runs that an app keeps itself, in the list of all runs.

Lost on failure: nothing.
"""

from rollforward.operations.audit import list_audit, recorded
from rollforward.operations.bulk import start_bulk
from rollforward.operations.dead_task_lists import DeadTaskFilter, DeadTaskPage, list_dead_tasks
from rollforward.operations.entities import AuditEntry
from rollforward.operations.replays import (
    DeadTaskRefusedError,
    UnknownDeadTaskError,
    delete_dead_task,
    replay_dead_task,
)
from rollforward.tasks.runs import BadCursorError

__all__ = [
    "AuditEntry",
    "BadCursorError",
    "DeadTaskFilter",
    "DeadTaskPage",
    "DeadTaskRefusedError",
    "UnknownDeadTaskError",
    "delete_dead_task",
    "list_audit",
    "list_dead_tasks",
    "recorded",
    "replay_dead_task",
    "start_bulk",
]
