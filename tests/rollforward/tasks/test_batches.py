"""A batch of tasks that does not end well: no confirmation, refusals, a queue that is away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from google.api_core import exceptions as rpc_errors
from google.cloud import tasks_v2
from google.rpc import code_pb2, status_pb2

from rollforward.datastore.transactions import TRANSIENT
from rollforward.runtime.messages import Message
from rollforward.tasks.cloud_tasks import CloudTaskQueue, UrlTarget
from rollforward.tasks.errors import NotAttemptedError, NotConfirmedError, Unavailable
from rollforward.testing.services import ACCOUNT, BASE_URL, LOCATION, PROJECT
from tests.rollforward.tasks.reminders import message

pytestmark = pytest.mark.fast

State = tasks_v2.BatchCreateTasksMetadata.State

SEVERAL = [message("default", str(i)) for i in range(5)]


@dataclass
class Operation:
    """A batch's operation as the client sees it when it looked for the last time."""

    error: Exception | None
    state: Any = None  # None: no metadata at all.
    failed: dict[int, int] = field(default_factory=dict)  # Codes by index.

    def result(self, timeout: float) -> Any:
        if self.error is not None:
            raise self.error
        return tasks_v2.BatchCreateTasksResponse()

    @property
    def metadata(self) -> Any:
        if self.state is None:
            return None
        failed = {i: status_pb2.Status(code=code) for i, code in self.failed.items()}
        return tasks_v2.BatchCreateTasksMetadata(state=self.state, failed_requests=failed)


@dataclass
class Service:
    """Cloud Tasks whose batches end as the test says; notes what it was asked for."""

    batch: Callable[[str], Any]  # Given the queue: an operation, or an error to raise.
    alone: Callable[[str], Exception | None] = lambda name: None
    batches: list[tuple[str, int]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def batch_create_tasks(self, request: Any, timeout: float) -> Any:
        queue = request.parent.rpartition("/")[2]
        self.batches.append((queue, len(request.requests)))
        outcome = self.batch(queue)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def create_task(self, request: Any, timeout: float) -> Any:
        self.names.append(request.task.name.rpartition("/")[2])
        if error := self.alone(self.names[-1]):
            raise error

    @property
    def _queue(self) -> CloudTaskQueue:
        return CloudTaskQueue(self, PROJECT, LOCATION, UrlTarget(BASE_URL, ACCOUNT, BASE_URL))

    def create_all(self, messages: list[Message]) -> list[bool | Exception]:
        return self._queue.create_all(messages)

    def create_many(self, messages: list[Message]) -> list[bool]:
        return self._queue.create_many(messages)


EXISTS = {0: code_pb2.ALREADY_EXISTS}

CUT_SHORT = {
    "still running": Operation(TimeoutError("30 s"), State.RUNNING, EXISTS),
    "failed": Operation(rpc_errors.InternalServerError("gave up"), State.FAILED, EXISTS),
    "cancelled": Operation(rpc_errors.Cancelled("cancelled"), State.CANCELLED, EXISTS),
    "said nothing": Operation(rpc_errors.InternalServerError("?"), State.STATE_UNSPECIFIED, EXISTS),
}


@pytest.mark.parametrize("operation", CUT_SHORT.values(), ids=CUT_SHORT)
def test_a_batch_that_is_cut_short_creates_what_it_confirms_and_no_more(
    operation: Operation,
) -> None:
    """B1, B4: not to be among the failed ones means nothing before the batch has ended."""
    answers = Service(lambda queue: operation).create_all(SEVERAL)

    assert answers == [False, *[operation.error] * 4]


NO_METADATA = {
    "timeout": Operation(TimeoutError("30 s")),
    "error": Operation(rpc_errors.ServiceUnavailable("?")),
    "retried": Operation(rpc_errors.RetryError("gave up", cause=ValueError())),
}


@pytest.mark.parametrize("operation", NO_METADATA.values(), ids=NO_METADATA)
def test_an_operation_without_metadata_is_no_answer(operation: Operation) -> None:
    """B4: whoever asked is told the error for each member; nothing raises."""
    assert Service(lambda queue: operation).create_all(SEVERAL) == [operation.error] * 5


def test_an_end_that_tells_nothing_of_its_members_is_no_answer() -> None:
    """B4: an operation that is done but has no metadata confirms none of them."""
    answers = Service(lambda queue: Operation(None)).create_all(SEVERAL)

    assert [type(answer) for answer in answers] == [NotConfirmedError] * 5


@pytest.mark.parametrize(
    "operation",
    [Operation(TimeoutError("30 s")), Operation(None), *CUT_SHORT.values()],
    ids=["timeout", "nothing", *CUT_SHORT],
)
def test_tasks_that_may_not_be_created_are_a_service_that_is_unavailable(
    operation: Operation,
) -> None:
    """H3: whoever creates many is to try again, however often; nothing of it was its fault."""
    with pytest.raises((Unavailable, *TRANSIENT)):
        Service(lambda queue: operation).create_many(SEVERAL)


@pytest.mark.parametrize("state", [State.SUCCEEDED, State.PARTIALLY_SUCCEEDED])
@pytest.mark.parametrize("error", [None, rpc_errors.ServiceUnavailable("the last look")])
def test_a_batch_that_has_ended_created_what_did_not_fail(
    state: Any, error: Exception | None
) -> None:
    """Its state says that it has ended, also when the look that should tell the result failed."""
    operation = Operation(error, state, EXISTS)

    assert Service(lambda queue: operation).create_all(SEVERAL) == [False, True, True, True, True]


@pytest.mark.parametrize(
    "error",
    [
        rpc_errors.MethodNotImplemented("no batches here"),
        rpc_errors.InvalidArgument("one is bad"),
        rpc_errors.NotFound("no such queue"),
        rpc_errors.FailedPrecondition("disabled"),
        rpc_errors.OutOfRange("late"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_batch_that_is_refused_goes_out_one_by_one(error: Exception) -> None:
    """B7: where batches are refused, or unknown, each task gets its own answer."""
    service = Service(
        lambda queue: error,
        alone=lambda name: rpc_errors.AlreadyExists("x") if name == SEVERAL[1].name else None,
    )

    assert service.create_all(SEVERAL) == [True, False, True, True, True]
    assert service.names == [message.name for message in SEVERAL]


def test_a_member_that_the_service_could_not_create_is_not_asked_for_again() -> None:
    """A member that failed for the service's own trouble waits for the next relay."""
    failed = {0: code_pb2.UNAVAILABLE, 1: code_pb2.INVALID_ARGUMENT, 2: code_pb2.ALREADY_EXISTS}
    service = Service(lambda queue: Operation(None, State.PARTIALLY_SUCCEEDED, failed))

    answers = service.create_all(SEVERAL)

    assert isinstance(answers[0], rpc_errors.ServiceUnavailable)
    assert answers[1:] == [True, False, True, True]
    assert service.names == [SEVERAL[1].name]


def test_one_task_that_fails_does_not_hold_up_the_next_hundred() -> None:
    """B7: a part counts as unanswered only when each of its members met the service's trouble."""
    failed = {0: code_pb2.UNAVAILABLE}
    service = Service(lambda queue: Operation(None, State.PARTIALLY_SUCCEEDED, failed))

    answers = service.create_all([message("default", str(i)) for i in range(101)])

    assert [i for i, answer in enumerate(answers) if answer is not True] == [0]


def test_large_tasks_share_as_few_calls_as_their_size_allows() -> None:
    """A call takes 2 MB, and each begins to count anew."""
    service = Service(lambda queue: Operation(None, State.SUCCEEDED))
    large = [replace(message("default", str(i)), body=b"x" * 90_000) for i in range(60)]

    assert service.create_many(large) == [True] * 60
    assert service.batches == [("default", 22), ("default", 22), ("default", 16)]


UNANSWERED = [
    TimeoutError("30 s"),
    rpc_errors.Aborted("contention"),
    rpc_errors.Cancelled("?"),
    rpc_errors.DataLoss("?"),
    rpc_errors.DeadlineExceeded("late"),
    rpc_errors.InternalServerError("sick"),
    rpc_errors.ResourceExhausted("quota"),
    rpc_errors.RetryError("gave up", cause=ValueError()),
    rpc_errors.ServiceUnavailable("away"),
    rpc_errors.Unknown("?"),
]


@pytest.mark.parametrize("error", UNANSWERED, ids=lambda error: type(error).__name__)
def test_a_sick_queue_does_not_starve_the_others(error: Exception) -> None:
    """B7: its further parts are not tried, those of another queue are."""
    service = Service(
        lambda queue: error if queue == "default" else Operation(None, State.SUCCEEDED)
    )
    queues = ["default"] * 101 + ["imports"] * 2 + ["default"]

    answers = service.create_all([message(q, str(i)) for i, q in enumerate(queues)])

    assert service.batches == [("default", 100), ("imports", 2)]
    assert answers[:100] == [error] * 100
    assert answers[101:103] == [True, True]
    assert [type(answers[i]) for i in (100, 103)] == [NotAttemptedError] * 2


def test_a_service_that_is_away_is_asked_for_two_queues_and_no_more() -> None:
    """When a second queue does not answer either it is the service, and its callers wait."""
    service = Service(lambda queue: rpc_errors.ServiceUnavailable("away"))
    queues = ["default", "default", "imports", "imports", "fan-out", "fan-out"]

    answers = service.create_all([message(q, str(i)) for i, q in enumerate(queues)])

    assert service.batches == [("default", 2), ("imports", 2)]
    assert [type(answer) for answer in answers[4:]] == [NotAttemptedError] * 2


def test_two_sick_queues_do_not_starve_a_third() -> None:
    """B7: tasks that wait together with those of two sick queues go out by the next call."""
    service = Service(
        lambda queue: (
            Operation(None, State.SUCCEEDED)
            if queue == "fan-out"
            else rpc_errors.ResourceExhausted("quota")
        )
    )
    queue = CloudTaskQueue(service, PROJECT, LOCATION, UrlTarget(BASE_URL, ACCOUNT, BASE_URL))  # type: ignore[arg-type]
    queues = ["default", "default", "imports", "imports", "fan-out", "fan-out"]
    together = [message(q, str(i)) for i, q in enumerate(queues)]

    first = queue.create_all(together)
    second = queue.create_all(together)

    assert [type(answer) for answer in first[4:]] == [NotAttemptedError] * 2
    assert second[4:] == [True, True]
