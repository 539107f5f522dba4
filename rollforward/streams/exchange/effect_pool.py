"""Where weak sinks act: in threads of their own, so that one that hangs holds nobody up.

There are a few at a time for a process, and who finds none free waits for one as long as for a sink
that is slow. If all of them hang, everything goes the durable way until one comes back, and nothing
is kept in memory meanwhile.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rollforward.runtime.clients import Clients
from rollforward.streams.model.sink import Sink
from rollforward.streams.storage.remote_calls import CallEffects

log = logging.getLogger(__name__)

MAX_THREADS = 16


@dataclass
class _Job:
    """Some records of one sink: `done` has the places of those that it has acted on."""

    sink: Sink
    records: Sequence[tuple[int, Any]]
    done: list[int] = field(default_factory=list)
    is_over: threading.Event = field(default_factory=threading.Event)
    is_abandoned: bool = False


class EffectPool:
    """The threads of a process in which sinks act."""

    def __init__(self) -> None:
        self._free = threading.BoundedSemaphore(MAX_THREADS)

    def deliver_all(
        self, clients: Clients, sinks: Mapping[Any, Any], call: CallEffects
    ) -> tuple[int, ...]:
        """Have sinks act, all at once, each on one record after the other.

        Returns:
            The places of the records that they have acted on within the time.
        """
        by_sink: dict[Any, list[tuple[int, Any]]] = defaultdict(list)
        for place, (name, record) in enumerate(call.effects):
            by_sink[name].append((place, record))
        until, jobs = time.monotonic() + call.wait_s, list[_Job]()
        for name, records in by_sink.items():
            if not self._free.acquire(timeout=max(0.0, until - time.monotonic())):
                log.warning(
                    "%d sinks at work hang: what is for others becomes durable", MAX_THREADS
                )
                break
            jobs.append(_Job(sinks[name], records))
            threading.Thread(target=self._work, args=(clients, jobs[-1]), daemon=True).start()
        for job in jobs:
            job.is_over.wait(max(0.0, until - time.monotonic()))
            job.is_abandoned = True
        return tuple(place for job in jobs for place in tuple(job.done))

    def _work(self, clients: Clients, job: _Job) -> None:
        try:
            with clients.context():
                for place, record in job.records:
                    if job.is_abandoned:
                        return
                    job.sink.act(clients, record)
                    job.done.append(place)
        except Exception:
            log.warning("%s has failed, and is tried again", job.sink.name, exc_info=True)
        finally:
            self._free.release()
            job.is_over.set()
