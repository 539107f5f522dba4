"""Tasks of a pipeline: work on an interval, a tick of its watermarks, a read of a pull source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import pydantic

from rollforward.runtime.clients import Clients
from rollforward.runtime.messages import Message
from rollforward.streams.coordinator import tick
from rollforward.streams.exchange.pulling import pull
from rollforward.streams.graph.declaration import Declaration
from rollforward.streams.graph.environment import Environment
from rollforward.streams.model.errors import UnknownStreamError
from rollforward.streams.model.sink import Sink
from rollforward.streams.storage.remote_calls import Steps, Wake
from rollforward.streams.workers.lease import defer_to_other_version
from rollforward.streams.workers.sink_worker import SinkWorker
from rollforward.streams.workers.worker import Worker
from rollforward.tasks.declaration import Task
from rollforward.tasks.errors import OtherVersionError

# Long tasks: workers and reads of sources.
QUEUE = "streams"
# Tasks of milliseconds, which would wait behind long ones: ticks and pushes.
TICKS_QUEUE = "streams-ticks"


@dataclass(frozen=True)
class Work:
    """An interval to work on."""

    computation: Annotated[str, pydantic.Field(max_length=70)]
    first_slot: int


@dataclass(frozen=True)
class Tick:
    """A tick of the watermarks."""


@dataclass(frozen=True)
class Pull:
    """A pull source to read, or a partition of one: `<stream>/<partition>`."""

    stream: Annotated[str, pydantic.Field(max_length=140)]


class Tasks:
    """Tasks of one pipeline.

    `run_steps`: `driver.run_steps`, which needs these tasks itself.
    """

    def __init__(self, pipeline: Declaration, run_steps: Callable[..., Any]) -> None:
        path = f"/tasks/streams/{pipeline.name}"

        def work_on(clients: Clients, args: Work) -> None:
            run_steps(clients, pipeline, worker_steps, args.computation, args.first_slot)

        def tick_once(clients: Clients, args: Tick) -> None:
            run_steps(clients, pipeline, tick)

        def pull_from(clients: Clients, args: Pull) -> None:
            stream, _, partition = args.stream.partition("/")
            check_known(pipeline, stream, partition)
            run_steps(clients, pipeline, pull, stream, partition)

        self.work = Task(f"{path}/work", QUEUE, Work, work_on)
        self.tick = Task(f"{path}/tick", TICKS_QUEUE, Tick, tick_once)
        self.pull = Task(f"{path}/pull", QUEUE, Pull, pull_from)

    @property
    def all(self) -> list[Task[Any]]:
        return [self.work, self.tick, self.pull]

    def message(self, clients: Clients, wake: Wake) -> Message:
        """Return the message that creates a task."""
        name, slot = wake.target
        at = Task.due(clients, wake.delay_s, None)
        if not name:
            return self.tick.message(Tick(), name=wake.name, at=at)
        if slot < 0:
            return self.pull.message(Pull(name), name=wake.name, at=at)
        return self.work.message(Work(name, slot), name=wake.name, at=at)


def check_known(pipeline: Declaration, stream: str, process: str) -> None:
    """Check that this code has a source that a task is for.

    Raises:
        OtherVersionError: only another version may have the source, or its process or partition.
    """
    try:
        pipeline.check_process(stream, process)
    except UnknownStreamError as error:
        raise OtherVersionError(f"{pipeline.name}: {error}") from error


def worker_steps(environment: Environment, computation: str, lo: int) -> Steps[Any]:
    """Return the steps of the worker of an interval.

    Raises:
        MissingCodeError: the computation runs, but this code does not have it.
    """
    if not environment.pipeline.versions_of(computation):
        return defer_to_other_version(environment, computation)
    is_sink = isinstance(environment.pipeline.any_version(computation), Sink)
    worker_type = SinkWorker if is_sink else Worker
    return worker_type(environment, computation, lo).run()
