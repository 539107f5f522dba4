"""Pipelines for tests on the services."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from types import ModuleType
from typing import Any, ClassVar

from google.cloud import ndb

from rollforward.runtime import Clients
from rollforward.streams import Computation, Context, Pipeline, PushedRecord, PushSource, Record
from rollforward.streams.entities import StreamChunk, StreamDead
from rollforward.streams.graph.environment import StreamConfig
from tests.infra.world import Services, World
from tests.rollforward.streams.model.test_computations import Hits as HitsInTime

# The clock of these tests stands still: nobody waits.
# No wake-up is deferred: that takes a thread, for which no test of this world would wait.
PACE = StreamConfig(linger=(), gather_s=0, watermark_ms=0, tick_s=0.25, wakeup_ms=0)


class Hits(HitsInTime):
    """Hits per path and minute; some records are poison."""

    late_stream = None
    max_attempts = 2

    def record(self, ctx: Context, record: Record) -> None:
        if record.value.get("poison"):
            raise ValueError("poison")
        super().record(ctx, record)


class Minutes(Computation):
    """All windows of a minute, as they were written."""

    inputs: ClassVar = {"hits": lambda hits: str(hits["start"])}

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.list("windows").append([record.value["path"], record.value["hits"]])


class LaterHits(Hits):
    """The next version: the same, with another state."""

    name = "hits"
    version = 2
    reads = (1,)

    def upgrade(self, state: dict[str, Any], version: int) -> dict[str, Any]:
        return {"windows": dict(state["windows"]), "was": version}


class UnreadableHits(Hits):
    """A version that cannot read what others leave."""

    name = "hits"
    version = 3
    reads = (1, 2)

    def upgrade(self, state: dict[str, Any], version: int) -> dict[str, Any]:
        return {"windows": state["minutes"]}


class Seen(Minutes):
    """Records since it was attached."""


REQUESTS = PushSource("requests", disorder=timedelta(seconds=2))
WEBLOG = Pipeline(
    "minutes", Hits, Minutes, intervals=1, standby=[LaterHits, UnreadableHits, Seen],
    sources=[REQUESTS],
)  # fmt: skip


def stream_world(services: Services, *pipelines: Pipeline) -> World:
    world = World(services, streams=pipelines or (WEBLOG,))
    world.clients.process_state.get_or_create("streams config", lambda: PACE)
    return world


def hits(*requests: tuple[str, str, int], **fields: Any) -> list[PushedRecord]:
    """Return records to push: the id, the path and the time of each."""
    return [PushedRecord(id_, {"path": path, **fields}, at) for id_, path, at in requests]


def windows(world: World, pipeline: Pipeline = WEBLOG) -> dict[str, Sequence[Any]]:
    """Return the windows that were written, by minute."""
    with world.context():
        return windows_here(world.clients, pipeline)


def windows_here(clients: Clients, pipeline: Pipeline = WEBLOG) -> dict[str, Sequence[Any]]:
    """Return the same where a context is open."""
    states = dict(pipeline.states(clients, "minutes"))
    return {minute: sorted(state["windows"]) for minute, state in sorted(states.items())}


def delete_rows(*modules: ModuleType) -> None:
    """Begin with nothing of the kinds of some modules."""
    for module in modules:
        for kind in vars(module).values():
            if isinstance(kind, type) and issubclass(kind, ndb.Model):
                ndb.delete_multi(kind.query().fetch(keys_only=True))


def is_drained() -> bool:
    return StreamChunk.query().get() is None


def dead() -> int:
    return len(StreamDead.query().fetch(keys_only=True))


def resumed(steps: Any, call: Any) -> Any:
    """Continue steps from a call."""
    while True:
        try:
            answer = yield call
        except Exception as error:
            step, value = steps.throw, error
        else:
            step, value = steps.send, answer
        try:
            call = step(value)
        except StopIteration as stop:
            return stop.value
