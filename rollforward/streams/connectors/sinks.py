"""Ready-made sinks: a task, a fork-join queue, a view, an external effect.

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

A task is enqueued, an item inserted or a source of views saved exactly once for each record, by the
commit that takes the record out of the stream. An effect outside of Datastore happens AT LEAST
ONCE. Repetitions have the same `record.id`, which the other side can use to detect them.

Records arrive at a sink in no particular order. `StreamTest.sink_output` returns its results.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Generic, TypeVar

from google.cloud import ndb

from rollforward import outbox
from rollforward.app_code import run_app
from rollforward.fork_join import ForkJoin
from rollforward.materialized_views import ViewGroup
from rollforward.runtime.clients import Clients
from rollforward.streams.model.computation import KeyOf, check_plain
from rollforward.streams.model.errors import BadRecordError
from rollforward.streams.model.records import value_text
from rollforward.streams.model.sink import Sink, SinkRecord
from rollforward.tasks.declaration import Task

A = TypeVar("A")
I = TypeVar("I")  # noqa: E741  An item.


class TaskSink(Sink, Generic[A]):
    """Enqueues a task for each record, once.

    Cloud Tasks delivers a task at least once, so the task must be idempotent. `record.id`, passed
    in its arguments, can serve as its idempotency key.
    """

    max_records = 400  # Each is a row of the outbox; a commit has at most 500 writes.

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
            task: A task that is in the app's registry.
            args: Returns the task's arguments for a record.
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
            queue: A queue that is in the app's registry.
            key: Returns the key by which the queue batches, for a record's value.
            item: Returns the item for a record.
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
    """Saves a source of materialized views for each record; the views' rows are updated from it.

    Records arrive in no particular order. If several records save the same source, pass `replaces=`
    to choose which one stays. Examples are early and late panes of a window, or the latest value of
    a key.
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
            views: A view group that is in the app's registry.
            source: Returns the entity for a record, with an id derived from the record.
            replaces: Whether a new entity (second argument) replaces the stored one (first
                argument). None: always.
        """
        super().__init__(stream, name=name, key=key)
        self.views = views
        self.source = source
        self.replaces = replaces

    def make(self, record: SinkRecord) -> Any:
        """Return the source, checked."""
        source = self.source(record)
        if source.key is None or not source.key.id():
            raise BadRecordError("the source of a view must have an id when a sink saves it")
        return source

    def write(self, clients: Clients, values: Sequence[Any]) -> None:
        stored = ndb.get_multi({source.key for source in values}) if self.replaces else []
        latest = {entity.key: entity for entity in stored if entity is not None}
        to_save = {}
        for source in values:
            current = latest.get(source.key)
            if current is None or self.replaces is None or self.replaces(current, source):
                latest[source.key] = to_save[source.key] = source
        if to_save:
            self.views.save_in_transaction(clients, *to_save.values())


class EffectSink(Sink):
    """Calls an external effect for each record: AT LEAST ONCE, not exactly once.

    A task calls the effect with one record. It calls again if the effect raised, or if its outcome
    is unknown, with the same `record.id`. Pass that to the other side (a payment's idempotency key,
    a message's id), or make the effect idempotent. After `max_attempts` failures it is a dead task.

    The source calls a weak sink itself, immediately and without a task, before the record is
    durable. So it may be called for a record whose push failed. An effect that does not complete
    within a second becomes durable, and a task calls it.
    """

    max_records = TaskSink.max_records
    idempotent = True  # Delivery at least once requires it.

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
            effect: A function of the clients and a record, whose `id` is the same in each attempt.
            queue: The Cloud Tasks queue of its tasks.
            weak: Call it before the record is durable. Allowed for source streams, and for streams
                that only weak computations write.

        Raises:
            TypeError: the effect is a generator or a coroutine, which a call would not run.
        """
        super().__init__(stream, name=name, key=key)
        check_plain(self.name, effect)
        self.weak = weak
        self.effect = effect
        self.queue = queue
        self.effect_attempts = max_attempts

    @cached_property
    def task(self) -> Task[SinkRecord]:
        """The task that calls the effect."""
        version = f"/{self.version}" if self.version > 1 else ""
        path = f"/tasks/streams/{self.pipeline}/{self.name}{version}"
        return Task(path, self.queue, SinkRecord, self.act, self.effect_attempts)

    @property
    def tasks(self) -> Sequence[Task[Any]]:
        return (self.task,)

    def make(self, record: SinkRecord) -> SinkRecord:
        """Return the arguments of the task, checked.

        Raises:
            BadRecordError: its value is not JSON, as the arguments of a task are; a codec may have
                decoded it.
        """
        if record.stream in self.codecs.by_stream:
            value_text(record.value)
        self.task.message(record)
        return record

    def act(self, clients: Clients, record: SinkRecord) -> None:
        run_app(self.effect, clients, record)

    def write(self, clients: Clients, values: Sequence[SinkRecord]) -> None:
        for record in values:
            outbox.enqueue(clients, self.task, record)
