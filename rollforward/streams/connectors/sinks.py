"""Sinks that are there to be used: a task, a fork-join queue, a view, an effect outside.

    Pipeline(
        "weblog",
        HITS,
        sinks=[
            TaskSink("spikes", REPORT, lambda spike: Report(spike.id, spike.value["path"])),
            ForkJoinSink("hits", COUNT, key=by_path, item=lambda hit: Hits(hit.value["value"])),
            ViewSink("hits", PATHS, lambda hit: PathHits(id=hit.value["key"], ...)),
            EffectSink("outages", call_the_operator),
        ],
    )

A task is enqueued, an item inserted and a source of views saved once for each record, whatever
fails: by the commit that takes the record out of the stream. An effect outside of Datastore happens
AT LEAST ONCE: it may be repeated, with the same `record.id`, by which the other side can tell.

Records come to a sink in no order. `StreamTest.sink_output` returns what a sink makes of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Generic, TypeVar

from google.cloud import ndb

from rollforward import outbox
from rollforward.fork_join import ForkJoin
from rollforward.materialized_views import ViewGroup
from rollforward.runtime.clients import Clients
from rollforward.streams.model.computation import KeyOf
from rollforward.streams.model.errors import BadRecordError
from rollforward.streams.model.sink import Sink, SinkRecord
from rollforward.tasks.declaration import Task

A = TypeVar("A")
I = TypeVar("I")  # noqa: E741  An item.


class TaskSink(Sink, Generic[A]):
    """Enqueues a task for each record, once.

    Cloud Tasks delivers a task at least once: what the task does is exact if it guards itself, as
    every task does; `record.id` among its arguments is a name for what it has done.
    """

    max_records = 400  # Each is a row of the outbox, of fewer than 500 writes.

    def __init__(
        self,
        stream: str,
        task: Task[A],
        args: Callable[[SinkRecord], A],
        *,
        name: str = "",
        key: KeyOf | None = None,
    ) -> None:
        """Declare a sink.

        Args:
            task: A part of the app's registry.
            args: Makes the task's arguments of a record.
        """
        super().__init__(stream, name=name, key=key)
        self.task = task
        self.args = args

    def make(self, record: SinkRecord) -> A:
        """Return the arguments of the task, checked."""
        args = self.args(record)
        self.task.message(args)
        return args

    def write(self, clients: Clients, values: Sequence[A]) -> None:
        for args in values:
            outbox.enqueue(clients, self.task, args)


class ForkJoinSink(Sink, Generic[I]):
    """Inserts an item into a fork-join queue for each record, once."""

    def __init__(
        self,
        stream: str,
        queue: ForkJoin[I],
        *,
        key: KeyOf,
        item: Callable[[SinkRecord], I],
        name: str = "",
    ) -> None:
        """Declare a sink.

        Args:
            queue: A part of the app's registry.
            key: Returns what the queue batches by, of a record's value.
            item: Makes an item of a record.
        """
        super().__init__(stream, name=name, key=key)
        self.queue = queue
        self.item = item
        self.max_records = min(Sink.max_records, queue.settings.max_batch_size)

    def make(self, record: SinkRecord) -> tuple[str, I]:
        """Return the key and the item, checked."""
        item = self.item(record)
        self.queue.check(record.key, item)
        return record.key, item

    def write(self, clients: Clients, values: Sequence[tuple[str, I]]) -> None:
        by_key: dict[str, list[I]] = defaultdict(list)
        for key, item in values:
            by_key[key].append(item)
        for key, items in by_key.items():
            self.queue.insert_in_transaction(clients, key, *items)


class ViewSink(Sink):
    """Saves a source of materialized views for each record; its rows follow.

    Records come in no order. Where several become one source, because a window speaks early or late
    or because the source has the latest of many, say with `replaces` which one stays.
    """

    max_records = 25  # A save writes two entities, and a row of the outbox for each view's row.

    def __init__(
        self,
        stream: str,
        views: ViewGroup,
        source: Callable[[SinkRecord], ndb.Model],
        *,
        replaces: Callable[[Any, Any], bool] | None = None,
        name: str = "",
        key: KeyOf | None = None,
    ) -> None:
        """Declare a sink.

        Args:
            views: A part of the app's registry.
            source: Makes an entity, with an id that follows from the record.
            replaces: Whether a new entity (the second argument) takes the place of the one that is
                stored (the first). None: always.
        """
        super().__init__(stream, name=name, key=key)
        self.views = views
        self.source = source
        self.replaces = replaces

    def make(self, record: SinkRecord) -> Any:
        """Return the source, checked."""
        source = self.source(record)
        if source.key is None or not source.key.id():
            raise BadRecordError("the source of a view that a sink saves has an id")
        return source

    def write(self, clients: Clients, values: Sequence[Any]) -> None:
        stored = ndb.get_multi({source.key for source in values}) if self.replaces else []
        latest = {each.key: each for each in stored if each is not None}
        new = {}
        for source in values:
            before = latest.get(source.key)
            if before is None or self.replaces is None or self.replaces(before, source):
                latest[source.key] = new[source.key] = source
        if new:
            self.views.save_in_transaction(clients, *new.values())


class EffectSink(Sink):
    """Has something done outside of Datastore for each record: AT LEAST ONCE, not once.

    The effect is called by a task with one record. It is called again when it raises, or when it is
    not known whether it ended: then with the same `record.id`. Give that to the other side (a
    payment's idempotency key, a message's id), or do only what may be repeated. One that fails
    `max_attempts` times is a dead task.

    A weak one is called by the source itself, before the record is durable: at once, and without a
    task. It may then be called for a record whose push failed. What it does not do within a second
    becomes durable, and it is called by a task.
    """

    max_records = TaskSink.max_records
    idempotent = True  # That is what at least once asks for.

    def __init__(
        self,
        stream: str,
        effect: Callable[[Clients, SinkRecord], object],
        *,
        queue: str = "streams",
        max_attempts: int = 50,
        name: str = "",
        key: KeyOf | None = None,
        weak: bool = False,
    ) -> None:
        """Declare a sink.

        Args:
            effect: Takes the clients and a record, whose `id` is the same in each attempt.
            queue: The Cloud Tasks queue of its tasks.
            weak: Call it before the record is durable. Only of a stream that is a source, or that
                weak computations alone write.
        """
        super().__init__(stream, name=name, key=key)
        self.weak = weak
        self.effect = effect
        self.queue = queue
        self.effect_attempts = max_attempts

    @cached_property
    def task(self) -> Task[SinkRecord]:
        """The task that calls the effect."""
        version = f"/{self.version}" if self.version > 1 else ""
        path = f"/tasks/streams/{self.pipeline}/{self.name}{version}"
        return Task(path, self.queue, SinkRecord, self.effect, self.effect_attempts)

    @property
    def tasks(self) -> Sequence[Task[Any]]:
        return (self.task,)

    def make(self, record: SinkRecord) -> SinkRecord:
        """Return the arguments of the task, checked."""
        self.task.message(record)
        return record

    def act(self, clients: Clients, record: SinkRecord) -> None:
        self.effect(clients, record)

    def write(self, clients: Clients, values: Sequence[SinkRecord]) -> None:
        for record in values:
            outbox.enqueue(clients, self.task, record)
