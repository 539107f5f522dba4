"""Driver: answers the remote calls of steps on Datastore, Cloud Tasks and the cache."""

from __future__ import annotations

import copy
import functools
import json
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, Concatenate, ParamSpec, TypeVar

from google.api_core import exceptions as rpc_errors

from rollforward.datastore import bodies
from rollforward.datastore.transactions import OUTCOME_UNKNOWN
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import SystemClock
from rollforward.streams.exchange.background_steps import BackgroundSteps
from rollforward.streams.exchange.effect_pool import EffectPool
from rollforward.streams.execution.quarantine import find_culprit
from rollforward.streams.graph.declaration import Declaration
from rollforward.streams.graph.environment import Environment, StreamConfig
from rollforward.streams.model.errors import MissingCodeError
from rollforward.streams.model.sink import Sink
from rollforward.streams.model.sources import PullSource
from rollforward.streams.storage.inbox_hints import InboxHint, InboxHints
from rollforward.streams.storage.joint_commits import Offer, merge, versions_in
from rollforward.streams.storage.remote_calls import (
    Attempt,
    Call,
    CallEffects,
    ChangedError,
    Commit,
    CreateTasks,
    Delivery,
    Fetch,
    Join,
    Key,
    OutcomeUnknownError,
    Pause,
    Read,
    Scan,
    ScanKeys,
    ScanKeysMany,
    Snapshot,
    Steps,
    StoredRow,
    UnworkableError,
)
from rollforward.streams.storage.schema import CHUNK
from rollforward.streams.storage.serde import check_sizes, dump, load
from rollforward.streams.stream_tasks import Tasks
from rollforward.streams.workers.sink_commit import deliver
from rollforward.tasks.errors import Retry, Unavailable
from rollforward.tasks.waits import MIN_VERSION_WAIT_S

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

ATTEMPTS_TTL_S = 3_600
# The commit was refused: nothing was written.
CHANGED = (
    rpc_errors.FailedPrecondition,
    rpc_errors.NotFound,
    rpc_errors.AlreadyExists,
    rpc_errors.Aborted,
)
UNKNOWN = (*OUTCOME_UNKNOWN, rpc_errors.RetryError)


class Engine:
    """One pipeline on the services of one process."""

    def __init__(
        self, clients: Clients, pipeline: Declaration, config: StreamConfig | None = None
    ) -> None:
        self._clients = clients
        self._pipeline = pipeline
        self.environment = Environment(
            pipeline,
            now_ms=lambda: int(clients.clock.now().timestamp() * 1000),
            elapsed_ms=lambda: time.monotonic() * 1000,
            new_id=lambda: f"{clients.random.getrandbits(64):016x}",
            warn=log.warning,
            config=config or clients.process_state.get_or_create("streams config", StreamConfig),
            caches=clients.process_state.get_or_create(f"streams {pipeline.name}", dict),
            run_in_background=self._run_in_background,
            sign=clients.processes.sign,
            is_dead=clients.processes.is_dead,
            can_join=isinstance(clients.clock, SystemClock),
        )
        self._background = BackgroundSteps.of(clients.process_state)
        self._hints = InboxHints.of(clients.process_state)
        self._joint_commits = self._hints.joint_commits
        self._handlers: dict[type, Callable[[Any], Any]] = {
            Read: self._read,
            Snapshot: self._snapshot,
            Scan: self._scan,
            ScanKeys: self._scan_keys,
            ScanKeysMany: self._scan_keys_many,
            Commit: self._commit,
            Join: self._join,
            CreateTasks: self._create_tasks,
            Pause: self._pause,
            Attempt: self._count_attempt,
            CallEffects: self._call_effects,
            Fetch: self._fetch,
        }

    def run(self, steps: Steps[T]) -> T:
        """Run steps to their end; return their result.

        Raises:
            Retry: every attempt lost its race, or only other instances have the code.
            Unavailable: the outcome of a commit is unknown.
        """
        try:
            answer: Any = None
            call = next(steps)
            while True:
                try:
                    answer = self._handle(call)
                except Exception as error:
                    call = steps.throw(error)
                else:
                    call = steps.send(answer)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        except ChangedError as error:
            raise Retry(f"{self._pipeline.name}: a race was lost") from error
        except MissingCodeError as error:
            raise Retry(str(error), after_s=MIN_VERSION_WAIT_S) from error
        except OutcomeUnknownError as error:
            raise Unavailable(f"{self._pipeline.name}: a commit is in doubt") from error

    def _run_in_background(self, steps: Steps[Any]) -> None:
        """Run steps in a thread that the end of the process does not wait for."""
        engine = copy.copy(self)
        if isinstance(self._clients.clock, SystemClock):
            pause = {Pause: lambda call: self._background.pause(call.seconds)}
            engine._handlers = self._handlers | pause
        if not self._background.start(partial(engine.run, steps)):
            log.warning("%s is woken by its sweep: no thread starts", self._pipeline.name)

    def _handle(self, call: Call) -> Any:
        return self._handlers[type(call)](call)

    def _pause(self, call: Pause) -> None:
        if call.inbox and isinstance(self._clients.clock, SystemClock):
            self._hints.wait(call.inbox, call.seconds)
        else:
            self._clients.clock.sleep(call.seconds)

    def _read(self, call: Read) -> list[StoredRow | None]:
        names = [bodies.Name(*key) for key in call.keys]
        rows, _ = bodies.read(self._clients.datastore, names, call.at)
        return [_decoded(key, row) for key, row in zip(call.keys, rows, strict=True)]

    def _snapshot(self, call: Snapshot) -> tuple[Any, list[StoredRow | None]]:
        names = [bodies.Name(*key) for key in call.keys]
        rows, moment = bodies.read(self._clients.datastore, names)
        return moment, [_decoded(key, row) for key, row in zip(call.keys, rows, strict=True)]

    def _scan(self, call: Scan) -> list[tuple[str, StoredRow]]:
        chunks = self._hints.take(call.low, call.high, call.limit) if call.allow_partial else []
        if call.takes_offers and not self._hints.is_scan_due(call.low):
            chunks = self._with_offers(chunks, call)
        if chunks or (call.allow_empty and self._hints.is_complete(call.low)):
            return chunks
        if call.kind == CHUNK:
            self._hints.begin_scan(call.low)
        rows = bodies.scan(self._clients.datastore, call.kind, call.low, call.high, call.limit)
        if call.kind == CHUNK:
            self._hints.end_scan(call.low, {row.name for row in rows})
        chunks = [(row.name, StoredRow(load(call.kind, row.body), row.version)) for row in rows]
        return self._with_offers(chunks, call) if call.takes_offers else chunks

    def _with_offers(
        self, chunks: list[tuple[str, StoredRow]], call: Scan
    ) -> list[tuple[str, StoredRow]]:
        """Return chunks together with the offered chunks of pushes, up to the limit."""
        offered = self._joint_commits.take(call.low, call.high, call.limit - len(chunks))
        return sorted([*chunks, *offered], key=itemgetter(0)) if offered else chunks

    def _scan_keys(self, call: ScanKeys) -> list[str]:
        return bodies.first_names(
            self._clients.datastore, call.kind, call.low, call.high, call.limit, call.at
        )

    def _scan_keys_many(self, call: ScanKeysMany) -> list[list[str]]:
        ranges = [
            bodies.Range(scan.kind, scan.low, scan.high, scan.limit, scan.at) for scan in call.scans
        ]
        return bodies.first_names_of(self._clients.datastore, ranges)

    def _commit(self, call: Commit) -> list[int]:
        if call.delivery is not None:
            return self._deliver(call, call.delivery)
        offers = self._joint_commits.begin(call)
        return self._commit_jointly(call, offers) if offers else self._write(call)

    def _join(self, call: Join) -> Sequence[int] | None:
        return self._joint_commits.offer(call.commit)

    def _commit_jointly(self, call: Commit, offers: Sequence[Offer]) -> list[int]:
        """Commit a bundle with the pushes whose chunks it consumes.

        If the rows together are more than the service takes, each push commits separately.
        """
        written: dict[Key, int] | None = None
        try:
            joint = merge(call, offers)
            keys = [key for key, _ in joint.rows]
            written = dict(zip(keys, self._write(joint, call), strict=True))
        except UnworkableError as error:
            raise ChangedError(str(error)) from error
        finally:
            self._joint_commits.end(offers, written)
        return versions_in(call, written)

    def _write(self, call: Commit, own: Commit | None = None) -> list[int]:
        """Write the rows of a commit, and notify the workers of the inboxes.

        Args:
            own: The part of a joint commit that knows the rests of its chunks.
        """
        with find_culprit():
            puts = [(bodies.Name(*key), dump(key.kind, body), at) for key, body, at in call.puts]
            inserts = [(bodies.Name(*key), dump(key.kind, body)) for key, body in call.inserts]
        deletes = [(bodies.Name(*key), at) for key, at in call.deletes]
        texts = [*((key, text) for key, text, _ in puts), *inserts]
        check_sizes(((Key(*key), text) for key, text in texts), len(deletes))
        try:
            versions = bodies.commit(
                self._clients.datastore, puts=puts, inserts=inserts, deletes=deletes
            )
        except CHANGED as error:
            raise ChangedError(str(error)) from error
        except rpc_errors.InvalidArgument as error:
            raise UnworkableError(str(error)) from error
        except UNKNOWN as error:
            raise OutcomeUnknownError(str(error)) from error
        inserted = zip(call.inserts, inserts, versions[len(puts) :], strict=True)
        known = {key for key, _, _ in own.puts} if own is not None else ()
        self._hints.publish(
            [
                InboxHint(key.name, version, text, body)
                for (key, body), (_, text), version in inserted
                if key.kind == CHUNK and key not in known
            ]
        )
        return versions

    def _deliver(self, call: Commit, delivery: Delivery) -> list[int]:
        sink = self._pipeline.versions[delivery.sink]
        assert isinstance(sink, Sink)
        try:
            return deliver(self._clients, sink, delivery.values, call)
        except CHANGED as error:
            raise ChangedError(str(error)) from error
        except UNKNOWN as error:
            raise OutcomeUnknownError(str(error)) from error

    def _create_tasks(self, call: CreateTasks) -> None:
        tasks = tasks_of(self._pipeline)
        for task in tasks.all:
            task.check_registered(self._clients)
        self._clients.tasks.create_many([tasks.message(self._clients, wake) for wake in call.wakes])

    def _count_attempt(self, call: Attempt) -> int:
        cache, key = self._clients.cache, f"streams:attempt:{json.dumps(call.subject)}"
        if cache.add(key, b"1", ATTEMPTS_TTL_S):
            return 1
        return cache.incr_existing(key, 1) or 1

    def _call_effects(self, call: CallEffects) -> tuple[int, ...]:
        pool = self._clients.process_state.get_or_create("streams effect pool", EffectPool)
        return pool.deliver_all(self._clients, self._pipeline.versions, call)

    def _fetch(self, call: Fetch) -> Any:
        source = self._pipeline.source(call.stream)
        assert isinstance(source, PullSource)
        return source.reader(call.partition)(self._clients, call.position, call.limit)


def run_steps(
    clients: Clients,
    pipeline: Declaration,
    steps_of: Callable[Concatenate[Environment, P], Steps[T]],
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """Run steps of a pipeline on the services of this process; return their result.

    Raises:
        Retry, Unavailable: as `Engine.run` does.
    """
    engine = Engine(clients, pipeline)
    return engine.run(steps_of(engine.environment, *args, **kwargs))


@functools.cache
def tasks_of(pipeline: Declaration) -> Tasks:
    """Return the tasks of a pipeline, always the same."""
    return Tasks(pipeline, run_steps)


def _decoded(key: Key, row: bodies.Row | None) -> StoredRow | None:
    return None if row is None else StoredRow(load(key.kind, row.body), row.version)
