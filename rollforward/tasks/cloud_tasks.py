"""Cloud Tasks: where its tasks are delivered, and the queue that creates them, 100 per call.

The functions that speak with the service import its library: see `open_cloud_tasks`.
"""

from __future__ import annotations

import datetime
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from google.api_core import exceptions as rpc_errors
from google.protobuf import field_mask_pb2, timestamp_pb2
from google.rpc import code_pb2

from rollforward.datastore.transactions import TRANSIENT
from rollforward.runtime.messages import BORN_HEADER, Message
from rollforward.tasks.errors import (
    PERMANENT_ERRORS,
    NotAttemptedError,
    NotConfirmedError,
    Unavailable,
    UnknownQueueError,
)

if TYPE_CHECKING:
    from google.cloud import tasks_v2

MAX_PER_CALL = 100
MAX_BYTES_PER_CALL = 2_000_000
CALL_TIMEOUT_S = 10.0
PING_TIMEOUT_S = 2.0
BATCH_TIMEOUT_S = 30.0

_ERRORS = (rpc_errors.GoogleAPICallError, rpc_errors.RetryError, TimeoutError)
# No errors of gRPC, and yet the service's trouble. A TimeoutError of other code is its own fault.
_NO_ANSWER = (TimeoutError, NotConfirmedError, NotAttemptedError)
# The service's trouble, and not the message's.
UNANSWERED = (*TRANSIENT, TimeoutError, NotConfirmedError)
# Each member of the batch may still be taken by itself.
NOT_AS_A_BATCH = (*PERMANENT_ERRORS, rpc_errors.MethodNotImplemented)


QueueVerb = Literal["pause", "resume", "purge", "rate"]


@dataclass(frozen=True)
class AppEngineTarget:
    """Deliver to this App Engine app; its front end authenticates the queue."""

    service: str | None = None


@dataclass(frozen=True)
class UrlTarget:
    """Deliver to any URL, with an OIDC token that authenticates the queue."""

    base_url: str
    service_account: str
    audience: str


@dataclass(frozen=True)
class QueueState:
    """A queue: running, paused or disabled, and its limits; `max_attempts` -1: none."""

    name: str
    state: str
    max_per_s: float
    max_concurrent: int
    max_attempts: int


@dataclass(frozen=True)
class WaitingTask:
    """A task that the service keeps; `last_error` is the status of its last attempt."""

    name: str
    path: str
    due: datetime.datetime
    created: datetime.datetime
    deliveries: int
    last_error: str


@dataclass(frozen=True)
class WaitingPage:
    """Tasks of a queue, and the cursor of the next page; "": there is none."""

    tasks: Sequence[WaitingTask]
    next_cursor: str


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
        self._first = 0  # The queue that `create_all` asks first, of those it is given.

    def create(self, message: Message) -> bool:
        """Create one task; False when its name exists already.

        Raises:
            UnknownQueueError: the service does not have the queue.
            google.api_core.exceptions.GoogleAPICallError: the service's answer; the task may exist.
        """
        request = self._request(message)
        try:
            self._client.create_task(request, timeout=CALL_TIMEOUT_S)
        except rpc_errors.AlreadyExists:
            return False
        except rpc_errors.NotFound as error:
            raise UnknownQueueError(
                f"{message.queue!r} is not in queue.yaml, or that is not deployed: {message.path} "
                "goes to this queue. Add it there, or name one that is there"
            ) from error
        return True

    def create_many(self, messages: Sequence[Message]) -> list[bool]:
        """Create many, 100 a call; return for each message what `create` would.

        Raises:
            Unavailable: a call had no answer; some tasks may exist.
            google.api_core.exceptions.GoogleAPICallError: the answer for one of them.
        """
        created = []
        for result in self.create_all(messages):
            if isinstance(result, _NO_ANSWER):
                raise Unavailable(f"Cloud Tasks: {type(result).__name__}: {result}") from result
            if isinstance(result, Exception):
                raise result
            created.append(result)
        return created

    def create_all(self, messages: Sequence[Message]) -> list[bool | Exception]:
        """Create many; one that is refused takes no other with it.

        A circuit breaker per queue: when none of a call's messages is answered, the queue's
        further ones are not sent. When a second queue does not answer either it is the service,
        and nothing more is sent. The next call begins with another queue, as it may be these two.
        """
        results: list[bool | Exception] = [NotAttemptedError()] * len(messages)
        broken: set[str] = set()
        for part in _parts(messages, self._first):
            queue = messages[part[0]].queue
            if queue in broken:
                continue
            if len(broken) > 1:
                self._first += 1
                break
            for i, result in zip(part, self._create_part([messages[i] for i in part]), strict=True):
                results[i] = result
            if all(isinstance(results[i], UNANSWERED) for i in part):
                broken.add(queue)
        return results

    def queues(self) -> list[str]:
        """Return the names of the queues that exist.

        Raises:
            google.api_core.exceptions.GoogleAPICallError: they could not be listed.
        """
        parent = f"projects/{self._project}/locations/{self._location}"
        listed = self._client.list_queues(
            request={"parent": parent}, timeout=PING_TIMEOUT_S, retry=None
        )
        return [queue.name.rpartition("/")[2] for queue in listed]

    def queue_states(self) -> list[QueueState]:
        """Return the queues with their states and limits.

        Raises:
            google.api_core.exceptions.GoogleAPICallError: they could not be listed.
        """
        parent = f"projects/{self._project}/locations/{self._location}"
        listed = self._client.list_queues(
            request={"parent": parent}, timeout=CALL_TIMEOUT_S, retry=None
        )
        return [_queue_state(queue) for queue in listed]

    def control_queue(self, queue: str, verb: QueueVerb, *, max_per_s: float = 0) -> QueueState:
        """Pause, resume or purge a queue, or set its rate; return its new state.

        Raises:
            google.api_core.exceptions.NotFound: there is no such queue.
            google.api_core.exceptions.GoogleAPICallError: it is unknown whether it was changed,
                or the account has no right to: what an app needs otherwise does not include it.
        """
        from google.cloud import tasks_v2

        path, options = self._queue_path(queue), {"timeout": CALL_TIMEOUT_S, "retry": None}
        if verb == "rate":
            # An update creates a missing queue, with default retries.
            self._client.get_queue(request={"name": path}, **options)
            limits = tasks_v2.RateLimits(max_dispatches_per_second=max_per_s)
            mask = field_mask_pb2.FieldMask(paths=["rate_limits.max_dispatches_per_second"])
            changed = tasks_v2.Queue(name=path, rate_limits=limits)
            request = tasks_v2.UpdateQueueRequest(queue=changed, update_mask=mask)
            return _queue_state(self._client.update_queue(request=request, **options))
        control = {
            "pause": self._client.pause_queue,
            "resume": self._client.resume_queue,
            "purge": self._client.purge_queue,
        }[verb]
        return _queue_state(control(request={"name": path}, **options))

    def waiting(self, queue: str, *, limit: int, cursor: str = "") -> WaitingPage:
        """Return tasks of a queue, by name, without their bodies.

        Raises:
            google.api_core.exceptions.GoogleAPICallError: they could not be listed. The right
                to list tasks is not among those that the app needs otherwise.
        """
        request = {
            "parent": self._queue_path(queue),
            "page_size": limit,
            "page_token": cursor,
        }
        pager = self._client.list_tasks(request=request, timeout=CALL_TIMEOUT_S, retry=None)
        page = next(iter(pager.pages))
        return WaitingPage([_waiting_task(listed) for listed in page.tasks], page.next_page_token)

    def ping(self) -> bool:
        """Return whether the service answers."""
        parent = f"projects/{self._project}/locations/{self._location}"
        try:
            self._client.list_queues(
                request={"parent": parent, "page_size": 1}, timeout=PING_TIMEOUT_S, retry=None
            )
        except rpc_errors.ResourceExhausted:
            return True  # Lists have a quota of their own, 600 a minute: tasks can be created.
        except rpc_errors.GoogleAPICallError:
            return False
        return True

    def _create_part(self, messages: Sequence[Message]) -> list[bool | Exception]:
        """Create up to 100 tasks of one queue by one call.

        Some may fail and some not. A refused member is sent once more on its own, so that
        the service names the reason.
        """
        from google.cloud import tasks_v2

        if len(messages) == 1:
            return [self._create_single(messages[0])]
        try:
            requests = [self._request(message) for message in messages]
        except rpc_errors.InvalidArgument:  # Each by itself: one refuses no other.
            return [self._create_single(message) for message in messages]
        request = tasks_v2.BatchCreateTasksRequest(
            parent=self._queue_path(messages[0].queue), requests=requests
        )
        try:
            batch = _ended(self._client.batch_create_tasks(request, timeout=BATCH_TIMEOUT_S))
        except _ERRORS as error:
            batch = _Batch({}, error)
        return [
            self._create_single(message) if isinstance(result, NOT_AS_A_BATCH) else result
            for message, result in zip(messages, batch.results(len(messages)), strict=True)
        ]

    def _create_single(self, message: Message) -> bool | Exception:
        try:
            return self.create(message)
        except _ERRORS as error:
            return error

    def _request(self, message: Message) -> tasks_v2.CreateTaskRequest:
        """Return a message as the service takes it.

        Raises:
            google.api_core.exceptions.InvalidArgument: it has a value that no request can hold.
        """
        try:
            return self._as_request(message)
        except (OverflowError, TypeError, ValueError) as error:
            raise rpc_errors.InvalidArgument(f"{message.path}: {error}") from error  # type: ignore[no-untyped-call]

    def _as_request(self, message: Message) -> tasks_v2.CreateTaskRequest:
        from google.cloud import tasks_v2

        cloud_task = tasks_v2.Task()
        headers = {"Content-Type": "application/json", **message.headers}
        if message.name is not None:
            headers.setdefault(BORN_HEADER, secrets.token_hex(4))
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
        if message.deadline_s is not None:
            cloud_task.dispatch_deadline = datetime.timedelta(seconds=message.deadline_s)
        if message.max_attempts is not None:
            cloud_task.retry_config = tasks_v2.RetryConfig(max_attempts=message.max_attempts)
        return tasks_v2.CreateTaskRequest(parent=self._queue_path(message.queue), task=cloud_task)

    def _queue_path(self, queue: str) -> str:
        return f"projects/{self._project}/locations/{self._location}/queues/{queue}"


def _queue_state(queue: tasks_v2.Queue) -> QueueState:
    return QueueState(
        name=queue.name.rpartition("/")[2],
        state=queue.state.name.lower(),
        max_per_s=queue.rate_limits.max_dispatches_per_second,
        max_concurrent=queue.rate_limits.max_concurrent_dispatches,
        max_attempts=queue.retry_config.max_attempts,
    )


def _waiting_task(listed: tasks_v2.Task) -> WaitingTask:
    url = urlsplit(listed.http_request.url or listed.app_engine_http_request.relative_uri)
    status = listed.last_attempt.response_status
    return WaitingTask(
        name=listed.name.rpartition("/")[2],
        path=url.path,
        due=_utc(listed.schedule_time),
        created=_utc(listed.create_time),
        deliveries=listed.dispatch_count,
        last_error=status.message if listed.dispatch_count else "",
    )


def _utc(at: Any) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(at.timestamp(), datetime.UTC)


@dataclass(frozen=True)
class _Batch:
    """The result of a batch: the codes of the members that failed, by index, and of the rest."""

    failed: Mapping[int, Any]
    rest: Exception | None  # Why it is unknown whether the others were created; None: they were.

    def results(self, count: int) -> list[bool | Exception]:
        return [self._result(index) for index in range(count)]

    def _result(self, index: int) -> bool | Exception:
        if index not in self.failed:
            return self.rest or True
        status = self.failed[index]
        if status.code == code_pb2.ALREADY_EXISTS:
            return False
        return rpc_errors.from_grpc_status(status.code, status.message)  # type: ignore[no-any-return, no-untyped-call]


def _ended(operation: Any) -> _Batch:
    """Wait for a batch's operation, and return what it confirms.

    A member without a failure was created only if the batch has ended, since it may have been cut
    short.
    """
    from google.cloud import tasks_v2

    state = tasks_v2.BatchCreateTasksMetadata.State
    error: Exception | None = None
    try:
        operation.result(timeout=BATCH_TIMEOUT_S)
    except _ERRORS as raised:
        error = raised
    metadata = operation.metadata
    if metadata is None:
        return _Batch({}, error or NotConfirmedError("the operation says nothing of its members"))
    has_ended = metadata.state in (state.SUCCEEDED, state.PARTIALLY_SUCCEEDED)
    return _Batch(metadata.failed_requests, None if has_ended else error)


def _parts(messages: Sequence[Message], first: int) -> Iterator[list[int]]:
    """Cut messages into calls: of one queue each, at most 100 and not too large; by index."""
    queues = list(dict.fromkeys(message.queue for message in messages))
    begin = first % len(queues) if queues else 0
    for queue in queues[begin:] + queues[:begin]:
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
