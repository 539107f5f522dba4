"""Tasks: declared once, enqueued through the same object, delivered by Cloud Tasks.

    @task("/tasks/parties/remind", queue="default")
    def remind(clients: Clients, args: Remind) -> None: ...

    remind.enqueue(clients, Remind(party_id="p1"), name=("remind", "p1"), delay_s=60)

`handlers/endpoints/tasks.py` mounts every declared task as an endpoint. A task may be delivered
more than once, late, out of order and twice at the same time. The function ends in one of
four ways: it returns (done), raises `Reject` (can never work), `Retry` (lost its race, come
back) or lets the error of a sick service rise (unwell); anything else is retried too.

Arguments are a frozen dataclass; they travel as JSON and are checked on both sides. A name
is hashed: sequential names slow a whole queue down. "Already exists" means that someone has
done this for us, and is an answer, not an error.
"""

from pipelines.tasks.dead_tasks import count_open
from pipelines.tasks.declaration import (
    AppEngineTarget,
    BadArgumentsError,
    CloudTaskQueue,
    Reject,
    Retry,
    Task,
    TooLargeError,
    Unavailable,
    UrlTarget,
    hashed_name,
    task,
)

__all__ = [
    "AppEngineTarget",
    "BadArgumentsError",
    "CloudTaskQueue",
    "Reject",
    "Retry",
    "Task",
    "TooLargeError",
    "Unavailable",
    "UrlTarget",
    "count_open",
    "hashed_name",
    "task",
]
