"""The workers of the simulator: as tasks start them, or broken ones."""

from __future__ import annotations

from rollforward.streams.graph.environment import Environment
from rollforward.streams.model.sink import Sink
from rollforward.streams.workers.lease import defer_to_other_version
from rollforward.streams.workers.sink_worker import SinkWorker
from rollforward.streams.workers.worker import Worker
from tests.rollforward.streams.simulator.store import Steps


def worker_steps(environment: Environment, name: str, lo: int, worker: type[Worker]) -> Steps:
    """Return the steps of the worker of an interval.

    Args:
        worker: That of a computation which is no sink.
    """
    if not environment.pipeline.versions_of(name):
        return defer_to_other_version(environment, name)
    is_sink = isinstance(environment.pipeline.any_version(name), Sink)
    return (SinkWorker if is_sink else worker)(environment, name, lo).run()
