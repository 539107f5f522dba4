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
from rollforward.datastore.transactions import current_transaction, is_in_transaction
from rollforward.fork_join import ForkJoin
from rollforward.fork_join.items import check_key
from rollforward.runtime import Clients, naive_utc
from rollforward.runtime.group_commit import GroupCommit
from rollforward.tasks import Task

log = logging.getLogger(__name__)

Kept = Literal["exact", "gathered", "in_memory"]

NAME = re.compile(r"[a-z][a-z0-9-]{0,39}")
PERIOD_S = 1.0
FLUSH_INTERVAL_S = 0.25
CALM_S = 60.0
# Of one commit of increments.
MAX_GROUP_CALLS = 400
MAX_GROUP_ROWS = 450
MAX_GROUP_WAIT_S = 0.05
# A commit waits so long for others, if it has company, and as long as they keep coming.
LINGER_S = 0.008
# Counters that one sweep has settled; the next one goes on.
MAX_SETTLED = 200


class NotShardedError(TypeError):
    """This counter is gathered or kept in memory: it has no shards."""


class NotGatheredError(TypeError):
    """This counter is exact: its increments are commits of their own."""


@dataclass(frozen=True)
class Settle:
    """Which counter to shrink, if it is due, and to drain."""

    key: Annotated[str, pydantic.Field(max_length=1200)]
    number: int = 0


@dataclass(frozen=True)
class ShardStatus:
    """The shards of a counter: how many are written to, and what each of those that exist holds."""

    shards: int
    counts: Sequence[int]
    is_pinned: bool = False

    @property
    def total(self) -> int:
        return sum(self.counts)

    @property
    def draining(self) -> int:
        return len(self.counts) - self.shards


class Counter:
    """A declared counter: any number of totals, each under a key."""

    def __init__(
        self,
        name: str,
        kept: Kept = "exact",
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
            name: Stands in keys and routes: never change it.
            kept: "exact": in shards, which are written when the increment returns. "gathered": by a
                fork-join queue. "in_memory": in the process, then by the queue. A deployment may
                change it; then an increment repeated under its idempotency key counts again.
            queue: The Cloud Tasks queue of its tasks.
            min_shards, max_shards: Of an exact counter's key. Between them the number follows the
                conflicts that are measured; equal, it stays.
            calm_s: Seconds without conflicts before there are fewer shards.
            period_s: How long a batch of gathered increments stays open.
            flush_interval_s: How often a process stores what it has in memory.

        Raises:
            ValueError: it cannot be so.
        """
        if not NAME.fullmatch(name):
            raise ValueError(f"a counter's name is of a-z, 0-9 and -, 40 at most, not {name!r}")
        if kept not in get_args(Kept):
            raise ValueError(f"a counter is kept {', '.join(get_args(Kept))}, not {kept!r}")
        if not 1 <= min_shards <= max_shards <= MAX_SHARDS or not calm_s > 0:
            raise ValueError(f"a counter has 1 to {MAX_SHARDS} shards, and more than 0 s of calm")
        self.name = name
        self.kept = kept
        self._settings = ShardSettings(name, min_shards, max_shards, calm_s)
        self._gathered = (
            None
            if kept == "exact"
            else GatheredIncrements(
                name,
                queue=queue,
                period_s=period_s,
                flush_interval_s=flush_interval_s if kept == "in_memory" else None,
            )
        )
        self.settle_task = Task(f"/tasks/counters/{name}/settle", queue, Settle, self._settle)

    @property
    def tasks(self) -> Sequence[Task[Any]]:
        """What has to be mounted."""
        return () if self._gathered else (self.settle_task,)

    @cached_property
    def fork_join(self) -> ForkJoin[Any] | None:
        """The queue that gathers its increments; None: it is exact."""
        return self._gathered.fork_join if self._gathered else None

    # Increment

    def increment(
        self, clients: Clients, key: str, delta: int = 1, *, idempotency_key: str | None = None
    ) -> Counted:
        """Add to a counter; a negative delta takes away.

        An exact counter has it when this returns. A gathered one will have it after its batch.

        Args:
            key: Which of its totals.
            delta: At most 10**12 either way. A total may be negative.
            idempotency_key: Makes it count once, however often it is asked for within 32 days. With
                one it is never kept in memory.

        Raises:
            BadItemError, DifferentItemError, UnknownTaskError: nothing was counted.
            RuntimeError: in a transaction: it would count even if that is rolled back, and once
                more each time that its body runs again. Nothing was counted.
            OutcomeUnknownError: try again, with the same idempotency key; without one it may count.
        """
        return self._add(clients, increment_request({key: delta}, idempotency_key))

    def increment_many(
        self, clients: Clients, deltas: Mapping[str, int], *, idempotency_key: str | None = None
    ) -> Counted:
        """Add to several counters, at most 100: an exact one counts all of it or nothing.

        Of the others each counts for itself. So repeat what raises, with its idempotency key, which
        belongs to the whole call. Errors are those of `increment`.
        """
        return self._add(clients, increment_request(deltas, idempotency_key, is_many=True))

    def increment_in_transaction(self, clients: Clients, deltas: Mapping[str, int]) -> None:
        """Add to gathered counters in the transaction that this code runs in.

        Like every effect of a transaction that may run again after a lost reply, it needs a
        proof of the body's own that it was not done before.

        Raises:
            NotGatheredError: an exact counter is incremented by commits of its own.
            NoTransactionError: this is not the body of `transact`.
            BadItemError, UnknownTaskError: nothing of it counts.
        """
        self._gathering().add_in_transaction(clients, increment_request(deltas, None, is_many=True))

    def begin_in_transaction(self, totals: Mapping[str, int]) -> None:
        """Give new gathered counters what they begin with, in the transaction that this code runs
        in: what an import brings is counted in bulk. A counter that was incremented before would
        lose what it has.

        Raises:
            NotGatheredError: an exact counter has shards.
            NoTransactionError: this is not the body of `transact`.
        """
        current_transaction()
        for key in totals:
            check_key(key)
        self._gathering().begin(totals)

    def _add(self, clients: Clients, each: IncrementRequest) -> Counted:
        if is_in_transaction():
            raise RuntimeError(
                f"increment {self.name!r} after the commit, not in the transaction; a gathered "
                "counter joins a transaction by increment_in_transaction"
            )
        if self._gathered:
            return self._gathered.add(clients, each)
        self.settle_task.check_registered(clients)
        return self._group_commit(clients)(each)

    def flush(self, clients: Clients) -> None:
        """Store what this process has in memory of this counter."""
        if self._gathered:
            self._gathered.flush(clients)

    # Read

    def total(self, clients: Clients, key: str, *, max_age_s: float = 0.0) -> Total:
        """Return a counter's total.

        Args:
            max_age_s: How old it may be. 0: it is read now, from Datastore. Else memcached may
                have it, for all processes together.
        """
        return self.totals(clients, [key], max_age_s=max_age_s)[key]

    def totals(
        self, clients: Clients, keys: Sequence[str], *, max_age_s: float = 0.0
    ) -> dict[str, Total]:
        """Return the totals of some counters, by key; see `total`."""
        for key in keys:
            check_key(key)
        found: dict[str, Total] = {}
        if max_age_s > 0:
            cached = {key: cached_total(clients, self.name, key, max_age_s) for key in keys}
            found = {key: total for key, total in cached.items() if total is not None}
        began = clients.clock.now()
        read = self._read(clients, list(dict.fromkeys(key for key in keys if key not in found)))
        for key, value in read.items():
            found[key] = Total(value)
            if max_age_s > 0:
                cache_total(clients, self.name, key, value, began, max_age_s)
        return found

    def _read(self, clients: Clients, keys: Sequence[str]) -> dict[str, int]:
        reader = ShardReader(clients.datastore, ShardMaps.of(clients, self._settings))
        if self._gathered:
            totals = self._gathered.totals(keys)
        else:
            counters = reader.read(keys).items()
            totals = {key: shards.total for key, shards in counters if shards.config is not None}
        missing = [key for key in keys if key not in totals]
        if missing:
            totals |= read_elsewhere(clients.datastore, reader, self.name, missing)
        return totals

    def status(self, clients: Clients, key: str) -> ShardStatus:
        """Return the shards of an exact counter, as they are now.

        Raises:
            NotShardedError: it has none.
        """
        self._check_sharded()
        found = ShardReader(clients.datastore, ShardMaps.of(clients, self._settings)).read([key])[
            key
        ]
        if found.config is None:
            return ShardStatus(0, ())
        return ShardStatus(found.config.shards, found.counts, bool(found.config.is_pinned))

    # Shards

    def resize(self, clients: Clients, key: str, shards: int | None) -> None:
        """Give a counter so many shards, which then stay; None: they follow conflicts again.

        Raises:
            NotShardedError: it has none.
            UnknownTaskError: no registry has this counter; nothing was changed.
            ValueError: there cannot be so many.
        """
        self._check_sharded()
        self.settle_task.check_registered(clients)
        check_key(key)
        if shards is not None and not 1 <= shards <= MAX_SHARDS:
            raise ValueError(f"a counter has 1 to {MAX_SHARDS} shards, not {shards}")
        shard_maps = ShardMaps.of(clients, self._settings)
        shard_map = Resizer(shard_maps).set(clients, key, shards)
        if shard_map.due is not None:
            try:
                self._wake(clients, shard_map)
            except rpc_errors.GoogleAPIError as error:
                log.warning("%s of %s waits for the sweep: %s", key, self.name, error)

    def sweep(self, clients: Clients) -> int:
        """Have counters drained and shrunk that are due; return how many."""
        if self._gathered:
            return 0
        now = naive_utc(clients.clock.now())
        due = due_configs(self.name, now).fetch(MAX_SETTLED, keys_only=True)
        self.settle_task.enqueue_many(clients, [Settle(key_of_config(key)) for key in due])
        return len(due)

    def _settle(self, clients: Clients, args: Settle) -> None:
        if Resizer(ShardMaps.of(clients, self._settings)).settle(clients, args.key):
            self.settle_task.enqueue(clients, replace(args, number=args.number + 1))

    def _wake(self, clients: Clients, shard_map: ShardMap) -> None:
        """Create a task for a counter that is due: one, whoever finds it."""
        name = (self.name, shard_map.key, shard_map.generation, shard_map.due or "")
        self.settle_task.enqueue(clients, Settle(shard_map.key), name=name)

    # What this process has

    def _group_commit(self, clients: Clients) -> GroupCommit[IncrementRequest, Counted]:
        shard_maps = ShardMaps.of(clients, self._settings)
        return clients.process_state.get_or_create(
            f"counters:commits:{self.name}",
            lambda: GroupCommit(
                ExactIncrements(clients, shard_maps, self._wake),
                max_calls=MAX_GROUP_CALLS,
                max_bytes=MAX_GROUP_ROWS,
                size=lambda each: len(each.deltas) + 1,
                max_wait_s=MAX_GROUP_WAIT_S + 2 * LINGER_S,
                linger_s=LINGER_S,
                gap_s=LINGER_S / 4,
            ),
        )

    def _gathering(self) -> GatheredIncrements:
        if self._gathered is None:
            raise NotGatheredError(f"{self.name} is exact: only gathered ones join a transaction")
        return self._gathered

    def _check_sharded(self) -> None:
        if self._gathered:
            raise NotShardedError(f"{self.name} is kept {self.kept}: only exact ones have shards")
