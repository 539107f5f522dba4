"""A pipeline that publishes a stream, and one that reads it, over one store."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar

from rollforward.streams import Computation, Context, Pipeline, PushSource, Record
from rollforward.streams.coordinator import tick
from rollforward.streams.exchange.pulling import pull
from rollforward.streams.model.sink import SinkRecord
from rollforward.streams.publications import Publication, Subscription
from rollforward.streams.publications.publication import LogRecord
from rollforward.streams.sweep import sweep
from tests.rollforward.streams.simulator.driver import Came, Desk

MINUTE_S = 60


class Pass(Computation):
    """Passes records on, under another key."""

    inputs: ClassVar = {"in": lambda value: value["k"]}
    outputs = ("hits",)

    def record(self, ctx: Context, record: Record) -> None:
        ctx.produce("hits", {**record.value, "id": record.value["k"]}, record.timestamp_ms)


class Seen(Computation):
    """Lists the times of the records of each key, and of those that came late."""

    inputs: ClassVar = {"hits": lambda value: value["k"]}

    def record(self, ctx: Context, record: Record) -> None:
        ctx.state.list("late" if ctx.late else "seen").append(record.timestamp_ms)


class Again(Seen):
    """A second reader, which is attached later."""


class Couple:
    """A publisher and its subscribers, step by step; nobody sweeps but a test."""

    def __init__(self, publication: Publication | None = None, **options: Any) -> None:
        self.publication = publication or Publication("hits")
        source = PushSource("in", disorder=timedelta(0))
        self.publisher = _desk(
            Pipeline(
                "weblog", Pass, sources=[source], sinks=[self.publication], intervals=1,
                limits=options.pop("limits", None), codecs=options.pop("codecs", None),
                standby=options.pop("later", ()),
            )
        )  # fmt: skip
        self.subscriber = self.subscribe("alerts", **options)

    def subscribe(self, name: str, *, standby: Any = (), **options: Any) -> Desk:
        """Return another subscriber, which has not begun."""
        subscription = Subscription(self.publication, **options)
        desk = _desk(Pipeline(name, Seen, sources=[subscription], standby=standby, intervals=1))
        desk.simulation.store = self.publisher.simulation.store
        return desk

    def publish(self, *times: int, key: str = "a", watermark: int | None = None) -> None:
        """Push records, and let all go on until they are in the log, and published."""
        records = [Came(f"{key}{at}", key, at) for at in times]
        self.publisher.push(*records, watermark=watermark)
        self.publisher.run()
        self.tick()

    def tick(self) -> None:
        self.publisher.do(tick(self.publisher.environment))

    def read(self, desk: Desk | None = None, *, partition: str = "0") -> None:
        """Read the log to its end, and let the subscriber process what came."""
        desk = desk or self.subscriber
        self.pull(desk, partition=partition)
        desk.do(tick(desk.environment))
        desk.do(desk.worker("seen"))

    def pull(self, desk: Desk | None = None, *, partition: str = "0") -> None:
        """Read the log to its end."""
        desk = desk or self.subscriber
        desk.do(pull(desk.environment, "hits", partition))

    def log_record(self, value: Any) -> LogRecord:
        """Return what the publication would write of a record."""
        return self.publication.make(SinkRecord("r", "all", value, 1, "hits"))

    def seen(self, key: str = "a", kind: str = "seen", desk: Desk | None = None) -> list[int]:
        times: list[int] = (desk or self.subscriber).state("seen", key).get(kind, [])
        return times

    def wait(self, seconds: float) -> None:
        for desk in (self.publisher, self.subscriber):
            desk.wait(seconds)

    def sweep(self, desk: Desk | None = None) -> None:
        desk = desk or self.publisher
        desk.do(sweep(desk.environment))

    def woken(self) -> list[str]:
        """Return the partitions of the subscriber that a task waits for."""
        wakes = self.subscriber.simulation.wakes
        return [wake.target[0] for _, wake in wakes if wake.target[1] < 0]

    def log(self) -> list[str]:
        return sorted(self.publisher.rows("StreamLog"))


def _desk(pipeline: Pipeline) -> Desk:
    desk = Desk(pipeline)
    desk.simulation.sweeps = False
    return desk
