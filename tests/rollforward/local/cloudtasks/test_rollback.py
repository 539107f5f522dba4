"""A rollback with 5,000 tasks of the newer version on one queue, and a queue with poison tasks.

The answers are those of the app (tests/rollforward/flask/endpoints), the clock is virtual, and the
rates are the emulator's. Counts of what was done by some minute are compared within one play.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from rollforward.local.cloudtasks.engine.engine import Engine
from rollforward.local.cloudtasks.protocol import messages
from rollforward.tasks.attempts import FAILED
from rollforward.tasks.waits import version_wait_s
from tests.infra.runs import sampling
from tests.rollforward.local.cloudtasks.engines import PLACE, QUEUE, make_engine

OF_ANOTHER_VERSION = 5_000
KNOWN_PER_S = 20
PLAYED_S = 300
STEP_S = 0.5
STEPS_PER_S = int(1 / STEP_S)

# What becomes of a task: the answer, and the pause after which it is created again.
Answer = Callable[[int], tuple[int, float | None]]


@dataclass
class Play:
    """A queue in virtual time: known tasks at a steady rate, and others beside them."""

    answer: Answer
    app_engine: bool = False
    engine: Engine = field(default_factory=make_engine)
    done: int = 0
    offered: int = 0
    later: list[tuple[float, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        limits = {"max_dispatches_per_second": 500, "max_concurrent_dispatches": 1_000}
        retries = messages.Queue(name=QUEUE, rate_limits=limits)
        retries.retry_config.min_backoff.FromMilliseconds(200)
        retries.retry_config.max_backoff.FromSeconds(5)
        retries.retry_config.max_attempts = -1
        self.engine.create_queue(PLACE.parent, retries)
        self.ids = itertools.count()

    def add(self, path: str) -> None:
        task = messages.Task(name=f"{QUEUE}/tasks/t{next(self.ids)}")
        if self.app_engine:
            task.app_engine_http_request.relative_uri = path
        else:
            task.http_request.url = f"http://handler.invalid{path}"
        self.engine.tasks.create(QUEUE, task)

    def run(self, seconds: float) -> None:
        for step in range(int(seconds * STEPS_PER_S)):
            if step % STEPS_PER_S == 0:
                for _ in range(KNOWN_PER_S):
                    self.add("/known")
                    self.offered += 1
            while self.later and self.later[0][0] <= self.engine.clock.now():
                self.add(f"/other/{heapq.heappop(self.later)[2]}")
            for attempt in self.engine.begin_ready(limit=1_000):
                self.end(attempt)
            self.engine.advance(STEP_S)

    def end(self, attempt: Any) -> None:
        path = attempt.url.rpartition("/")[2]
        if path == "known":
            self.done += 1
            self.engine.end_attempt(attempt.id, status=200)
            return
        waits = int(path)
        status, again_s = self.answer(waits)
        self.engine.end_attempt(attempt.id, status=status)
        if again_s is not None:
            due = self.engine.clock.now() + again_s
            heapq.heappush(self.later, (due, next(self.ids), waits + 1))


def share_done(answer: Answer, others: int, *, app_engine: bool = False) -> float:
    """Return the share of the known tasks that were done in five minutes."""
    play = Play(answer, app_engine)
    with contextlib.closing(play.engine):
        for _ in range(others):
            play.add("/other/0")
        play.run(PLAYED_S)
    assert play.offered == PLAYED_S * KNOWN_PER_S
    return play.done / play.offered


def of_another_version(waits: int) -> tuple[int, float | None]:
    """Answer as the app does to a task that this version does not know."""
    return 204, version_wait_s(waits)


def poison(waits: int) -> tuple[int, float | None]:
    """Answer as the app does to a task whose work raises: the queue retries it."""
    return FAILED, None


@sampling.long
def test_known_tasks_keep_their_rate_after_a_rollback() -> None:
    """5,000 tasks of the newer version wait beside them for an hour; no target brakes for 204."""
    assert share_done(of_another_version, OF_ANOTHER_VERSION) >= 0.9


@pytest.mark.parametrize("app_engine", [False, True])
def test_known_tasks_keep_their_rate_beside_poison(app_engine: bool) -> None:
    """Fifty tasks fail whenever they are tried, every five seconds at the latest."""
    assert share_done(poison, 50, app_engine=app_engine) >= 0.9


@pytest.mark.parametrize(
    ("status", "app_engine"), [(429, False), (500, False), (503, False), (503, True)]
)
def test_answers_that_brake_would_have_stopped_them(status: int, app_engine: bool) -> None:
    """The same play with the answers of before: most of the known tasks are not done."""
    assert share_done(lambda waits: (status, None), 500, app_engine=app_engine) < 0.5
