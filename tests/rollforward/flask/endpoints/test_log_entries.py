"""Entries of deliveries: each line that a task's function logs knows its task."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from rollforward import telemetry
from rollforward.tasks import Reject, Task
from rollforward.telemetry import CloudLogFormatter
from rollforward.testing.services import ACCOUNT, BASE_URL
from tests.handlers.conftest import Queue, app_with
from tests.infra.world import World
from tests.rollforward.flask.acts import one_emulator

pytestmark = one_emulator

PATH = "/tasks/tests/logging"
LABELS = "logging.googleapis.com/labels"
TRACE = "0af7651916cd43dd8448eb211c80319c"
log = logging.getLogger("shop.orders")


@dataclass(frozen=True)
class Order:
    """Arguments that name a run."""

    run_id: str = "run-7"
    ends_by: str = ""


def work(clients: Any, args: Order) -> None:
    log.info("shipped")
    if args.ends_by == "reject":
        raise Reject("no such party")
    if args.ends_by:
        raise KeyError(args.ends_by)


class Entries(logging.Handler):
    """Keeps the entries of what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(CloudLogFormatter("my-project"))
        self.kept: list[Any] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.kept.append(json.loads(self.format(record)))


@pytest.fixture
def entries(caplog: pytest.LogCaptureFixture) -> Iterator[list[Any]]:
    caplog.set_level(logging.INFO)
    handler = Entries()
    logging.getLogger().addHandler(handler)
    yield handler.kept
    logging.getLogger().removeHandler(handler)


@pytest.fixture
def queue(world: World) -> Queue:
    return Queue(world, app_with(world, Task(PATH, "default", Order, work, max_attempts=2)))


def test_a_line_of_a_task_s_function_knows_its_task(queue: Queue, entries: list[Any]) -> None:
    """Name, path, queue, attempt and run."""
    queue.deliver(PATH, retries=2)

    [entry] = [entry for entry in entries if entry["message"] == "shipped"]
    assert entry[LABELS] == {
        **{"task": "t1", "queue": "default", "path": PATH, "attempt": "2", "run": "run-7"},
    }
    assert telemetry.current_task() is None


def test_a_failure_is_one_entry_with_its_class(queue: Queue, entries: list[Any]) -> None:
    """It can be alerted on by severity, and found by its task."""
    queue.deliver(PATH, {"ends_by": "bug"})

    [entry] = [entry for entry in entries if entry["severity"] == "ERROR"]
    assert entry["message"] == f"{PATH} failed"
    assert entry["stack_trace"].endswith("KeyError: 'bug'\n")
    assert (entry[LABELS]["task"], entry[LABELS]["error_class"]) == ("t1", "KeyError")


@pytest.mark.parametrize(("ends_by", "error_class"), [("bug", "KeyError"), ("reject", "Reject")])
def test_a_dead_task_is_an_entry_of_its_own(
    queue: Queue, entries: list[Any], ends_by: str, error_class: str
) -> None:
    """With the id by which it is replayed."""
    for retries in range(2):
        queue.deliver(PATH, {"ends_by": ends_by}, retries=retries)

    dead = [entry for entry in entries if "dead_task" in entry]
    [row] = queue.dead_tasks()
    assert {entry["dead_task"] for entry in dead} == {row.key.id()}
    assert {entry["severity"] for entry in dead} == {"ERROR"}
    assert {entry[LABELS]["error_class"] for entry in dead} == {error_class}


def test_a_request_s_entries_have_its_trace(queue: Queue, entries: list[Any]) -> None:
    """As the front end of the platform sends it."""
    queue.app.test_client().post(
        PATH,
        data=b"{}",
        headers={
            "Authorization": f"Bearer {queue.world.engine.tokens.oidc_token(ACCOUNT, BASE_URL)}",
            "X-Cloud-Trace-Context": f"{TRACE}/74;o=1",
        },
    )

    [entry] = [entry for entry in entries if entry["message"] == "shipped"]
    assert entry["logging.googleapis.com/trace"].endswith(TRACE)
    assert entry["logging.googleapis.com/spanId"] == "000000000000004a"
