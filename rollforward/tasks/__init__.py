"""Tasks: declared once, enqueued through the same object, delivered by Cloud Tasks.

    from rollforward.runtime import Clients
    from rollforward.tasks import task

    @task(queue="default")  # Delivered to /tasks/send-reminder.
    def send_reminder(clients: Clients, party: str, *, is_last: bool = False) -> None:
        print(f"remind the guests of {party}")

    send_reminder.enqueue(clients, "p1", is_last=True)
    send_reminder.enqueue(clients, send_reminder.bind("p1"), name=("p1",), delay_s=60)

An app lists its tasks in its `Registry`; `rollforward/flask/endpoints/tasks.py` delivers to those.
The path follows from the function's name. Give it (`@task("/tasks/parties/remind", queue=...)`) if
the function may be renamed, because waiting tasks are delivered to the path of their enqueueing.

A task may be delivered more than once, late, out of order and twice at the same time. The
function ends in one of these ways: it returns (done), raises `Reject` (can never work: kept as a
dead task), `Retry` (lost its race), `Retry(after_s=60)` (waits a minute, which is no failure) or
`Unavailable` (a service does not answer; so does the service's own error). Anything else is its
own failure: it is retried `max_attempts` times.

Arguments are the function's own typed parameters, or one frozen dataclass in their place:
`def send_reminder(clients, args: Remind)`, `send_reminder.enqueue(clients, Remind("p1"))`. They
travel as JSON and are checked when they are enqueued and when they are delivered; nothing is
pickled. `bind` makes one value of a call: for the options of `enqueue`, for `enqueue_many`, the
outbox and batches.

A name makes a task unique. It is hashed: sequential names slow a whole queue down. "Already
exists" means that the task was enqueued before, and is a result, not an error.

`rollforward.tasks.attempts`: while a task runs, `current_task()` is its id.
"""

from rollforward.tasks.cloud_tasks import AppEngineTarget, CloudTaskQueue, UrlTarget
from rollforward.tasks.dead_tasks import count_open
from rollforward.tasks.declaration import Task, hashed_name, task
from rollforward.tasks.errors import BadArgumentsError, Reject, Retry, TooLargeError, Unavailable

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
