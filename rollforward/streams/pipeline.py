"""A pipeline, as an app uses it."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import pydantic

from rollforward import outbox
from rollforward.datastore.transactions import current_transaction
from rollforward.runtime.clients import Clients
from rollforward.streams.driver import TICKS_QUEUE, Engine
from rollforward.streams.exchange.ingest import IngestRequest, IngestResult, incoming_record, ingest
from rollforward.streams.exchange.pulling import pull_wake
from rollforward.streams.graph.declaration import Declaration
from rollforward.streams.graph.environment import Environment
from rollforward.streams.graph.head import read_head
from rollforward.streams.inspection import dead_letters, queryable_state, status, topology_status
from rollforward.streams.inspection.dead_letters import DeadLetter
from rollforward.streams.inspection.status import Status
from rollforward.streams.inspection.topology_status import Topology
from rollforward.streams.model.bundle import REPLAY
from rollforward.streams.model.errors import BackpressureError, BadRecordError
from rollforward.streams.model.records import FOREVER, check_time, encoded_bytes, value_text
from rollforward.streams.model.slots import SLOTS
from rollforward.streams.model.sources import PullSource, PushSource
from rollforward.streams.scaling.resharding import merge, split, split_by_keys
from rollforward.streams.storage.remote_calls import CreateTasks, Key, RepeatedError, Steps
from rollforward.streams.storage.schema import OUTBOX
from rollforward.streams.topology import changes
from rollforward.tasks.declaration import Task
from rollforward.tasks.errors import Retry

log = logging.getLogger(__name__)

MAX_PUSHED = 500
MAX_PUSHED_BYTES = 2_000_000
MAX_ID_CHARS = 200


@dataclass(frozen=True)
class PushedRecord:
    """A record that is pushed: an id of its own, its value, and its time."""

    id: str
    value: Any
    timestamp_ms: int


@dataclass(frozen=True)
class Accepted:
    """What was let in: how many records, how many of them late, and the source's watermark."""

    records: int
    late: int
    watermark: int


class Pipeline(Declaration):
    """Computations over streams of keyed records; a part of an app's registry."""

    # What comes in

    def push(
        self,
        clients: Clients,
        stream: str,
        records: Sequence[PushedRecord],
        *,
        process: str = "",
        watermark: int | None = None,
    ) -> Accepted:
        """Let up to 500 records in; they are durable when this returns.

        It may be repeated: a record whose id was accepted within the source's `dedup` is dropped.

        Args:
            process: Who pushes; one of the source's processes.
            watermark: No record before this time is still to come from this process. None: it
                follows the latest record, at the source's `disorder`.

        Raises:
            UnknownStreamError: there is no such source, or no such process.
            BadRecordError: this cannot be let in, and why. Only of what one commit cannot hold some
                may be in.
            BackpressureError: the source has to wait. Push the same again.
            Retry, Unavailable: repeat it; some of it may have been let in.
        """
        _check_push(self, stream, process)
        _check_pushed(records)
        engine = Engine(clients, self)
        incoming = [
            incoming_record(engine.environment, stream, each.value, each.timestamp_ms, each.id)
            for each in records
        ]
        if sum(len(each.text) for each in incoming) > MAX_PUSHED_BYTES:
            raise BadRecordError(f"one push has at most {MAX_PUSHED_BYTES} bytes of values")
        if watermark is not None and not 0 <= watermark <= FOREVER:
            raise BadRecordError(f"a watermark is a time, or FOREVER, not {watermark}")
        request = IngestRequest(stream, process, incoming, watermark)
        result: IngestResult = engine.run(ingest(engine.environment, request))
        return Accepted(result.records, result.late, result.found.body.watermark)

    def push_in_transaction(
        self, clients: Clients, stream: str, value: Any, timestamp_ms: int, *, process: str = ""
    ) -> None:
        """Let a record in if, and only if, the transaction that this code runs in is committed.

        It comes in once, whenever and however often its task is delivered: a row of the outbox is
        its receipt, and goes with the commit that lets it in.

        Raises:
            NoTransactionError: this is not the body of `transact`.
            UnknownStreamError, BadRecordError: nothing was let in.
        """
        _check_push(self, stream, process)
        value_text(value)
        check_time(timestamp_ms)
        transaction = current_transaction()
        id_ = f"{transaction.id}.{transaction.count(f'streams {self.name}')}"
        outbox.enqueue_with_ack(
            clients,
            push_task(self),
            lambda unacked: PushLater(stream, process, id_, value, timestamp_ms, unacked),
            tag=f"streams/{self.name}/{stream}",
        )

    def close(self, clients: Clients, stream: str, *, process: str = "") -> None:
        """Say that no further record comes from a process of a source.

        All timers fire when all processes have closed.

        Raises:
            UnknownStreamError: there is no such source.
        """
        self.push(clients, stream, [], process=process, watermark=FOREVER)

    def pull(self, clients: Clients, stream: str) -> None:
        """Have a pull source read, by a task, until it has no more for now.

        Raises:
            UnknownStreamError: there is no such source.
            BadRecordError: it is pushed.
        """
        if not isinstance(self.source(stream), PullSource):
            raise BadRecordError(f"{stream} is pushed: there is nothing to pull")
        engine = Engine(clients, self)
        engine.run(_begin_pull(engine.environment, stream))

    # How it is cut into intervals

    def split(self, clients: Clients, computation: str, slot: int) -> None:
        """Cut the interval of a slot in two, of which the second begins there, while all goes on.

        Args:
            slot: One of 65,536, to which the keys are hashed.

        Raises:
            UnknownStreamError: there is no such computation.
            BadLayoutError: an interval begins there already, there are 64, or it is a sink's.
            Retry, Unavailable: repeat it; it may have been done.
        """
        engine = Engine(clients, self)
        engine.run(split(engine.environment, computation, slot))

    def split_by_keys(self, clients: Clients, computation: str, keys: Iterable[str]) -> int | None:
        """Cut the interval that has most of some keys in the middle of them, while all goes on.

        Returns:
            The slot at which the second half begins; None: no interval has two of these keys.

        Raises:
            UnknownStreamError: there is no such computation.
            BadLayoutError: there are 64 intervals, or it is a sink's.
            Retry, Unavailable: repeat it; it may have been done.
        """
        engine = Engine(clients, self)
        return engine.run(split_by_keys(engine.environment, computation, keys))

    def merge(self, clients: Clients, computation: str, slot: int) -> None:
        """Make the interval that begins at a slot a part of the one before it.

        Raises:
            UnknownStreamError: there is no such computation.
            BadLayoutError: no interval begins there, it is the first one, or a sink's.
            Retry, Unavailable: repeat it; it may have been done.
        """
        engine = Engine(clients, self)
        engine.run(merge(engine.environment, computation, slot))

    # Which computations run

    def attach(self, clients: Clients, computation: str, *, version: int | None = None) -> None:
        """Have a computation run from here on, while all goes on.

        It gets each record that its senders write once they know of it, and none from before; its
        watermark begins at that of what it reads. A stream that only it reads begins with it.

        Args:
            version: One that this code has; None: the latest of them.

        Raises:
            UnknownStreamError: this code has no such computation, or version.
            TopologyError: it cannot run here, or another version of it does.
            Retry, Unavailable: repeat it; it may have been done.
        """
        engine = Engine(clients, self)
        engine.run(changes.attach(engine.environment, computation, version))

    def replace(self, clients: Clients, computation: str, *, version: int | None = None) -> None:
        """Have another version of a computation go on with the keys, timers and inbox of one.

        The version that runs may be an earlier or a later one. Each interval goes over to the other
        one between two batches; stored states are read by its `load`, one by one as they are used.

        Args:
            version: One that this code has; None: the latest of them.

        Raises:
            UnknownStreamError: no such computation runs, or this code has no such version.
            UnreadableStateError: the version cannot read a state that is stored; all goes on.
            TopologyError: it cannot take the other's place, or not now.
            Retry, Unavailable: repeat it; it may have been done.
        """
        engine = Engine(clients, self)
        engine.run(changes.replace(engine.environment, computation, version))

    def detach(self, clients: Clients, computation: str, *, discard: bool = False) -> None:
        """Have a computation stop: nothing more is sent to it, and its states are deleted.

        Args:
            discard: At once; what waits for it, and its timers, are dropped, and counted. If not,
                it works on what waits, and all its timers fire first, as at the end of its inputs.

        Raises:
            UnknownStreamError: there is no such computation.
            TopologyError: another one reads what only it writes, or it is the last one.
            Retry, Unavailable: repeat it; it may have been done.
        """
        engine = Engine(clients, self)
        engine.run(changes.detach(engine.environment, computation, discard=discard))

    def topology(self, clients: Clients, *, snapshot: Status | None = None) -> Topology:
        """Return which computations run, in which version, and how far changes have come.

        Args:
            snapshot: A status that was read just now: what it was read from is not read again.
        """
        engine = Engine(clients, self)
        head = None if snapshot is None or snapshot.snapshot is None else snapshot.snapshot.head
        return engine.run(topology_status.topology(engine.environment, head))

    # What can be read

    def state(self, clients: Clients, computation: str, key: str) -> dict[str, Any]:
        """Return the state of a key as it was last committed; empty: it has none.

        Raises:
            UnknownStreamError: there is no such computation.
        """
        engine = Engine(clients, self)
        return engine.run(queryable_state.state(engine.environment, computation, key))

    def states_of(
        self,
        clients: Clients,
        computation: str,
        keys: Iterable[str],
        *,
        snapshot: Status | None = None,
    ) -> dict[str, dict[str, Any]]:
        """Return the states of some keys, by key; those that have none are left out.

        Args:
            snapshot: A status that was read just now: what it was read from is not read again.

        Raises:
            UnknownStreamError: there is no such computation.
        """
        engine = Engine(clients, self)
        rows = None if snapshot is None else snapshot.snapshot
        return engine.run(queryable_state.states_of(engine.environment, computation, keys, rows))

    def states(self, clients: Clients, computation: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the keys of a computation with their states, slab by slab, in no order.

        Raises:
            UnknownStreamError: there is no such computation.
        """
        engine, slot = Engine(clients, self), 0
        while slot < SLOTS:
            found, slot = engine.run(queryable_state.states(engine.environment, computation, slot))
            yield from found.items()

    def status(self, clients: Clients) -> Status:
        """Return how far the pipeline is: watermarks, backlog and counts."""
        engine = Engine(clients, self)
        return engine.run(status.status(engine.environment))

    # Dead letters

    def dead_letters(self, clients: Clients, *, limit: int = 100) -> list[DeadLetter]:
        """Return records and timers that have failed too often."""
        engine = Engine(clients, self)
        return engine.run(dead_letters.dead_letters(engine.environment, limit))

    def replay(self, clients: Clients, dead_letter: str) -> bool:
        """Work on a dead record or timer again, as a late one; return False if there is none.

        Raises:
            UnknownStreamError: its computation does not read its stream any more.
        """
        engine = Engine(clients, self)
        return engine.run(dead_letters.replay(engine.environment, dead_letter))

    def discard(self, clients: Clients, dead_letter: str) -> bool:
        """Delete a dead letter; return False if there is none of this id."""
        engine = Engine(clients, self)
        return engine.run(dead_letters.discard(engine.environment, dead_letter))


@dataclass(frozen=True)
class PushLater:
    """A record that a transaction has let in."""

    stream: Annotated[str, pydantic.Field(max_length=70)]
    process: Annotated[str, pydantic.Field(max_length=70)]
    id: Annotated[str, pydantic.Field(max_length=MAX_ID_CHARS)]
    value: Any
    timestamp_ms: int
    unacked: str = ""  # A row of the outbox; empty in tasks of an earlier version of the code.


@functools.cache
def push_task(pipeline: Pipeline) -> Task[PushLater]:
    """Return the task that lets in what transactions have pushed, always the same."""

    def push(clients: Clients, args: PushLater) -> None:
        _check_push(pipeline, args.stream, args.process)
        engine = Engine(clients, pipeline)
        record = incoming_record(
            engine.environment, args.stream, args.value, args.timestamp_ms, args.id
        )
        receipt = Key(OUTBOX, args.unacked) if args.unacked else None
        request = IngestRequest(args.stream, args.process, [record], receipt=receipt)
        try:
            engine.run(ingest(engine.environment, request))
        except BackpressureError as error:
            raise Retry(str(error)) from error
        except RepeatedError:
            log.info("%s was let in before", args.id)

    path = f"/tasks/streams/{pipeline.name}/push"
    return Task(path, TICKS_QUEUE, PushLater, push)


def _begin_pull(environment: Environment, stream: str) -> Steps[None]:
    yield from read_head(environment)
    found = yield from status.source_row(environment, stream)
    yield CreateTasks([pull_wake(environment, stream, found.seq, "begin", environment.new_id())])


def _check_push(pipeline: Declaration, stream: str, process: str) -> None:
    if not isinstance(pipeline.source(stream), PushSource):
        raise BadRecordError(f"{stream} is pulled: nobody pushes to it")
    pipeline.check_process(stream, process)


def _check_pushed(records: Sequence[PushedRecord]) -> None:
    if len(records) > MAX_PUSHED:
        raise BadRecordError(f"one push has at most {MAX_PUSHED} records, not {len(records)}")
    for each in records:
        if not isinstance(each.id, str) or not 0 < len(each.id) <= MAX_ID_CHARS:
            raise BadRecordError(f"an id has 1 to {MAX_ID_CHARS} characters: {each.id!r:.100}")
        if REPLAY in each.id:
            raise BadRecordError(f"an id has no character 0: {each.id!r:.100}")
        encoded_bytes("an id", each.id)
