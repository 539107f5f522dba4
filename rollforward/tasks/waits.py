"""Planned waits: a delivered task is created again for a later time, and its delivery ends well.

Every answer that is no success is an error to Cloud Tasks, and a high rate of errors slows a queue
down: how high is not published. So a wait that is planned is no error. The new task has the same
path, body and queue. Headers say which task it continues, so that attempts, dead tasks and
`current_task()` see one task.

The new name follows from the old one and the number of waits before. A repeated delivery therefore
creates nothing. A caller's name is free again a day after its task, which may have waited for
longer: so a header that is drawn for each named task is a part of the new name, too.

Lost: a limit of attempts that `enqueue(max_attempts=...)` gave Cloud Tasks.
"""

from __future__ import annotations

import datetime
import hashlib
import re
import urllib.parse
from collections.abc import Mapping
from dataclasses import replace

from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import utc_at
from rollforward.runtime.messages import BORN_HEADER, Message
from rollforward.tasks.attempts import TaskDelivery
from rollforward.tasks.declaration import deadline_of
from rollforward.tasks.errors import PERMANENT_ERRORS
from rollforward.tasks.stored import arguments
from rollforward.tasks.stored.distant import DISTANT_AFTER_S
from rollforward.tasks.stored.names import MAX_TASK_BYTES
from rollforward.tracing import trace_headers

TASK_HEADER = "X-Rollforward-Task"
WAITS_HEADER = "X-Rollforward-Waits"

# A task of another version looks for that version, ever more rarely.
MIN_VERSION_WAIT_S = 5.0
MAX_VERSION_WAIT_S = 60.0

_PATH_CHARS = "/:@!$&'()*+,;=~"
_MAX_NAME_CHARS = 500
_TASK_ID = re.compile(rf"[A-Za-z0-9_-]{{1,{_MAX_NAME_CHARS}}}")
_NUMBER = re.compile(r"[0-9]{1,9}")
_BORN = re.compile(r"[0-9a-f]{8}")


def reschedule(clients: Clients, delivery: TaskDelivery, after_s: float) -> bool:
    """Create a delivered task again, due in so many seconds.

    A wait of 30 days ends up to an hour earlier where the service's clock is behind: it takes no
    task that is further ahead.

    Returns:
        False: it cannot be created again, and has to be retried.

    Raises:
        google.api_core.exceptions.GoogleAPICallError: it is unknown whether it was created.
    """
    name = short_name(delivery.task_name)
    if not name or len(delivery.body) > MAX_TASK_BYTES:  # No more of it was read.
        return False
    waits = delivery.waits + 1
    # The queue delivers no task before its time: a clock that is behind is not to be asked.
    now_utc = max(clients.clock.now(), utc_at(delivery.due_s))
    due = now_utc + datetime.timedelta(seconds=after_s)
    arguments.extend(clients, delivery.body, due)
    born = {BORN_HEADER: delivery.born} if delivery.born else {}
    message = Message(
        urllib.parse.quote(delivery.path, safe=_PATH_CHARS),
        delivery.queue.rpartition("/")[2],
        delivery.body,
        _next_name("-".join([name, *born.values()]), waits),
        due,
        headers={TASK_HEADER: name, WAITS_HEADER: str(waits), **born, **trace_headers()},
        deadline_s=deadline_of(clients, delivery.path),
    )
    too_far_s = max(0.0, after_s - DISTANT_AFTER_S)
    nearer = replace(message, at=due - datetime.timedelta(seconds=too_far_s))
    return any(_create(clients, each) for each in ([message, nearer] if too_far_s else [message]))


def _create(clients: Clients, message: Message) -> bool:
    """Create a task, unless an earlier delivery has; return False if it is refused."""
    try:
        clients.tasks.create(message)
    except PERMANENT_ERRORS:
        return False
    return True


def continued(headers: Mapping[str, str]) -> tuple[str, int]:
    """Return the task that a delivery continues, and how often it has waited; ("", 0): none."""
    name, waits = headers.get(TASK_HEADER, ""), headers.get(WAITS_HEADER, "")
    if _TASK_ID.fullmatch(name) and _NUMBER.fullmatch(waits):
        return name, int(waits)
    return "", 0


def born_of(headers: Mapping[str, str]) -> str:
    """Return what tells a delivered task from others of its name; "": nothing does."""
    born = headers.get(BORN_HEADER, "")
    return born if _BORN.fullmatch(born) else ""


def version_wait_s(waits: int) -> float:
    """Return the pause of a task that no version has known yet, by its waits before.

    >>> [version_wait_s(waits) for waits in (0, 1, 2, 3, 4, 1_000)]
    [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]
    """
    return float(min(MAX_VERSION_WAIT_S, MIN_VERSION_WAIT_S * 2 ** min(waits, 10)))


def version_pause_s(waited_s: float) -> float:
    """Return the pause before the next try, by the seconds waited before: as many again.

    >>> [version_pause_s(waited_s) for waited_s in (0, 7, 3_000)]
    [5.0, 7.0, 60.0]
    """
    return float(min(MAX_VERSION_WAIT_S, max(MIN_VERSION_WAIT_S, waited_s)))


def short_name(task_name: str) -> str:
    """Return a task's short name; the service sends the short or the long one."""
    return task_name.rpartition("/")[2]


def _next_name(name: str, waits: int) -> str:
    end = f"-w{waits}"
    if len(name) + len(end) > _MAX_NAME_CHARS:
        name = hashlib.sha256(name.encode()).hexdigest()
    return name + end
