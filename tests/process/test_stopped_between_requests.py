"""A process that gets no processor between its requests, as on Cloud Run by default."""

from __future__ import annotations

import os
import signal

import pytest
import requests

from tests.infra.stack import Stack, running_stack

ORDERS = 20


@pytest.mark.process
def test_each_task_exists_when_its_response_has_come() -> None:
    """B5: each process is stopped as soon as it has answered, until the next request.

    With `CPU_ALWAYS_ALLOCATED=1` some of them do not: their process is stopped before that.
    """
    target = "tests.process.ordering_app:serve"
    with running_stack("--target", target, CPU_ALWAYS_ALLOCATED="0") as stack:
        requests.post(f"{stack.console}/api/v1/queues/default/pause", json={}, timeout=30)
        seen = [_tasks_while_stopped(stack, number) for number in range(ORDERS)]

    assert seen == list(range(1, ORDERS + 1))


def _tasks_while_stopped(stack: Stack, number: int) -> int:
    """Place an order and stop its process; return how many tasks there are."""
    worker = int(requests.get(f"{stack.app}/order/{number}", timeout=30).text)
    os.kill(worker, signal.SIGSTOP)
    try:
        return len(stack.control("/api/v1/tasks?limit=500&queue=default")["tasks"])
    finally:
        os.kill(worker, signal.SIGCONT)
