"""Latency from enqueue to run: a chain of tasks, each of which records its own latency.

A task records its sample and then enqueues the next, so that one runs at a time. A sample is the
difference of two clocks; across machines it is as accurate as the clocks agree.

Lost on failure: nothing. A task that is delivered twice records nothing twice, and the next task
has a name.

Routes: POST /tasks/numbers/echo.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pydantic

from pipelines.numbers import results
from rollforward.runtime import Clients
from rollforward.tasks import task

PROBE = "enqueue-to-run"
# The first one warms up, and is no sample.
ECHOES = 21


@dataclass(frozen=True)
class Echo:
    """Position of a task in its chain, and its time of enqueue, in microseconds since 1970."""

    run_id: Annotated[str, pydantic.Field(min_length=32, max_length=32)]
    number: Annotated[int, pydantic.Field(ge=0, lt=ECHOES)]
    sent_us: Annotated[int, pydantic.Field(ge=0)]


def begin(clients: Clients, run_id: str) -> None:
    """Enqueue the first task of a run's chain; a repeated call does nothing."""
    _enqueue(clients, run_id, 0)


@task("/tasks/numbers/echo", queue="default")
def echo(clients: Clients, args: Echo) -> None:
    """Record the latency of this task, and enqueue the next."""
    took_s = max(0.0, (_now_us(clients) - args.sent_us) / 1e6)
    if args.number > 0:
        taken_at = clients.clock.now()
        results.append(args.run_id, PROBE, took_s, place=args.number - 1, at=taken_at)
    if args.number + 1 < ECHOES:
        _enqueue(clients, args.run_id, args.number + 1)


def _enqueue(clients: Clients, run_id: str, number: int) -> None:
    args = Echo(run_id, number, _now_us(clients))
    echo.enqueue(clients, args, name=(run_id, number))


def _now_us(clients: Clients) -> int:
    return round(clients.clock.now().timestamp() * 1e6)
