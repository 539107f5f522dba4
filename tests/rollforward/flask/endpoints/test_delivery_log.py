"""What a task logs and prints reaches the queue with the response, on a laptop."""

from __future__ import annotations

import io
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rollforward.flask.endpoints import delivery_log
from rollforward.tasks import Task
from tests.handlers.conftest import Queue, app_with, on_app_engine
from tests.infra.world import World
from tests.rollforward.flask.acts import PATH, Act, Work

pytestmark = pytest.mark.parametrize("services", ["datastore"], indirect=True)


@contextmanager
def on_a_laptop() -> Iterator[None]:
    """Log as an app on a laptop does. Not a fixture: pytest exchanges standard output behind it."""
    root, stdout = logging.getLogger(), sys.stdout
    handlers, level = list(root.handlers), root.level
    formatters = [handler.formatter for handler in handlers]
    # An app that another test has mounted may have installed it.
    own = delivery_log._DeliveryHandler
    root.handlers[:] = [handler for handler in handlers if not isinstance(handler, own)]
    root.setLevel(logging.INFO)
    delivery_log.install()
    delivery_log.install()
    try:
        yield
    finally:
        root.handlers[:], sys.stdout = handlers, stdout
        for handler, formatter in zip(handlers, formatters, strict=True):
            handler.setFormatter(formatter)
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
    """The emulator keeps 64 KiB of a response: what a task says leaves room for the error."""
    with on_a_laptop(), delivery_log.capture() as lines:
        for _ in range(100):
            print("x" * 3_000)  # noqa: T201

    assert {len(line) for line in lines.captured} == {delivery_log.MAX_LINE_CHARS}
    assert sum(map(len, lines.captured)) <= delivery_log.MAX_CHARS


def test_a_line_is_what_ends_with_a_newline(queue: Queue, work: Work) -> None:
    """One print writes its arguments one by one."""
    with on_a_laptop(), delivery_log.capture() as lines:
        print("Hello,", "world", 7)  # noqa: T201
        print("no end", end="")  # noqa: T201
        lines.end()

    assert lines.captured == ["Hello, world 7", "no end"]


def test_the_apps_own_output_says_of_which_task_each_line_is(queue: Queue, work: Work) -> None:
    """By that the local platform shows a task's lines, also of a worker that died over it."""
    out, log = io.StringIO(), io.StringIO()
    handler = logging.StreamHandler(log)
    logging.getLogger().addHandler(handler)
    try:
        with on_a_laptop():
            sys.stdout._stream = out  # type: ignore[attr-defined]
            queue.deliver(PATH, task_name="t7")
            print("of no task")  # noqa: T201
    finally:
        logging.getLogger().removeHandler(handler)

    assert "3 lamps [task default/t7]\n" in log.getvalue()
    assert "elsewhere\n" in log.getvalue()
    assert out.getvalue() == "a print [task default/t7]\nof no task\n"


def test_a_traceback_has_its_task_in_the_first_line(queue: Queue, work: Work) -> None:
    """What follows belongs to it."""
    log = io.StringIO()
    handler = logging.StreamHandler(log)
    logging.getLogger().addHandler(handler)
    work.raises = KeyError("bug")
    try:
        with on_a_laptop():
            queue.deliver(PATH, task_name="t7")
    finally:
        logging.getLogger().removeHandler(handler)

    first, second, *_ = log.getvalue().partition(f"{PATH} failed")[2].splitlines()
    assert (first, second) == (" [task default/t7]", "Traceback (most recent call last):")


def test_a_log_call_with_wrong_arguments_fails_no_task(
    queue: Queue, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As without the console: logging says what is wrong, and the task goes on."""
    monkeypatch.setattr(logging, "raiseExceptions", False)
    with on_a_laptop(), delivery_log.capture() as lines:
        logging.getLogger("shop").warning("%d lamps", "three")

    assert lines.captured == []


def test_a_deployed_app_says_nothing_of_its_errors(world: World, work: Work) -> None:
    """S9: its responses carry a status alone."""
    work.raises = KeyError("ada@example.com")
    app = app_with(world, Task(PATH, "default", Act, work), settings=on_app_engine(world))

    answer = app.test_client().post(PATH, json={}, headers={"X-AppEngine-QueueName": "default"})

    assert (answer.status_code, answer.data) == (422, b"")
