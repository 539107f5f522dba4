"""Clients of a world: the official ones, with faults between them and the services."""

from __future__ import annotations

import datetime
import itertools
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rollforward.outbox import InlineRelay
from rollforward.runtime import Clients, Meter, open_cache, open_cloud_tasks, open_datastore
from rollforward.runtime.channel.limits import DatastoreLimits
from rollforward.runtime.flusher import PeriodicFlusher
from rollforward.runtime.process.heartbeats import NoHeart
from rollforward.runtime.process.process_state import ProcessState
from rollforward.tasks import CloudTaskQueue, UrlTarget
from rollforward.testing.injection import FaultPlan, FaultyCache, FaultyWire, WaitingStub
from rollforward.testing.services import ACCOUNT, BASE_URL, LOCATION, PROJECT, Services
from rollforward.tracing import CallSpans

_namespaces = itertools.count(random.randrange(2**40))


def new_namespace() -> str:
    """Return a namespace that nothing has written to."""
    return f"t{next(_namespaces):x}"


class ProcessMemory(ProcessState):
    """The memory of a process, and the threads that store its buffers."""

    def clear(self) -> None:
        """Forget everything, as if killed: the threads end, too, and store nothing more."""
        for act in self._last_acts.values():
            flusher = getattr(act, "__self__", None)
            if isinstance(flusher, PeriodicFlusher):
                flusher._buffer = _Empty()
                flusher._is_hurried.set()
        super().clear()


class _Empty:
    """The unstored memory of a dead process."""

    def is_empty(self) -> bool:
        return True

    def store(self) -> None:
        pass


@dataclass(frozen=True)
class QueueClock:
    """The queue's clock, which only a test moves: app and queue agree."""

    engine: Any

    @property
    def time_s(self) -> float:
        return float(self.engine.clock.now())

    def now(self) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(self.time_s, datetime.UTC)

    def sleep(self, seconds: float) -> None:
        self.engine.advance(seconds)


def open_clients(
    services: Services,
    plan: FaultPlan,
    wire: FaultyWire,
    *,
    app_services: Mapping[type, object] | None = None,
    task_paths: Any = None,
) -> Clients:
    """Open the official clients, with faults and limits between them and the services.

    Args:
        app_services: Services of the app, by type.
    """
    meter = Meter()
    cloud_tasks = open_cloud_tasks(
        emulator=services.cloud_tasks.grpc_address, interceptors=[CallSpans(), meter, wire]
    )
    engine = services.cloud_tasks.engine
    datastore = open_datastore(
        PROJECT,
        emulator=services.datastore,
        namespace=new_namespace(),
        database=services.database,
        # Before the wire, which may cut what is asked for.
        interceptors=[CallSpans(), meter, DatastoreLimits(engine.clock.now), wire],
    )
    datastore.stub = WaitingStub(datastore.stub)
    target = UrlTarget(BASE_URL, ACCOUNT, BASE_URL)
    return Clients(
        datastore=datastore,
        tasks=CloudTaskQueue(cloud_tasks, PROJECT, LOCATION, target),
        # A busy machine does not make the tests do without it.
        cache=FaultyCache(open_cache(services.memcached, timeout_s=10), plan),
        meter=meter,
        relay=InlineRelay(),
        services=dict(app_services or {}),
        task_paths=task_paths,
        clock=QueueClock(engine),
        heart=NoHeart(),
        process_state=ProcessMemory(),
    )
