"""Pipeline: the API of streams for an app."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rollforward import outbox
from rollforward.datastore.transactions import check_outside, current_transaction
from rollforward.runtime.clients import Clients
from rollforward.runtime.process.optional_clients import optional_clients
from rollforward.runtime.texts import has_unpaired_surrogate
from rollforward.streams.driver import Engine, run_steps, tasks_of
from rollforward.streams.exchange.ingest import (
    inbound_record,
)
from rollforward.streams.exchange.ingest_attempt import IngestRequest
from rollforward.streams.exchange.pulling import Partition, pull_wake
from rollforward.streams.graph.declaration import Declaration
from rollforward.streams.graph.environment import Environment
from rollforward.streams.graph.head import read_head
from rollforward.streams.inspection import dead_letters, queryable_state, status, topology_status
from rollforward.streams.inspection.dead_letters import DeadLetter
from rollforward.streams.inspection.status import Status
from rollforward.streams.inspection.topology_status import Topology
from rollforward.streams.model.codecs import encoded_of
from rollforward.streams.model.errors import (
    BadRecordError,
)
from rollforward.streams.model.records import (
    FOREVER,
    check_time,
    check_watermark,
    inbound_value,
)
from rollforward.streams.model.slots import SLOTS
from rollforward.streams.model.sources import PullSource
from rollforward.streams.pushes import (
    MAX_PUSHED_BYTES,
    Accepted,
    PushedRecord,
    PushLater,
    check_push,
    check_pushed,
    has_half_character,
    ingest_push,
    push_task,
)
from rollforward.streams.scaling.resharding import merge, split, split_by_keys
from rollforward.streams.storage.remote_calls import CreateTasks, Steps
from rollforward.streams.topology import changes


class Pipeline(Declaration):
    """Computations over streams of keyed records; a part of an app's registry."""

    # Sources

    @optional_clients
    def push(
        self,
        clients: Clients,
        stream: str,
        records: Sequence[PushedRecord],
        *,
        process: str = "",
        watermark: int | None = None,
    ) -> Accepted:
        """Push up to 500 records; they are durable when this returns.

        A push may be repeated: a record whose id was accepted within the source's `dedup` is
        dropped.

        Args:
            process: The pushing process; one of the source's processes.
            watermark: This process pushes no more records before this time. None: it follows the
                latest record, at the source's `disorder`.

        Raises:
            UnknownStreamError: the source or the process is unknown.
            BadRecordError: the push is invalid. A `PartlyAcceptedError`: only a part was accepted.
            BackpressureError: the source is paused. Repeat the same push.
            Retry, Unavailable: repeat the push; a part may have been accepted.
            UnknownTaskError: the app does not serve the pipeline, so nothing would process it.
            RuntimeError: a transaction runs here, which would not undo it.
        """
        check_push(self, stream, process)
        check_pushed(records)
        check_outside(f"push to {self.name}", "push_in_transaction")
        tasks_of(self).work.check_registered(clients)
        engine = Engine(clients, self)
        incoming = [
            inbound_record(engine.environment, stream, pushed.value, pushed.timestamp_ms, pushed.id)
            for pushed in records
        ]
        size = sum(len(record.text) for record in incoming)
        if size > MAX_PUSHED_BYTES:
            raise BadRecordError(
                f"a push must have at most {MAX_PUSHED_BYTES} bytes of values, got {size}"
            )
        if watermark is not None:
            check_watermark(watermark)
        request = IngestRequest(stream, process, incoming, watermark)
        result = ingest_push(clients, self, request)
        return Accepted(result.records, result.late, result.watermark)

    @optional_clients
    def push_in_transaction(
        self, clients: Clients, stream: str, value: Any, timestamp_ms: int, *, process: str = ""
    ) -> None:
        """Push a record if, and only if, the current transaction commits.

        It is accepted once, whenever and however often its task is delivered. A row of the outbox
        is its receipt, which the commit of the record deletes. If no running computation reads the
        stream, it waits for an hour for `attach`, and is a dead task then.

        Raises:
            NoTransactionError: this is not the body of `transact`.
            UnknownStreamError, BadRecordError: the record is invalid.
            TooLargeError: its task would have more than 100,000 bytes.
        """
        check_push(self, stream, process)
        text, value = inbound_value(self.codecs, stream, value)
        check_time(timestamp_ms)
        is_encoded = encoded_of(text) is not None or has_half_character(text)
        sent = text if is_encoded else value
        content = self.name, stream, process, str(timestamp_ms), text
        id_ = current_transaction().id_of("streams", *content)
        outbox.enqueue_with_ack(
            clients,
            push_task(self),
            lambda unacked: PushLater(
                stream, process, id_, sent, timestamp_ms, unacked, is_encoded=is_encoded
            ),
            tag=f"streams/{self.name}/{stream}",
        )

    @optional_clients
    def close(self, clients: Clients, stream: str, *, process: str = "") -> None:
        """Close a process of a source: it pushes no more records.

        All timers fire when all processes are closed.

        Raises:
            UnknownStreamError: the source is unknown.
        """
        self.push(clients, stream, [], process=process, watermark=FOREVER)

    @optional_clients
    def pull(self, clients: Clients, stream: str) -> None:
        """Create the task that reads a pull source until it has no more records for now.

        A source with partitions has one for each.

        Raises:
            UnknownStreamError: the source is unknown.
            BadRecordError: it is a push source.
        """
        if not isinstance(self.source(stream), PullSource):
            raise BadRecordError(f"{stream} is a push source: there is nothing to pull")
        run_steps(clients, self, _begin_pull, stream)

    # Intervals

    @optional_clients
    def split(self, clients: Clients, computation: str, slot: int) -> None:
        """Split the interval of a slot in two while records flow; the second begins at the slot.

        Args:
            slot: One of the 65,536 slots that keys are hashed to.

        Raises:
            UnknownStreamError: the computation is unknown.
            BadLayoutError: this is no slot, an interval begins there already, there are 64, or the
                computation is a sink whose intervals are fixed (`Sink.fixed_reason`).
            Retry, Unavailable: repeat it; it may have been done.
        """
        run_steps(clients, self, split, computation, slot)

    @optional_clients
    def split_by_keys(self, clients: Clients, computation: str, keys: Iterable[str]) -> int | None:
        """Split the interval with most of some keys at their median, while records flow.

        Returns:
            The slot at which the second half begins; None: no interval has two of the keys.

        Raises:
            UnknownStreamError: the computation is unknown.
            BadLayoutError: there are 64 intervals, or those of the computation are fixed.
            BadRecordError: a key is no text.
            Retry, Unavailable: repeat it; it may have been done.
        """
        return run_steps(clients, self, split_by_keys, computation, _checked_keys(keys))

    @optional_clients
    def merge(self, clients: Clients, computation: str, slot: int) -> None:
        """Merge the interval that begins at a slot into its predecessor.

        Raises:
            UnknownStreamError: the computation is unknown.
            BadLayoutError: no interval begins there, it is the first one, or those of the
                computation are fixed.
            Retry, Unavailable: repeat it; it may have been done.
        """
        run_steps(clients, self, merge, computation, slot)

    # Topology

    @optional_clients
    def attach(self, clients: Clients, computation: str, *, version: int | None = None) -> None:
        """Attach a computation, which runs from now on, while records flow.

        It receives only records written after its senders learn of it, and its watermark begins at
        the watermark of its inputs. A source that only it reads begins with it.

        Args:
            version: A version that this code has; None: the latest one.

        Raises:
            UnknownStreamError: this code does not have the computation, or the version.
            TopologyError: it cannot run here, or another version of it does.
            Retry, Unavailable: repeat it; it may have been done.
        """
        run_steps(clients, self, changes.attach, computation, version)

    @optional_clients
    def replace(self, clients: Clients, computation: str, *, version: int | None = None) -> None:
        """Replace the running version of a computation; keys, timers and inbox stay.

        The running version may be an earlier or a later one. Each interval switches between two
        bundles. The new version's `load` reads stored states one by one, as they are used.

        Args:
            version: A version that this code has; None: the latest one.

        Raises:
            UnknownStreamError: the computation does not run, or this code lacks the version.
            UnreadableStateError: the version cannot read a stored state; nothing was changed.
            TopologyError: it cannot take the other's place, or not now.
            Retry, Unavailable: repeat it; it may have been done.
        """
        run_steps(clients, self, changes.replace, computation, version)

    @optional_clients
    def detach(self, clients: Clients, computation: str, *, discard: bool = False) -> None:
        """Detach a computation: it gets no more records, and its states are deleted.

        Args:
            discard: Detach at once, and drop and count its pending records and timers. If not, the
                computation drains first: it processes its backlog, and all its timers fire.

        Raises:
            UnknownStreamError: the computation is unknown.
            TopologyError: another one reads what only it writes, or it is the last one.
            Retry, Unavailable: repeat it; it may have been done.
        """
        run_steps(clients, self, changes.detach, computation, discard=discard)

    @optional_clients
    def topology(self, clients: Clients, *, snapshot: Status | None = None) -> Topology:
        """Return the running computations and versions, and the progress of changes.

        Args:
            snapshot: A recent status, whose rows are not read again.
        """
        rows = None if snapshot is None else snapshot.snapshot
        head = None if rows is None else rows.head
        return run_steps(clients, self, topology_status.topology, head)

    # Queries

    @optional_clients
    def state(self, clients: Clients, computation: str, key: str) -> dict[str, Any]:
        """Return the state of a key as it was last committed; empty: it has none.

        Raises:
            UnknownStreamError: the computation is unknown.
            BadRecordError: the key is no text.
        """
        if has_unpaired_surrogate(_checked_text("a key", key)):
            self.any_version(computation)
            return {}
        return run_steps(clients, self, queryable_state.state, computation, key)

    @optional_clients
    def states_of(
        self,
        clients: Clients,
        computation: str,
        keys: Iterable[str],
        *,
        snapshot: Status | None = None,
    ) -> dict[str, dict[str, Any]]:
        """Return the states of some keys, by key, without the empty ones.

        Args:
            snapshot: A recent status, whose rows are not read again.

        Raises:
            UnknownStreamError: the computation is unknown.
            BadRecordError: a key is no text.
        """
        rows = None if snapshot is None else snapshot.snapshot
        stored = [key for key in _checked_keys(keys) if not has_unpaired_surrogate(key)]
        return run_steps(clients, self, queryable_state.states_of, computation, stored, rows)

    @optional_clients
    def states(self, clients: Clients, computation: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the keys of a computation with their states, slab by slab, in no order.

        Raises:
            UnknownStreamError: the computation is unknown.
        """
        slot = 0
        while slot < SLOTS:
            by_key, slot = run_steps(clients, self, queryable_state.states, computation, slot)
            yield from by_key.items()

    @optional_clients
    def status(self, clients: Clients) -> Status:
        """Return the progress of the pipeline: watermarks, backlogs and counts."""
        return run_steps(clients, self, status.status)

    @optional_clients
    def position(self, clients: Clients, stream: str, *, partition: str = "") -> Any:
        """Return the position of a pull source, by one read; None: it has read nothing.

        Raises:
            UnknownStreamError: there is no such source or partition.
        """
        self.check_process(stream, partition)
        [row] = run_steps(clients, self, status.source_rows, [(stream, partition)])
        return row.position

    # Dead letters

    @optional_clients
    def dead_letters(self, clients: Clients, *, limit: int = 100) -> list[DeadLetter]:
        """Return records and timers that have failed too often."""
        return run_steps(clients, self, dead_letters.dead_letters, limit)

    @optional_clients
    def replay(self, clients: Clients, dead_letter: str) -> bool:
        """Process a dead record or timer again, as a late one; return False if there is none.

        Raises:
            UnknownStreamError: its computation does not read its stream any more.
            BadRecordError: its codec cannot decode it, or this is no id.
            Retry: this code does not have its codec.
        """
        if has_unpaired_surrogate(_checked_text("the id of a dead letter", dead_letter)):
            return False
        return run_steps(clients, self, dead_letters.replay, dead_letter)

    @optional_clients
    def discard(self, clients: Clients, dead_letter: str) -> bool:
        """Delete a dead letter; return False if there is none of this id.

        Raises:
            BadRecordError: this is no id.
        """
        if has_unpaired_surrogate(_checked_text("the id of a dead letter", dead_letter)):
            return False
        return run_steps(clients, self, dead_letters.discard, dead_letter)


def _begin_pull(environment: Environment, stream: str) -> Steps[None]:
    yield from read_head(environment)
    partitions = [Partition(stream, name) for name in environment.pipeline.source(stream).processes]
    rows, id_ = (yield from status.source_rows(environment, partitions)), environment.new_id()
    wakes = [
        pull_wake(environment, partition, row, "begin", id_)
        for partition, row in zip(partitions, rows, strict=True)
    ]
    yield CreateTasks(wakes)


def _checked_keys(keys: Iterable[str]) -> list[str]:
    if isinstance(keys, str):  # Each of its letters would be a key.
        raise BadRecordError(f"keys must be several texts, got {keys!r:.100}")
    return [_checked_text("a key", key) for key in keys]


def _checked_text(subject: str, text: Any) -> str:
    if not isinstance(text, str):
        raise BadRecordError(f"{subject} must be a text, got {text!r:.100}")
    return text
