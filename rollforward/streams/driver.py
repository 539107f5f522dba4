"""Does what the workers of streams ask for, on Datastore and Cloud Tasks."""

from __future__ import annotations

import functools
import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import pydantic
from google.api_core import exceptions as rpc_errors

from rollforward.datastore import bodies
from rollforward.datastore.transactions import OUTCOME_UNKNOWN
from rollforward.runtime.clients import Clients
from rollforward.runtime.clock import SystemClock
from rollforward.runtime.messages import Message
from rollforward.streams.coordinator import tick
from rollforward.streams.exchange.effect_pool import EffectPool
from rollforward.streams.exchange.pulling import pull
from rollforward.streams.execution.quarantine import blame_records
from rollforward.streams.graph.declaration import Declaration
from rollforward.streams.graph.environment import Environment, StreamConfig
from rollforward.streams.model.errors import MissingCodeError
from rollforward.streams.model.sink import Sink
from rollforward.streams.model.sources import PullSource
from rollforward.streams.storage.inbox_hints import InboxHint, InboxHints
from rollforward.streams.storage.remote_calls import (
    Attempt,
    Call,
    CallEffects,
    ChangedError,
    Commit,
    CreateTasks,
    Delivery,
    Fetch,
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
    Wake,
)
from rollforward.streams.storage.schema import CHUNK
from rollforward.streams.storage.serde import check_sizes, dump, load
from rollforward.streams.workers.lease import defer_to_other_version
from rollforward.streams.workers.sink_commit import deliver
from rollforward.streams.workers.sink_worker import SinkWorker
from rollforward.streams.workers.worker import Worker
from rollforward.tasks.declaration import Task
from rollforward.tasks.errors import Retry, Unavailable

log = logging.getLogger(__name__)

T = TypeVar("T")

# Of tasks that may run for long: workers and reads of sources.
QUEUE = "streams"
# Of those that end within milliseconds, which would wait behind those: watermarks and pushes.
TICKS_QUEUE = "streams-ticks"
ATTEMPTS_TTL_S = 3_600
# The commit was refused, and nothing was written.
CHANGED = (
    rpc_errors.FailedPrecondition,
    rpc_errors.NotFound,
    rpc_errors.AlreadyExists,
    rpc_errors.Aborted,
)
UNKNOWN = (*OUTCOME_UNKNOWN, rpc_errors.RetryError)


@dataclass(frozen=True)
class Work:
    """Which interval to work on."""

    computation: Annotated[str, pydantic.Field(max_length=70)]
    first_slot: int


@dataclass(frozen=True)
class Tick:
    """That the watermarks are to be moved."""


@dataclass(frozen=True)
class Pull:
    """Which source to read."""

    stream: Annotated[str, pydantic.Field(max_length=70)]


class Tasks:
    """The tasks of one pipeline."""

    def __init__(self, pipeline: Declaration) -> None:
        path = f"/tasks/streams/{pipeline.name}"

        def work(clients: Clients, args: Work) -> None:
            engine = Engine(clients, pipeline)
            engine.run(worker_steps(engine.environment, args.computation, args.first_slot))

        def tick_(clients: Clients, args: Tick) -> None:
            engine = Engine(clients, pipeline)
            engine.run(tick(engine.environment))

        def pull_(clients: Clients, args: Pull) -> None:
            engine = Engine(clients, pipeline)
            engine.run(pull(engine.environment, pipeline.source(args.stream).stream))

        self.work = Task(f"{path}/work", QUEUE, Work, work)
        self.tick = Task(f"{path}/tick", TICKS_QUEUE, Tick, tick_)
        self.pull = Task(f"{path}/pull", QUEUE, Pull, pull_)

    @property
    def all(self) -> list[Task[Any]]:
        return [self.work, self.tick, self.pull]

    def message(self, clients: Clients, wake: Wake) -> Message:
        """Return a task as it leaves the process."""
        name, slot = wake.target
        at = Task.due(clients, wake.delay_s, None)
        if not name:
            return self.tick.message(Tick(), name=wake.name, at=at)
        if slot < 0:
            return self.pull.message(Pull(name), name=wake.name, at=at)
        return self.work.message(Work(name, slot), name=wake.name, at=at)


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
            run_in_background=self._run_later,
            sign=clients.processes.sign,
            is_dead=clients.processes.is_dead,
        )
        self._arrivals = InboxHints.of(clients.process_state)
        self._acts: dict[type, Callable[[Any], Any]] = {
            Read: self._read,
            Snapshot: self._snapshot,
            Scan: self._scan,
            ScanKeys: self._peek,
            ScanKeysMany: self._peeks,
            Commit: self._commit,
            CreateTasks: self._create,
            Pause: self._pause,
            Attempt: self._attempt,
            CallEffects: self._call_effects,
            Fetch: self._fetch,
        }

    def run(self, steps: Steps[T]) -> T:
        """Run steps to their end; return their result.

        Raises:
            Retry: others were faster again and again, or other instances have the code for it.
            Unavailable: it is not known what became of a commit.
        """
        try:
            answer: Any = None
            call = next(steps)
            while True:
                try:
                    answer = self._do(call)
                except Exception as error:
                    call = steps.throw(error)
                else:
                    call = steps.send(answer)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        except ChangedError as error:
            raise Retry(f"{self._pipeline.name}: a race was lost") from error
        except MissingCodeError as error:
            raise Retry(str(error)) from error
        except OutcomeUnknownError as error:
            raise Unavailable(f"{self._pipeline.name}: a commit is in doubt") from error

    def _run_later(self, steps: Steps[Any]) -> None:
        """Run steps on a thread of their own, which a process that ends does not wait for."""
        thread = threading.Thread(target=self.run, args=[steps], name="streams", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # There are too many threads.
            log.warning("%s is woken by its sweep: %s", self._pipeline.name, error)

    def _do(self, call: Call) -> Any:
        return self._acts[type(call)](call)

    def _pause(self, call: Pause) -> None:
        if call.inbox and isinstance(self._clients.clock, SystemClock):
            self._arrivals.wait(call.inbox, call.seconds)
        else:
            self._clients.clock.sleep(call.seconds)

    def _read(self, call: Read) -> list[StoredRow | None]:
        found, _ = bodies.read(
            self._clients.datastore, [bodies.Name(*key) for key in call.keys], call.at
        )
        return [_found(key, row) for key, row in zip(call.keys, found, strict=True)]

    def _snapshot(self, call: Snapshot) -> tuple[Any, list[StoredRow | None]]:
        found, moment = bodies.read(
            self._clients.datastore, [bodies.Name(*key) for key in call.keys]
        )
        return moment, [_found(key, row) for key, row in zip(call.keys, found, strict=True)]

    def _scan(self, call: Scan) -> list[tuple[str, StoredRow]]:
        if call.allow_partial and (known := self._arrivals.take(call.low, call.high, call.limit)):
            return known
        if call.kind == CHUNK:
            self._arrivals.begin_scan(call.low)
        found = bodies.scan(self._clients.datastore, call.kind, call.low, call.high, call.limit)
        if call.kind == CHUNK:
            self._arrivals.end_scan(call.low, {row.name for row in found})
        return [(row.name, StoredRow(load(call.kind, row.body), row.version)) for row in found]

    def _peek(self, call: ScanKeys) -> list[str]:
        return bodies.first_names(
            self._clients.datastore, call.kind, call.low, call.high, call.limit, call.at
        )

    def _peeks(self, call: ScanKeysMany) -> list[list[str]]:
        looks = [
            bodies.Range(each.kind, each.low, each.high, each.limit, each.at) for each in call.scans
        ]
        return bodies.first_names_of(self._clients.datastore, looks)

    def _commit(self, call: Commit) -> list[int]:
        if call.delivery is not None:
            return self._deliver(call, call.delivery)
        with blame_records():
            puts = [(bodies.Name(*key), dump(key.kind, body), at) for key, body, at in call.puts]
            inserts = [(bodies.Name(*key), dump(key.kind, body)) for key, body in call.inserts]
        deletes = [(bodies.Name(*key), at) for key, at in call.deletes]
        written = [*((key, body) for key, body, _ in puts), *inserts]
        check_sizes(((Key(*key), body) for key, body in written), len(deletes))
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
        came = zip(call.inserts, inserts, versions[len(puts) :], strict=True)
        self._arrivals.publish(
            [
                InboxHint(key.name, version, text, body)
                for (key, body), (_, text), version in came
                if key.kind == CHUNK
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

    def _create(self, call: CreateTasks) -> None:
        tasks = tasks_of(self._pipeline)
        for task in tasks.all:
            task.check_registered(self._clients)
        self._clients.tasks.create_many([tasks.message(self._clients, wake) for wake in call.wakes])

    def _attempt(self, call: Attempt) -> int:
        cache, key = self._clients.cache, f"streams:attempt:{json.dumps(call.subject)}"
        if cache.add(key, b"1", ATTEMPTS_TTL_S):
            return 1
        return cache.incr_existing(key, 1) or 1

    def _call_effects(self, call: CallEffects) -> tuple[int, ...]:
        pool = self._clients.process_state.get_or_create("streams hands", EffectPool)
        return pool.deliver_all(self._clients, self._pipeline.versions, call)

    def _fetch(self, call: Fetch) -> Any:
        source = self._pipeline.source(call.stream)
        assert isinstance(source, PullSource)
        return source.read(self._clients, call.position, call.limit)


def worker_steps(environment: Environment, computation: str, lo: int) -> Steps[Any]:
    """Return the steps of the worker of an interval.

    Raises:
        MissingCodeError: this code does not know the computation, which runs.
    """
    if not environment.pipeline.versions_of(computation):
        return defer_to_other_version(environment, computation)
    made = environment.pipeline.any_version(computation)
    kind = SinkWorker if isinstance(made, Sink) else Worker
    return kind(environment, computation, lo).run()


@functools.cache
def tasks_of(pipeline: Declaration) -> Tasks:
    """Return the tasks of a pipeline, always the same."""
    return Tasks(pipeline)


def _found(key: Key, row: bodies.Row | None) -> StoredRow | None:
    return None if row is None else StoredRow(load(key.kind, row.body), row.version)
