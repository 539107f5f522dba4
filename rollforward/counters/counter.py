"""Counters: declared, incremented, read."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Literal, get_args

import pydantic
from google.api_core import exceptions as rpc_errors

from rollforward.counters.entities import MAX_SHARDS, due_configs, key_of_config
from rollforward.counters.exact import ExactIncrements
from rollforward.counters.gathered import GatheredIncrements
from rollforward.counters.increments import Counted, IncrementRequest, increment_request
from rollforward.counters.relocated import read_elsewhere
from rollforward.counters.resize import Resizer
from rollforward.counters.shard_maps import ShardMap, ShardMaps, ShardSettings
from rollforward.counters.totals import ShardReader, Total, cache_total, cached_total
from rollforward.datastore.contexts import refuse_other_namespace
from rollforward.datastore.transactions import current_transaction, is_in_transaction
from rollforward.fork_join import ForkJoin
from rollforward.fork_join.items import check_key
from rollforward.runtime import Clients, naive_utc
from rollforward.runtime.idempotency import digest_of
from rollforward.runtime.process.optional_clients import optional_clients
from rollforward.runtime.sharing.group_commit import GroupCommit
from rollforward.tasks import Task

log = logging.getLogger(__name__)

Mode = Literal["exact", "gathered", "in_memory"]

NAME = re.compile(r"[a-z][a-z0-9-]{0,39}")
PERIOD_S = 1.0
FLUSH_INTERVAL_S = 0.25
CALM_S = 60.0
# Of one commit of increments.
MAX_GROUP_CALLS = 400
MAX_GROUP_ROWS = 450
MAX_GROUP_WAIT_S = 0.05
# A commit waits this long for more increments, while they keep coming.
LINGER_S = 0.008
# Counters that one sweep settles; the next one continues.
MAX_SETTLED = 200
# The sweep creates the task of a counter that stays due once in so long.
SETTLED_AGAIN_S = 600.0


class NotShardedError(TypeError):
    """The counter is gathered or in memory: it has no shards."""


class NotGatheredError(TypeError):
    """The counter is exact: its increments are commits of their own."""


@dataclass(frozen=True)
class Settle:
    """A counter to shrink, if it is due, and to drain."""

    key: Annotated[str, pydantic.Field(max_length=1200)]
    number: int = 0


@dataclass(frozen=True)
class ShardStatus:
    """The number of shards that are written to, and the counts of all existing ones."""

    shards: int
    counts: Sequence[int]
    is_pinned: bool = False

    @property
    def total(self) -> int:
        """The sum of all shards."""
        return sum(self.counts)

    @property
    def draining(self) -> int:
        """The number of shards that are not written to any more."""
        return len(self.counts) - self.shards


class Counter:
    """A declared counter: any number of totals, each under a key."""

    def __init__(
        self,
        name: str,
        mode: Mode = "exact",
        *,
        queue: str,
        min_shards: int = 1,
        max_shards: int = 64,
        calm_s: float = CALM_S,
        period_s: float = PERIOD_S,
        flush_interval_s: float = FLUSH_INTERVAL_S,
    ) -> None:
        """Declare a counter.

        Args:
            name: Part of keys and routes: never change it.
            mode: "exact": in shards, which are written when the increment returns. "gathered": by a
                fork-join queue. "in_memory": in the process, then by the queue. A deployment may
                change it; then an increment repeated under its idempotency key counts again.
            queue: The Cloud Tasks queue of its tasks.
            min_shards, max_shards: For an exact counter's key. Between them the number follows the
                measured conflicts; if they are equal, it is fixed.
            calm_s: Seconds without conflicts before there are fewer shards.
            period_s: The time that a batch of gathered increments stays open.
            flush_interval_s: The time between two flushes of a process's memory.

        Raises:
            ValueError: an argument is out of range.
        """
        if not NAME.fullmatch(name):
            raise ValueError(f"name must be a-z, 0-9 and -, at most 40 characters, got {name!r}")
        if mode not in get_args(Mode):
            raise ValueError(f"mode must be one of {', '.join(get_args(Mode))}, got {mode!r}")
        if not 1 <= min_shards <= max_shards <= MAX_SHARDS or not calm_s > 0:
            raise ValueError(f"shards must be 1 to {MAX_SHARDS}, and calm_s must be positive")
        self.name = name
        self.mode = mode
        self.shard_bounds = (min_shards, max_shards)
        self._settings = ShardSettings(name, min_shards, max_shards, calm_s)
        self._gathered = (
            None
            if mode == "exact"
            else GatheredIncrements(
                name,
                queue=queue,
                period_s=period_s,
                flush_interval_s=flush_interval_s if mode == "in_memory" else None,
            )
        )
        self.settle_task = Task(f"/tasks/counters/{name}/settle", queue, Settle, self._settle)

    @property
    def tasks(self) -> Sequence[Task[Any]]:
        """The tasks to mount."""
        return () if self._gathered else (self.settle_task,)

    @cached_property
    def fork_join(self) -> ForkJoin[Any] | None:
        """The queue that gathers its increments; None: it is exact."""
        return self._gathered.fork_join if self._gathered else None

    # Increment

    @optional_clients
    def increment(
        self, clients: Clients, key: str, delta: int = 1, *, idempotency_key: str | None = None
    ) -> Counted:
        """Add to a counter; a negative delta takes away.

        An exact counter has it when this returns, a gathered one after its batch.

        Args:
            key: Which of its totals.
            delta: At most 10**12 either way. A total may be negative.
            idempotency_key: Makes repeated increments within 32 days count once. Then it is stored
                at once, even if the counter is in memory.

        Raises:
            BadItemError, DifferentItemError, UnknownTaskError: nothing was counted.
            RuntimeError: it runs in a transaction, whose rollback would not undo it and whose
                retries would repeat it. Nothing was counted.
            OutcomeUnknownError: retry with the same idempotency key; without one it may count.
        """
        return self._add(clients, increment_request({key: delta}, idempotency_key))

    @optional_clients
    def increment_many(
        self, clients: Clients, deltas: Mapping[str, int], *, idempotency_key: str | None = None
    ) -> Counted:
        """Add to several counters, at most 100, all or nothing if they are exact.

        Gathered counters count separately. So repeat a call that raises, with its idempotency key,
        which belongs to the whole call. Errors: as `increment`.
        """
        return self._add(clients, increment_request(deltas, idempotency_key, is_many=True))

    @optional_clients
    def increment_in_transaction(self, clients: Clients, deltas: Mapping[str, int]) -> None:
        """Add to gathered counters in the transaction that this code runs in.

        A body that runs again after a lost reply adds once. A second call of `transact` needs a
        proof of the body's own that the first one did nothing.

        Raises:
            NotGatheredError: an exact counter is incremented by commits of its own.
            NoTransactionError: this is not the body of `transact`.
            BadItemError, UnknownTaskError: nothing of it counts.
            google.api_core.exceptions.GoogleAPICallError: an attempt whose reply was lost may have
                counted.
        """
        self._gathering().add_in_transaction(clients, increment_request(deltas, None, is_many=True))

    def begin_in_transaction(self, totals: Mapping[str, int]) -> None:
        """Write the initial totals of new gathered counters in the transaction that this code runs
        in, for example of an import. An existing counter would lose its total.

        Raises:
            NotGatheredError: an exact counter has shards.
            NoTransactionError: this is not the body of `transact`.
        """
        is_in_doubt = current_transaction().doubt is not None
        checked = {check_key(key): total for key, total in totals.items()}
        self._gathering().begin(checked, is_in_doubt=is_in_doubt)

    def _add(self, clients: Clients, request: IncrementRequest) -> Counted:
        refuse_other_namespace(f"the counter {self.name}")
        if is_in_transaction():
            raise RuntimeError(
                f"increment {self.name!r} after the commit, not in the transaction; a gathered "
                "counter joins a transaction by increment_in_transaction"
            )
        if self._gathered:
            return self._gathered.add(clients, request)
        self.settle_task.check_registered(clients)
        return self._group_commit(clients)(request)

    @optional_clients
    def flush(self, clients: Clients) -> None:
        """Store the increments of this counter in this process's memory."""
        if self._gathered:
            self._gathered.flush(clients)

    # Read

    @optional_clients
    def total(self, clients: Clients, key: str, *, max_age_s: float = 0.0) -> Total:
        """Return a counter's total.

        Args:
            max_age_s: The oldest total to accept. 0: it is read now, from Datastore. Otherwise it
                may come from memcached, which all processes share.
        """
        return self.totals(clients, [key], max_age_s=max_age_s)[key]

    @optional_clients
    def totals(
        self, clients: Clients, keys: Sequence[str], *, max_age_s: float = 0.0
    ) -> dict[str, Total]:
        """Return the totals of some counters, by key; see `total`."""
        refuse_other_namespace(f"the counter {self.name}")
        keys = list(map(check_key, keys))
        totals: dict[str, Total] = {}
        if max_age_s > 0:
            cached = {key: cached_total(clients, self.name, key, max_age_s) for key in keys}
            totals = {key: total for key, total in cached.items() if total is not None}
        began = clients.clock.now()
        read = self._read(clients, list(dict.fromkeys(key for key in keys if key not in totals)))
        for key, value in read.items():
            totals[key] = Total(value)
            if max_age_s > 0:
                cache_total(clients, self.name, key, value, began, max_age_s)
        return totals

    def _read(self, clients: Clients, keys: Sequence[str]) -> dict[str, int]:
        reader = ShardReader(clients.datastore, ShardMaps.of(clients, self._settings))
        if self._gathered:
            totals = self._gathered.totals(keys)
        else:
            counters = reader.read(keys).items()
            totals = {key: shards.total for key, shards in counters if shards.config is not None}
        elsewhere = [key for key in keys if key not in totals]
        if elsewhere:
            totals |= read_elsewhere(clients.datastore, reader, self.name, elsewhere)
        return totals

    @optional_clients
    def status(self, clients: Clients, key: str) -> ShardStatus:
        """Return the shards of an exact counter, as they are now.

        Raises:
            NotShardedError: it has none.
            BadItemError: no counter can have this key.
        """
        self._check_sharded()
        key = check_key(key)
        reader = ShardReader(clients.datastore, ShardMaps.of(clients, self._settings))
        shards = reader.read([key])[key]
        if shards.config is None:
            return ShardStatus(0, ())
        return ShardStatus(shards.config.shards, shards.counts, bool(shards.config.is_pinned))

    # Shards

    @optional_clients
    def resize(self, clients: Clients, key: str, shards: int | None) -> None:
        """Fix the number of a counter's shards; None: it follows conflicts again.

        Raises:
            NotShardedError: it has none.
            UnknownTaskError: no registry has this counter; nothing was changed.
            ValueError: the number is out of range.
        """
        self._check_sharded()
        self.settle_task.check_registered(clients)
        key = check_key(key)
        if shards is not None and not 1 <= shards <= MAX_SHARDS:
            raise ValueError(f"shards must be between 1 and {MAX_SHARDS}, got {shards}")
        shard_maps = ShardMaps.of(clients, self._settings)
        shard_map = Resizer(shard_maps).set(clients, key, shards)
        if shard_map.due is not None:
            try:
                self._wake(clients, shard_map)
            except rpc_errors.GoogleAPIError as error:
                log.warning("%s of %s waits for the sweep: %s", key, self.name, error)

    def sweep(self, clients: Clients) -> int:
        """Enqueue the tasks that drain and shrink due counters; return their number."""
        if self._gathered:
            return 0
        now = clients.clock.now()
        due = due_configs(self.name, naive_utc(now)).fetch(MAX_SETTLED)
        keys = [key_of_config(config.key) for config in due]
        # A task that waits in a paused queue is not created again, one that was purged is.
        turn = int(now.timestamp() // SETTLED_AGAIN_S)
        names = [
            (self.name, digest_of(key), config.generation, config.due, turn)
            for key, config in zip(keys, due, strict=True)
        ]
        self.settle_task.enqueue_many(clients, [Settle(key) for key in keys], names=names)
        return len(due)

    def _settle(self, clients: Clients, args: Settle) -> None:
        if Resizer(ShardMaps.of(clients, self._settings)).settle(clients, args.key):
            self.settle_task.enqueue(clients, replace(args, number=args.number + 1))

    def _wake(self, clients: Clients, shard_map: ShardMap) -> None:
        """Create the task of a due counter; its name makes it one for all processes."""
        name = (self.name, digest_of(shard_map.key), shard_map.generation, shard_map.due or "")
        self.settle_task.enqueue(clients, Settle(shard_map.key), name=name)

    # State of this process

    def _group_commit(self, clients: Clients) -> GroupCommit[IncrementRequest, Counted]:
        shard_maps = ShardMaps.of(clients, self._settings)
        return clients.process_state.get_or_create(
            f"counters:commits:{self.name}",
            lambda: GroupCommit(
                ExactIncrements(clients, shard_maps, self._wake),
                max_calls=MAX_GROUP_CALLS,
                max_bytes=MAX_GROUP_ROWS,
                size=lambda request: len(request.deltas) + 1,
                max_wait_s=MAX_GROUP_WAIT_S + 2 * LINGER_S,
                linger_s=LINGER_S,
                gap_s=LINGER_S / 4,
            ),
        )

    def _gathering(self) -> GatheredIncrements:
        refuse_other_namespace(f"the counter {self.name}")
        if self._gathered is None:
            raise NotGatheredError(
                f"{self.name} is exact: only gathered counters join a transaction"
            )
        return self._gathered

    def _check_sharded(self) -> None:
        refuse_other_namespace(f"the counter {self.name}")
        if self._gathered:
            raise NotShardedError(f"{self.name} is {self.mode}: only exact counters have shards")
