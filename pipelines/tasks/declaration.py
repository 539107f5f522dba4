"""Declared tasks, the ways in which they end, and the queue that takes them."""

from __future__ import annotations

import datetime
import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar, get_type_hints

from google.api_core import exceptions as rpc_errors
from google.cloud import tasks_v2
from google.protobuf import timestamp_pb2
from google.rpc import code_pb2
from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from models.transactions import TRANSIENT
from pipelines.runtime.clients import Clients
from pipelines.runtime.messages import Message

log = logging.getLogger(__name__)

A = TypeVar("A")

MAX_PER_CALL = 100
MAX_BYTES_PER_CALL = 2_000_000
MAX_DELAY_S = 30 * 24 * 3600
# The service's documents say 1 MB in one place and 100 KB for App Engine targets in another. It was
# seen to take 1,048,569 bytes of either, and so does the emulator: what is promised is the bound.
MAX_BODY_BYTES = 100_000
MAX_NAME_PARTS_BYTES = 2_000
CALL_TIMEOUT_S = 10.0
BATCH_TIMEOUT_S = 30.0


class Error(Exception):
    """Base class for errors of this module."""


class BadArgumentsError(Error, ValueError):
    """The arguments do not fit the task's declaration."""


class TooLargeError(Error, ValueError):
    """The task's body is larger than Cloud Tasks would take."""


class NotTriedError(Error):
    """The service did not answer for the messages before this one."""


class NotConfirmedError(Error):
    """The service does not say whether this task was created."""


_ERRORS = (rpc_errors.GoogleAPICallError, rpc_errors.RetryError, TimeoutError)
# The service's trouble, and not the message's.
UNANSWERED = (*TRANSIENT, TimeoutError, NotConfirmedError)

# This task will be refused again, whatever the service's health.
REFUSALS = (
    rpc_errors.InvalidArgument,
    rpc_errors.NotFound,
    rpc_errors.FailedPrecondition,
    rpc_errors.OutOfRange,
)
# Each for itself may still be taken.
NOT_AS_A_BATCH = (*REFUSALS, rpc_errors.MethodNotImplemented)
_State = tasks_v2.BatchCreateTasksMetadata.State
_ENDED = (_State.SUCCEEDED, _State.PARTIALLY_SUCCEEDED)


class TaskError(Exception):
    """A way for a task to end other than by returning."""


class Reject(TaskError):
    """This task can never work: keep it as a dead task and stop retrying."""


class Retry(TaskError):
    """This task lost its race and should come again."""


class Unavailable(TaskError):
    """A service that this task needs is out of order: slow down."""


@dataclass(frozen=True)
class Task(Generic[A]):
    """A declared task: where it is delivered, through which queue, and what it does.

    `max_attempts` deliveries may fail by the task's own fault (an error that nobody foresaw, a
    worker that died) before it is parked as a dead task. The queue itself never gives up: a task
    that it dropped would leave no trace.
    """

    path: str
    queue: str
    args: type[A]
    work: Callable[[Clients, A], None]
    max_attempts: int = 50

    @cached_property
    def _adapter(self) -> TypeAdapter[A]:
        return TypeAdapter(self.args)

    def enqueue(
        self,
        clients: Clients,
        args: A,
        *,
        name: Sequence[str | int] | None = None,
        delay_s: float = 0,
        at: datetime.datetime | None = None,
        max_attempts: int | None = None,
    ) -> bool:
        """Create one task.

        Args:
            name: What makes this task unique, in parts; a second one is not created.
            delay_s: Seconds from now, up to 30 days; or give `at`, an aware time.
            max_attempts: Lets Cloud Tasks drop the task after so many deliveries.

        Returns:
            True if this call created it, False if the name exists already.

        Raises:
            BadArgumentsError, TooLargeError: nothing was enqueued.
        """
        message = self.message(
            args, name=name, at=self.due(clients, delay_s, at), max_attempts=max_attempts
        )
        return clients.tasks.create(message)

    def enqueue_many(
        self,
        clients: Clients,
        many: Sequence[A],
        *,
        names: Sequence[Sequence[str | int]] | None = None,
        delay_s: float = 0,
    ) -> list[bool]:
        """Create a task for each of many arguments, 100 a call; answers as `enqueue` does."""
        due = self.due(clients, delay_s, None)
        unnamed = [None] * len(many)
        all_names: Sequence[Sequence[str | int] | None] = unnamed if names is None else names
        messages = [
            self.message(args, name=name, at=due)
            for args, name in zip(many, all_names, strict=True)
        ]
        return clients.tasks.create_many(messages)

    def message(
        self,
        args: A,
        *,
        name: Sequence[str | int] | None = None,
        at: datetime.datetime | None = None,
        max_attempts: int | None = None,
    ) -> Message:
        """Return what would be sent, checked."""
        if not isinstance(args, self.args):
            raise BadArgumentsError(f"{self.path} takes {self.args.__name__}, not {args!r:.100}")
        try:
            body = self._adapter.dump_json(args, warnings=False)
        except PydanticSerializationError as error:
            raise BadArgumentsError(f"{self.path}: {error}") from error
        self.read(body)
        task_name = hashed_name(self.path, *name) if name is not None else None
        return Message(self.path, self.queue, body, task_name, at, max_attempts)

    @staticmethod
    def due(
        clients: Clients, delay_s: float, at: datetime.datetime | None
    ) -> datetime.datetime | None:
        """Return when a task is due: None for now, or an aware time, at most 30 days ahead."""
        if at is None and delay_s <= 0:
            return None
        now = clients.clock.now()
        due = at if at is not None else now + datetime.timedelta(seconds=delay_s)
        if due.tzinfo is None:
            raise BadArgumentsError("`at` must be an aware time")
        if (due - now).total_seconds() > MAX_DELAY_S:
            raise BadArgumentsError("a task may be scheduled at most 30 days ahead")
        return due

    def read(self, body: bytes) -> A:
        """Return the arguments in a body.

        Raises:
            TooLargeError: it is longer than a task may be.
            BadArgumentsError: it is not JSON, or not of this task's type.
        """
        if len(body) > MAX_BODY_BYTES:
            raise TooLargeError(f"{self.path}: {len(body)} bytes, at most {MAX_BODY_BYTES}")
        try:
            args: A = self._adapter.validate_json(body, strict=True)
        except ValidationError as error:
            what = "; ".join(
                f"{'.'.join(map(str, e['loc'])) or 'body'}: {e['msg']}"
                for e in error.errors(include_input=False, include_url=False)
            )
            raise BadArgumentsError(f"{self.path}: {what}") from error
        return args


def task(
    path: str, *, queue: str, max_attempts: int = 50
) -> Callable[[Callable[[Clients, A], None]], Task[A]]:
    """Declare the function below as a task; its second parameter's type is its arguments."""
    if not path.startswith("/tasks/"):
        raise ValueError(f"a task's path starts with /tasks/, not {path!r}")

    def declare(work: Callable[[Clients, A], None]) -> Task[A]:
        # Only the arguments are looked up: Clients is known to type checkers alone.
        name = list(work.__annotations__)[1]
        args = get_type_hints(work, localns={"Clients": Any})[name]
        return Task(path, queue, args, work, max_attempts)

    return declare


def hashed_name(*parts: str | int) -> str:
    """Return a task id for the parts; different parts give different ids.

    >>> hashed_name("page", "run-1", 2) == hashed_name("page", "run-1", 2)
    True
    >>> hashed_name("a", "11") == hashed_name("a1", "1")
    False
    """
    exact = json.dumps(parts, ensure_ascii=True).encode()
    if len(exact) > MAX_NAME_PARTS_BYTES:
        raise TooLargeError(f"a task's name has at most {MAX_NAME_PARTS_BYTES} bytes of parts")
    return hashlib.sha256(exact).hexdigest()[:40]


@dataclass(frozen=True)
class AppEngineTarget:
    """Deliver to this App Engine app; its front end proves that the queue is the caller."""

    service: str | None = None


@dataclass(frozen=True)
class UrlTarget:
    """Deliver to any URL, with an OIDC token that proves the caller."""

    base_url: str
    service_account: str
    audience: str


class CloudTaskQueue:
    """Cloud Tasks, by the official client."""

    def __init__(
        self,
        client: tasks_v2.CloudTasksClient,
        project: str,
        location: str,
        target: AppEngineTarget | UrlTarget,
    ) -> None:
        self._client = client
        self._project = project
        self._location = location
        self._target = target

    def create(self, message: Message) -> bool:
        request = self._request(message)
        try:
            self._client.create_task(request, timeout=CALL_TIMEOUT_S)
        except rpc_errors.AlreadyExists:
            return False
        return True

    def create_many(self, messages: Sequence[Message]) -> list[bool]:
        created = []
        for answer in self.create_each(messages):
            if isinstance(answer, Exception):
                raise answer
            created.append(answer)
        return created

    def create_each(self, messages: Sequence[Message]) -> list[bool | Exception]:
        """Create many; one that is refused takes no other with it.

        A queue that does not answer is left alone. When a second one does not, it is the service,
        and the rest is not tried.
        """
        answers: list[bool | Exception] = [NotTriedError()] * len(messages)
        sick: set[str] = set()
        for part in _parts(messages):
            queue = messages[part[0]].queue
            if queue in sick or len(sick) > 1:
                continue
            for i, answer in zip(part, self._create_part([messages[i] for i in part]), strict=True):
                answers[i] = answer
            if all(isinstance(answers[i], UNANSWERED) for i in part):
                sick.add(queue)
        return answers

    def ping(self) -> bool:
        parent = f"projects/{self._project}/locations/{self._location}"
        try:
            self._client.list_queues(
                request={"parent": parent, "page_size": 1}, timeout=2, retry=None
            )
        except rpc_errors.GoogleAPICallError:
            return False
        return True

    def queues(self) -> list[str]:
        """Return the names of the queues that exist.

        Raises:
            google.api_core.exceptions.GoogleAPICallError: they could not be listed.
        """
        parent = f"projects/{self._project}/locations/{self._location}"
        found = self._client.list_queues(request={"parent": parent}, timeout=CALL_TIMEOUT_S)
        return [queue.name.rpartition("/")[2] for queue in found]

    def _create_part(self, messages: Sequence[Message]) -> list[bool | Exception]:
        """Create up to 100 tasks of one queue by one call.

        Some may fail and some not. A member that was refused goes out once more by itself, which
        tells its own error.
        """
        if len(messages) == 1:
            return [self._create_alone(messages[0])]
        requests = [self._request(message) for message in messages]
        request = tasks_v2.BatchCreateTasksRequest(
            parent=self._queue_path(messages[0].queue), requests=requests
        )
        try:
            batch = _ended(self._client.batch_create_tasks(request, timeout=BATCH_TIMEOUT_S))
        except _ERRORS as error:
            batch = _Batch({}, error)
        return [
            self._create_alone(message) if isinstance(answer, NOT_AS_A_BATCH) else answer
            for message, answer in zip(messages, batch.answers(len(messages)), strict=True)
        ]

    def _create_alone(self, message: Message) -> bool | Exception:
        try:
            return self.create(message)
        except _ERRORS as error:
            return error

    def _request(self, message: Message) -> tasks_v2.CreateTaskRequest:
        cloud_task = tasks_v2.Task()
        headers = {"Content-Type": "application/json"}
        if isinstance(self._target, UrlTarget):
            cloud_task.http_request = tasks_v2.HttpRequest(
                url=self._target.base_url + message.path,
                http_method=tasks_v2.HttpMethod.POST,
                headers=headers,
                body=message.body,
                oidc_token=tasks_v2.OidcToken(
                    service_account_email=self._target.service_account,
                    audience=self._target.audience,
                ),
            )
        else:
            cloud_task.app_engine_http_request = tasks_v2.AppEngineHttpRequest(
                relative_uri=message.path,
                http_method=tasks_v2.HttpMethod.POST,
                headers=headers,
                body=message.body,
                app_engine_routing=tasks_v2.AppEngineRouting(service=self._target.service or ""),
            )
        if message.name is not None:
            cloud_task.name = f"{self._queue_path(message.queue)}/tasks/{message.name}"
        if message.at is not None:
            cloud_task.schedule_time = _timestamp(message.at)
        if message.max_attempts is not None:
            cloud_task.retry_config = tasks_v2.RetryConfig(max_attempts=message.max_attempts)
        return tasks_v2.CreateTaskRequest(parent=self._queue_path(message.queue), task=cloud_task)

    def _queue_path(self, queue: str) -> str:
        return f"projects/{self._project}/locations/{self._location}/queues/{queue}"


@dataclass(frozen=True)
class _Batch:
    """What became of a batch: the codes of the members that failed, by index, and of the rest."""

    failed: Mapping[int, Any]
    rest: Exception | None  # Why nobody knows whether the others were created; None: they were.

    def answers(self, count: int) -> list[bool | Exception]:
        return [self._answer(index) for index in range(count)]

    def _answer(self, index: int) -> bool | Exception:
        if index not in self.failed:
            return self.rest or True
        status = self.failed[index]
        if status.code == code_pb2.ALREADY_EXISTS:
            return False
        return rpc_errors.from_grpc_status(status.code, status.message)  # type: ignore[no-any-return, no-untyped-call]


def _ended(operation: Any) -> _Batch:
    """Wait for a batch's operation, and return what it confirms.

    That a member is not among those that failed says nothing before the batch has ended: it may
    have been cut short.
    """
    error: Exception | None = None
    try:
        operation.result(timeout=BATCH_TIMEOUT_S)
    except _ERRORS as raised:
        error = raised
    metadata = operation.metadata
    if metadata is None:
        return _Batch({}, error or NotConfirmedError("the operation tells nothing of its members"))
    return _Batch(metadata.failed_requests, None if metadata.state in _ENDED else error)


def _parts(messages: Sequence[Message]) -> Iterator[list[int]]:
    """Cut messages into calls: of one queue each, at most 100 and not too large; by index."""
    for queue in dict.fromkeys(message.queue for message in messages):
        part: list[int] = []
        size = 0
        for i, message in enumerate(messages):
            if message.queue != queue:
                continue
            if len(part) == MAX_PER_CALL or (
                part and size + len(message.body) > MAX_BYTES_PER_CALL
            ):
                yield part
                part, size = [], 0
            part.append(i)
            size += len(message.body)
        yield part


def _timestamp(at: datetime.datetime) -> timestamp_pb2.Timestamp:
    stamp = timestamp_pb2.Timestamp()
    stamp.FromDatetime(at.astimezone(datetime.UTC).replace(tzinfo=None))
    return stamp
