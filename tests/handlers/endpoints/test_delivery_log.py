"""What a task logs and prints reaches the queue with the response, on a laptop."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from handlers.endpoints import delivery_log
from tests.handlers.conftest import Queue
from tests.handlers.endpoints.acts import PATH, Work

pytestmark = pytest.mark.parametrize("services", ["datastore"], indirect=True)


@contextmanager
def on_a_laptop() -> Iterator[None]:
    """Log as an app on a laptop does. Not a fixture: pytest exchanges standard output behind it."""
    root, stdout = logging.getLogger(), sys.stdout
    handlers, level = list(root.handlers), root.level
    root.setLevel(logging.INFO)
    delivery_log.install()
    delivery_log.install()
    try:
        yield
    finally:
        root.handlers[:], sys.stdout = handlers, stdout
        root.setLevel(level)


class Talkative(Work):
    """Says what it does, in every way, from this thread and from another one."""

    def __call__(self, clients: object, args: object) -> None:
        logging.getLogger("shop").warning("%s lamps", 3)
        print("a print")  # noqa: T201
        other = threading.Thread(target=lambda: logging.getLogger("other").info("elsewhere"))
        other.start()
        other.join()
        super().__call__(clients, args)  # type: ignore[arg-type]


@pytest.fixture
def work() -> Work:
    return Talkative()


def test_a_failed_attempt_says_why_and_what_it_logged(queue: Queue, work: Work) -> None:
    """The lines are those of this delivery, in their order."""
    work.raises = KeyError("bug")

    with on_a_laptop():
        said = queue.deliver(PATH).json

    assert said["detail"] == "KeyError: 'bug'"
    assert said["traceback"].rstrip().endswith("KeyError: 'bug'")
    assert said["log"] == ["WARNING shop: 3 lamps", "a print"]


def test_an_attempt_that_went_well_says_what_it_logged(queue: Queue, work: Work) -> None:
    """A response with lines is a 200, which ends a task as a 204 does."""
    with on_a_laptop():
        answer = queue.deliver(PATH)

    assert (answer.status_code, answer.json) == (
        200,
        {"log": ["WARNING shop: 3 lamps", "a print"]},
    )


def test_a_deployed_app_keeps_no_lines(queue: Queue, work: Work) -> None:
    """Its platform collects the log."""
    assert queue.deliver(PATH).status_code == 204


def test_a_flood_of_lines_is_cut(queue: Queue, work: Work) -> None:
    """What a task says cannot fill the response."""
    with on_a_laptop(), delivery_log.kept() as lines:
        for _ in range(2 * delivery_log.MAX_LINES):
            print("x" * 3_000)  # noqa: T201

    assert len(lines) == delivery_log.MAX_LINES
    assert {len(line) for line in lines} == {delivery_log.MAX_LINE_CHARS}
