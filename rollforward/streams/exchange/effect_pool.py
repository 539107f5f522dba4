"""Thread pool for weak sinks, so that a hanging sink blocks no other.

A process has a few threads. A sink that finds none free waits for one as long as it may take to
act. If all threads hang, the records go into the sinks' inboxes until one is free again, and
memory holds nothing meanwhile.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rollforward import telemetry
from rollforward.app_code import SIGNALS
from rollforward.runtime.clients import Clients
from rollforward.runtime.process.daemons import start_daemon
from rollforward.streams.model.sink import Sink
from rollforward.streams.storage.remote_calls import CallEffects
from rollforward.tracing import Span, caused_by, current_traceparent, start_span

log = logging.getLogger(__name__)

MAX_THREADS = 16


@dataclass
class _Job:
    """Records of one sink, each with its index in the call; `done` has the indexes acted on."""

    sink: Sink
    records: Sequence[tuple[int, Any]]
    traceparent: str
    done: list[int] = field(default_factory=list)
    is_over: threading.Event = field(default_factory=threading.Event)
    is_abandoned: bool = False


class EffectPool:
    """Threads of a process in which weak sinks act."""

    def __init__(self) -> None:
        self._free = threading.BoundedSemaphore(MAX_THREADS)

    def deliver_all(
        self, clients: Clients, sinks: Mapping[Any, Any], call: CallEffects
    ) -> tuple[int, ...]:
        """Run all sinks side by side, each over its records in order.

        Returns:
            The indexes of the records that the sinks acted on within the time limit.
        """
        by_sink: dict[Any, list[tuple[int, Any]]] = defaultdict(list)
        for index, (name, record) in enumerate(call.effects):
            by_sink[name].append((index, record))
        traceparent = current_traceparent()
        until, jobs = time.monotonic() + call.wait_s, list[_Job]()
        for name, records in by_sink.items():
            if not self._free.acquire(timeout=max(0.0, until - time.monotonic())):
                log.warning(
                    "all %d sink threads hang: other sinks get records by their inboxes",
                    MAX_THREADS,
                )
                break
            job = _Job(sinks[name], records, traceparent)
            work = partial(telemetry.carried(self._work), clients, job)
            if not start_daemon(work, f"the sink {job.sink.name}"):
                self._free.release()
                break
            jobs.append(job)
        for job in jobs:
            job.is_over.wait(max(0.0, until - time.monotonic()))
            job.is_abandoned = True
        return tuple(index for job in jobs for index in tuple(job.done))

    def _work(self, clients: Clients, job: _Job) -> None:
        try:
            with clients.context(), caused_by(job.traceparent), _span(job):
                for index, record in job.records:
                    if job.is_abandoned:
                        return
                    job.sink.act(clients, record)
                    job.done.append(index)
        except SIGNALS:
            raise
        except BaseException:
            log.warning("%s failed and is retried from its inbox", job.sink.name, exc_info=True)
        finally:
            self._free.release()
            job.is_over.set()


def _span(job: _Job) -> AbstractContextManager[Span]:
    sink = job.sink
    attributes = {"rollforward.records": len(job.records)}
    return start_span(f"sink {sink.pipeline}/{sink.name}", attributes=attributes)
