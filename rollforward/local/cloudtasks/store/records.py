"""The engine's records of tasks, attempts and deliveries."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LIVE, DONE, FAILED, DELETED = "live", "done", "failed", "deleted"

# How an attempt came about. The last two are copies: they carry the headers of
# the delivery they repeat, and their failure changes nothing.
NORMAL, FORCED, DUPLICATE, OVERLAP = "normal", "forced", "duplicate", "overlap"
COPIES = {DUPLICATE, OVERLAP}


@dataclass(frozen=True, slots=True)
class PullMessage:
    """The content of a task that workers lease: no request is sent for it."""

    payload: bytes = b""
    tag: str = ""


@dataclass(slots=True, eq=False)
class TaskRecord:
    """A task and how far it has come; times in seconds since 1970.

    Attributes:
        sequence: Rises with each task ever created.
        spec: The serialized Task message as it was stored at creation.
        pull: The content of a task in a pull queue, None in any other queue.
        due_at: When it may be dispatched: schedule_at, or a while later.
        is_delayed: A fault holds its next attempt back.
        execution_count: Responses so far, as the ExecutionCount header counts them.
        retry_reason: The RetryReason header of the next attempt.
        entry: Its place in the queue's heap, None while it has none.
    """

    sequence: int
    name: str
    queue: str
    path: str
    is_app_engine: bool
    is_named: bool
    spec: bytes
    created_at: float
    schedule_at: float
    due_at: float
    state: str = LIVE
    ended_at: float | None = None
    dispatch_count: int = 0
    response_count: int = 0
    execution_count: int = 0
    previous_status: int | None = None
    retry_reason: str | None = None
    first_attempt_at: float | None = None
    last_schedule_at: float | None = None
    last_dispatch_at: float | None = None
    last_response_at: float | None = None
    last_code: int = 0
    last_message: str = ""
    running: int = 0
    is_delayed: bool = False
    entry: tuple[float, int, int, "TaskRecord"] | None = None
    pull: PullMessage | None = None

    @property
    def size_bytes(self) -> int:
        """The bytes that the task's request or payload adds to a response."""
        return len(self.spec) + (len(self.pull.payload) if self.pull else 0)

    def is_leased(self, now_s: float) -> bool:
        """Return whether a worker holds a lease on this task of a pull queue."""
        return self.pull is not None and self.dispatch_count > 0 and self.schedule_at > now_s


@dataclass(slots=True, eq=False)
class Attempt:
    """One delivery of a task, from its request to its response.

    Attributes:
        number: The RetryCount header: earlier attempts of the task.
        kind: normal, forced (RunTask), duplicate or overlap (faults).
        faults: Kinds of the fault rules that touched this attempt.
        answers_500: The handler is not to be called; the response is 500.
        kills_worker: The worker is to be killed after kill_after_s seconds.
        loses_response: The handler's response is lost on the way back.
        started_real: Its start by the clock that is never advanced.
        queue: The QueueState that the task is in.
        status: The HTTP status of the response, None if none came.
    """

    id: int
    task: TaskRecord
    number: int
    kind: str
    method: str
    url: str
    headers: dict[str, str]
    body: bytes
    deadline_s: float
    follows_redirects: bool
    started_at: float
    started_real: float
    queue: Any
    faults: list[str] = field(default_factory=list)
    answers_500: bool = False
    kills_worker: bool = False
    kill_after_s: float = 0.0
    loses_response: bool = False
    duration_ms: float | None = None
    status: int | None = None
    error: str | None = None
    response_headers: dict[str, str] = field(default_factory=dict)
    response_body: bytes = b""
    next_retry_at: float | None = None

    @property
    def is_copy(self) -> bool:
        """True if this delivery repeats another one."""
        return self.kind in COPIES

    @property
    def has_succeeded(self) -> bool:
        """True if the response ends the task."""
        return self.error is None and self.status is not None and 200 <= self.status <= 299


@dataclass(frozen=True, slots=True)
class Response:
    """The end of an attempt: the handler's response, or the lack of one.

    Attributes:
        status: The HTTP status, None when no response came.
        error: The reason why none came, for example DEADLINE_EXCEEDED.
    """

    status: int | None = None
    error: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class DueDelivery:
    """A delivery that could start now, for a driver that picks its own order."""

    task_name: str
    kind: str
    due_at: float
