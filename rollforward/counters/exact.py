"""Exact increments: concurrent increments of one process share one commit.

Actions after a failed commit, by its error:

ALREADY_EXISTS   some requests were counted before: those with receipts are answered, the others are
                 committed again
NOT_FOUND        a shard was drained: read the shard map, and commit again
ABORTED          a race was lost: commit to another shard, after a pause
refused          (INVALID_ARGUMENT ...) it can never succeed: its callers get OutcomeUnknownError
any other        it may take effect, now or later. One of its receipts proves all of it. Without
                 one, requests with idempotency keys are committed again: the receipt lets only one
                 commit succeed. Callers without keys get OutcomeUnknownError.
"""

from __future__ import annotations

import contextlib
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

from google.api_core import exceptions as rpc_errors
from google.cloud import ndb

from rollforward.counters.commits import Attempt, receipt_of, write
from rollforward.counters.contention import BUSY, GROW, RUSH
from rollforward.counters.entities import CounterReceipt, due_at, shard_key
from rollforward.counters.increments import Counted, IncrementRequest
from rollforward.counters.resize import Resizer
from rollforward.counters.shard_maps import ShardMap, ShardMaps
from rollforward.datastore.transactions import TRANSIENT
from rollforward.runtime import Clients, naive_utc
from rollforward.runtime.errors import OutcomeUnknownError
from rollforward.runtime.idempotency import RequestGroup, unknown_outcome

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 8
PAUSE_S = 0.01
PAUSE_FACTOR = 2.0
# Errors after which the next attempt differs, so it need not wait.
AT_ONCE = (rpc_errors.AlreadyExists, rpc_errors.NotFound)
# No further commit begins this long after the first one, since the caller waits.
LAST_ATTEMPT_AFTER = timedelta(seconds=10)


class ExactIncrements:
    """Commits increments of one declaration, in one process."""

    def __init__(
        self, clients: Clients, shard_maps: ShardMaps, wake: Callable[[Clients, ShardMap], None]
    ) -> None:
        """Commit nothing yet.

        Args:
            wake: Called with a counter that needs draining, or may shrink.
        """
        self._clients = clients
        self._shard_maps = shard_maps
        self._resizer = Resizer(shard_maps)
        self._wake = wake

    def __call__(self, requests: Sequence[IncrementRequest]) -> list[Counted | Exception]:
        """Commit requests together; return an answer for each."""
        group = _Group(self._clients, self._shard_maps, requests)
        began, error = self._clients.clock.now(), None
        for retry in range(MAX_ATTEMPTS):
            if retry:
                if self._clients.clock.now() - began > LAST_ATTEMPT_AFTER:
                    break
                self._pause(retry, error)
            error = self._try(group)
            if not group.open() or not isinstance(error, (*AT_ONCE, *TRANSIENT)):
                break
        if group.doubtful and group.is_in_doubt():
            with contextlib.suppress(rpc_errors.GoogleAPIError):
                group.lookup()
        group.fail_all(error)
        return group.all_results()

    def _try(self, group: _Group) -> Exception | None:
        """Make one commit; requests that it leaves open must be retried."""
        try:
            shard_maps = self._shard_maps.get(self._clients, group.keys())
        except rpc_errors.GoogleAPIError as unread:
            return unread
        attempt = group.attempt(shard_maps)
        began = self._clients.clock.now()
        error: Exception | None = None
        try:
            write(self._clients, attempt)
            group.accept(attempt)
        except rpc_errors.AlreadyExists as exists:
            group.doubt(attempt)
            error = exists
        except rpc_errors.NotFound as gone:
            self._shard_maps.forget(list(shard_maps))
            return gone
        except rpc_errors.Aborted as aborted:
            group.conflicts += 1
            error = aborted
        except rpc_errors.GoogleAPIError as unknown:
            group.find_out(attempt, unknown)
            return unknown
        took_s = (self._clients.clock.now() - began).total_seconds()
        self._observe(
            group, list(shard_maps.values()), took_s, isinstance(error, rpc_errors.Aborted)
        )
        return error

    def _pause(self, retry: int, error: Exception | None) -> None:
        """Wait a moment, unless the next attempt differs."""
        if not isinstance(error, AT_ONCE):
            longest_s = PAUSE_S * PAUSE_FACTOR**retry
            self._clients.clock.sleep(self._clients.random.uniform(longest_s / 3, longest_s))

    def _observe(
        self, group: _Group, shard_maps: Sequence[ShardMap], took_s: float, is_lost: bool
    ) -> None:
        """Adapt the numbers of shards to the contention of a commit.

        Its errors are logged, not raised: a caller would repeat counted increments.
        """
        contended = [
            shard_map.contention.record(took_s, is_lost=is_lost) for shard_map in shard_maps
        ]
        if any(contended) and not is_lost:
            group.conflicts += 1
        for shard_map in shard_maps:
            if is_lost:
                shard_map.offset = self._clients.random.randrange(shard_map.shards)
            try:
                if self._follow(shard_map):
                    return  # One change for each commit, since callers wait.
            except Exception as error:
                log.warning("the shards of %s stay as they are: %r", shard_map.key, error)

    def _follow(self, shard_map: ShardMap) -> bool:
        """Change the number of a counter's shards, if that is due; return whether it was."""
        settings, verdict = self._shard_maps.settings, shard_map.contention.verdict()
        if shard_map.is_pinned or settings.min_shards == settings.max_shards:
            verdict = None
        is_below = shard_map.shards < settings.min_shards and not shard_map.is_pinned
        is_full = shard_map.shards >= settings.max_shards
        if is_below or (verdict in (GROW, RUSH) and not is_full):
            self._resizer.grow(self._clients, shard_map, is_rush=verdict == RUSH)
        elif verdict in (BUSY, GROW, RUSH):
            self._resizer.keep(self._clients, shard_map)
        elif shard_map.due is not None and due_at(shard_map.due) <= naive_utc(
            self._clients.clock.now()
        ):
            shard_map.due = None  # Woken once; the sweep wakes it, too.
            self._wake(self._clients, shard_map)
        else:
            return False
        return True


class _Group(RequestGroup[IncrementRequest, Counted]):
    """Requests that are committed together."""

    def __init__(
        self, clients: Clients, shard_maps: ShardMaps, requests: Sequence[IncrementRequest]
    ) -> None:
        self.clients = clients
        self.name = shard_maps.settings.name
        super().__init__(requests, [request.receipt_key(self.name) for request in requests])
        self.doubtful: list[Attempt] = []
        self.conflicts = 0

    def keys(self) -> list[str]:
        """Return the counters of the open requests."""
        return list(dict.fromkeys(key for i in self.open() for key in self.requests[i].deltas))

    def attempt(self, shard_maps: Mapping[str, ShardMap]) -> Attempt:
        """Return one commit of all open requests: a shard for each counter."""
        id_ = self.clients.new_id()
        members = self.open()
        deltas: dict[str, int] = defaultdict(int)
        for i in members:
            for key, delta in self.requests[i].deltas.items():
                deltas[key] += delta
        shards = {
            shard_key(self.name, key, shard_maps[key].next_shard()): delta
            for key, delta in deltas.items()
        }
        keyed = [i for i in members if self.requests[i].idempotency_key is not None]
        receipts = [receipt_of(self.clients, self.name, self.requests[i], id_) for i in keyed]
        return Attempt(id_, members, shards, receipts)

    def accept(self, attempt: Attempt) -> None:
        """Answer the requests of a committed attempt."""
        for i in attempt.members:
            if not isinstance(self.answers.get(i), Counted):
                self.answers[i] = Counted(conflicts=self.conflicts)

    def lookup(self) -> None:
        """Answer the requests that receipts prove; one proves all of its attempt."""
        keys = [key for key, i in self.firsts.items() if not self._is_counted(i)]
        for key, receipt in zip(keys, ndb.get_multi(keys), strict=True):
            attempt = next((a for a in self.doubtful if a.matches(receipt)), None)
            if attempt is not None:
                self.accept(attempt)
            elif receipt is not None:
                self.find_stored(key, receipt)

    def doubt(self, attempt: Attempt) -> None:
        """Find the receipts that blocked a commit. They may be its own, after a lost reply."""
        self.doubtful.append(attempt)
        with contextlib.suppress(rpc_errors.GoogleAPIError):
            self.lookup()

    def find_out(self, attempt: Attempt, error: Exception) -> None:
        """Find out whether a commit without a reply took effect."""
        if attempt.receipts:
            self.doubt(attempt)
        unguarded = [i for i in attempt.members if self.requests[i].idempotency_key is None]
        self._reject([i for i in unguarded if i not in self.answers], error)

    def is_in_doubt(self) -> bool:
        """Return whether a request with an idempotency key has no certain answer."""
        return any(not self._is_counted(i) for i in self.firsts.values())

    def fail_all(self, error: Exception | None) -> None:
        self._reject(self.open(), error)

    def duplicate_of(self, i: int, receipt: CounterReceipt) -> Counted | Exception:
        return self._duplicate(i, receipt.digest)

    def repeated(self, i: int, first: int, answer: Counted) -> Counted | Exception:
        return self._duplicate(i, self.requests[first].digest)

    def _duplicate(self, i: int, digest: str) -> Counted | Exception:
        request = self.requests[i]
        return Counted(is_duplicate=True) if request.digest == digest else request.different()

    def _reject(self, members: Sequence[int], error: Exception | None) -> None:
        for i in members:
            self.answers[i] = unknown_outcome(error)

    def _is_counted(self, i: int) -> bool:
        answer = self.answers.get(i)
        return answer is not None and not isinstance(answer, OutcomeUnknownError)
