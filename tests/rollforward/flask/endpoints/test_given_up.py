"""Tasks that somebody else cares for when they are given up: no dead task is kept of them."""

from __future__ import annotations

from typing import Any

import pytest
from flask import Flask

from rollforward.tasks import Reject, Retry, Unavailable
from rollforward.tasks.attempt_entities import TaskAttempts
from rollforward.tasks.declaration import Task
from tests.handlers.conftest import Queue, app_with
from tests.infra.world import World
from tests.rollforward.flask.acts import PATH, Act, Work

pytestmark = pytest.mark.parametrize("services", ["datastore"], indirect=True)


class Carer:
    """Is told of what was given up."""

    def __init__(self) -> None:
        self.told: list[tuple[Act, str]] = []
        self.raises: Exception | None = None

    def __call__(self, clients: Any, args: Act, reason: str) -> None:
        self.told.append((args, reason))
        if self.raises is not None:
            raise self.raises


@pytest.fixture
def carer() -> Carer:
    return Carer()


@pytest.fixture
def app(world: World, work: Work, carer: Carer) -> Flask:
    return app_with(world, Task(PATH, "default", Act, work, max_attempts=2, on_give_up=carer))


def test_what_rejects_itself_is_told_of_at_once(queue: Queue, work: Work, carer: Carer) -> None:
    """H3: with its arguments and the reason."""
    work.raises = Reject("no use")

    assert queue.deliver(PATH, {"word": "x"}).status_code == 204
    assert carer.told == [(Act("x"), "Reject: no use")]
    assert queue.dead_tasks() == []


def test_what_failed_too_often_is_told_of(queue: Queue, work: Work, carer: Carer) -> None:
    """H3: after as many attempts as it has, and the last line of the reason is the error."""
    work.raises = KeyError("bug")

    statuses = [queue.deliver(PATH, retries=number).status_code for number in range(2)]

    assert statuses == [422, 200]
    [(_, reason)] = carer.told
    assert reason.strip().splitlines()[-1] == "KeyError: 'bug'"
    assert queue.dead_tasks() == []
    with queue.world.context():
        assert TaskAttempts.query().fetch() == []


@pytest.mark.parametrize(
    ("error", "status"),
    [(Unavailable("no answer"), 503), (Retry("a race"), 409), (KeyError("bug"), 422)],
)
def test_who_cannot_be_told_now_is_told_later(
    queue: Queue, work: Work, carer: Carer, error: Exception, status: int
) -> None:
    """H3: nothing is given up before it is known."""
    work.raises, carer.raises = Reject("no use"), error
    assert queue.deliver(PATH).status_code == status
    carer.raises = None
    assert queue.deliver(PATH, retries=1).status_code == 204

    assert len(carer.told) == 2
