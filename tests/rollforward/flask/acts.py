"""A task that does what the test says, the ways in which it ends, and what is noted of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from google.api_core import exceptions as rpc_errors

from rollforward.fork_join.queue import OutcomeUnknownError
from rollforward.runtime import Clients
from rollforward.tasks.attempt_entities import TaskAttempts
from rollforward.tasks.attempts import TaskDelivery
from rollforward.tasks.errors import OtherVersionError, Reject, Retry, Unavailable
from tests.infra.world import World

PATH = "/tasks/tests/act"


@dataclass(frozen=True)
class Act:
    """Arguments of every type there is in JSON."""

    word: str = "done"
    number: int = 0
    share: float = 0.0


class Work:
    """What the task under test does: whatever the test says, and it counts."""

    def __init__(self) -> None:
        self.done: list[Act] = []
        self.raises: BaseException | None = None

    def __call__(self, clients: Clients, args: Act) -> None:
        self.done.append(args)
        if self.raises is not None:
            raise self.raises


one_emulator = pytest.mark.parametrize("services", ["datastore"], indirect=True)

OUTCOMES = {
    "rejected": (Reject("no use"), 204, 1),
    "lost its race": (Retry("leased"), 409, 0),
    "of another version": (OtherVersionError("a field"), 200, 0),
    "aborted": (rpc_errors.Aborted("contention"), 409, 0),
    "service unavailable": (Unavailable("relay"), 503, 0),
    "outcome unknown": (OutcomeUnknownError("an insert"), 503, 0),
    "cancelled": (rpc_errors.Cancelled("datastore"), 503, 0),
    "data loss": (rpc_errors.DataLoss("datastore"), 503, 0),
    "unavailable": (rpc_errors.ServiceUnavailable("datastore"), 503, 0),
    "internal": (rpc_errors.InternalServerError("datastore"), 503, 0),
    "deadline": (rpc_errors.DeadlineExceeded("datastore"), 503, 0),
    "exhausted": (rpc_errors.ResourceExhausted("quota"), 503, 0),
    "unknown": (rpc_errors.Unknown("?"), 503, 0),
    "retried": (rpc_errors.RetryError("gave up", cause=ValueError()), 503, 0),
    "refused by a service": (rpc_errors.InvalidArgument("key"), 422, 0),
    "denied": (rpc_errors.PermissionDenied("key"), 422, 0),
    "a bug": (KeyError("bug"), 422, 0),
}

NOT_ITS_FAULT = {
    name: error for name, (error, status, _) in OUTCOMES.items() if status in (200, 409, 503)
}


def rows(world: World) -> list[TaskAttempts]:
    with world.context():
        return TaskAttempts.query().fetch()  # type: ignore[no-any-return]


def delivery(number: int, last_answer: str = "", name: str = "t1") -> TaskDelivery:
    return TaskDelivery(PATH, "default", name, b"{}", number, last_answer)


def attempt(world: World, front_end: int | None = None) -> int | str | None:
    """Deliver the one task when it is due; return the answer, or "gone".

    Args:
        front_end: What answers for a dead worker; None: the connection is closed.
    """
    wake_at = world.engine.wake_at()
    if wake_at is not None:
        world.clock.sleep(max(0.0, wake_at - world.clock.time_s) + 0.01)
    due = world.engine.due()
    if not due:
        return "gone"
    begun = world.engine.begin_attempt(due[0].task_name)
    status = world.answer(begun)
    answered = front_end if status is None else status
    error = "connection closed" if answered is None else None
    world.engine.end_attempt(begun.id, status=answered, error=error)
    return status


def away(world: World) -> None:
    """Let no remote service answer."""

    def broken(
        name: str, effect: Any, error: Callable[[grpc.StatusCode], Exception], *described: Any
    ) -> Any:
        raise error(grpc.StatusCode.UNAVAILABLE)

    world.plan.around = broken  # type: ignore[method-assign]
