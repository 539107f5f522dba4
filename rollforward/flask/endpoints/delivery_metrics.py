"""Measurement of each delivery: its delay, its duration and its outcome."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rollforward.datastore.transactions import TRANSIENT
from rollforward.flask.context import clients, registry, request_notes, wiring
from rollforward.tasks.attempts import TaskDelivery
from rollforward.telemetry.context import in_metrics
from rollforward.telemetry.metrics import UNKNOWN, Outcome


def note_outcome(outcome: Outcome) -> None:
    """Note how the delivery of this request ends; the last note counts."""
    request_notes()["task_outcome"] = outcome


@contextmanager
def measured(delivery: TaskDelivery, eta: str) -> Iterator[None]:
    """Measure the delivery that is handled inside.

    Args:
        eta: The time at which it was due, as the queue's header has it.
    """
    began_s = time.perf_counter()
    delay_s = _delay_s(eta)
    try:
        with in_metrics(wiring().task_metrics.note):
            yield
    except TRANSIENT:
        note_outcome(Outcome.UNAVAILABLE)
        raise
    except Exception:
        note_outcome(Outcome.FAILED)
        raise
    finally:
        wiring().task_metrics.note(
            delivery.path if delivery.path in registry().tasks else UNKNOWN,
            delivery.queue.rpartition("/")[2],
            request_notes().get("task_outcome", Outcome.DONE),
            delay_s=delay_s,
            duration_s=time.perf_counter() - began_s,
        )


def _delay_s(eta: str) -> float | None:
    try:
        due_s = float(eta)
    except ValueError:
        return None
    return clients().clock.now().timestamp() - due_s if math.isfinite(due_s) else None
