"""The task and the trace of the work in hand, in each thread by itself."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from rollforward import telemetry
from rollforward.telemetry import TaskContext, Trace, trace_of

pytestmark = pytest.mark.fast

TRACE = "0af7651916cd43dd8448eb211c80319c"
TASK = TaskContext("t1", "orders", "/tasks/ship", 0)


@pytest.mark.parametrize(
    ("headers", "trace"),
    [
        ({}, None),
        (
            {"TRACEPARENT": f"00-{TRACE}-b7ad6b7169203331-01"},
            Trace(TRACE, "b7ad6b7169203331", True),
        ),
        ({"TRACEPARENT": f"00-{TRACE}-b7ad6b7169203331-00"}, Trace(TRACE, "b7ad6b7169203331")),
        ({"TRACEPARENT": f"00-{'0' * 32}-b7ad6b7169203331-01"}, None),
        ({"TRACEPARENT": f"00-{TRACE}-{'0' * 16}-01"}, None),
        ({"TRACEPARENT": "00-nothing-01"}, None),
        ({"X_CLOUD_TRACE_CONTEXT": f"{TRACE}/1;o=1"}, Trace(TRACE, "0000000000000001", True)),
        ({"X_CLOUD_TRACE_CONTEXT": f"{TRACE.upper()}/1;o=0"}, Trace(TRACE, "0000000000000001")),
        ({"X_CLOUD_TRACE_CONTEXT": TRACE}, Trace(TRACE)),
        ({"X_CLOUD_TRACE_CONTEXT": f"{TRACE}/99999999999999999999"}, Trace(TRACE)),
        ({"X_CLOUD_TRACE_CONTEXT": f"{TRACE}/{2**64 - 1}"}, Trace(TRACE, "f" * 16)),
        ({"X_CLOUD_TRACE_CONTEXT": f"{TRACE}/{2**64}"}, Trace(TRACE)),
        ({"X_CLOUD_TRACE_CONTEXT": f"{TRACE}/x"}, None),
        ({"X_CLOUD_TRACE_CONTEXT": '{"forged": "\n"}'}, None),
        ({"X_CLOUD_TRACE_CONTEXT": "a" * 10_000_000}, None),
        (
            {"TRACEPARENT": "broken", "X_CLOUD_TRACE_CONTEXT": f"{TRACE}/1"},
            Trace(TRACE, "0000000000000001"),
        ),
    ],
)
def test_a_header_names_a_trace_or_nothing(headers: dict[str, str], trace: Trace | None) -> None:
    """What a stranger sends is a valid id, or it is ignored."""
    assert trace_of({f"HTTP_{name}": value for name, value in headers.items()}) == trace


def in_thread(function: Callable[[], object]) -> object:
    """Return what a function returns in a thread of its own."""
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


def test_a_thread_knows_the_task_that_it_works_for() -> None:
    """If it is carried there, and until the work is over."""
    with telemetry.in_task(TASK), telemetry.in_trace(Trace(TRACE)):
        carried = telemetry.carried(lambda: (telemetry.current_task(), telemetry.current_trace()))

    assert in_thread(carried) == (TASK, Trace(TRACE))
    assert in_thread(telemetry.current_task) is None
    assert telemetry.current_task() is None


def test_tasks_of_two_threads_do_not_meet() -> None:
    """As gunicorn's threads deliver them side by side."""
    meet = threading.Barrier(2)
    names: dict[str, str] = {}

    def deliver(name: str) -> None:
        with telemetry.in_task(TaskContext(name, "q", "/tasks/x", 0)):
            meet.wait()
            task = telemetry.current_task()
            names[name] = task.name if task else ""

    threads = [threading.Thread(target=deliver, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert names == {"a": "a", "b": "b"}


def test_a_run_belongs_to_a_task() -> None:
    """Outside of one there is nothing to add to."""
    with telemetry.in_run("run-1"):
        assert telemetry.current_task() is None
    with telemetry.in_task(TASK), telemetry.in_run("run-1"):
        task = telemetry.current_task()
    assert task is not None
    assert (task.name, task.run) == ("t1", "run-1")
