"""Everything that a pipeline reaches outside of its code, in one frozen dataclass."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import grpc
from google.auth import credentials as auth_credentials
from google.cloud import ndb
from google.cloud.ndb import _retry

from rollforward.datastore.contexts import explain_missing_context, own_namespace
from rollforward.datastore.conversion.unknown_properties import keep_unknown_properties
from rollforward.runtime import topics
from rollforward.runtime.cache import Cache
from rollforward.runtime.channel.rpc import BlockingTransactions, DeadlineInterceptor, Meter
from rollforward.runtime.clock import Clock, SystemClock
from rollforward.runtime.lazy import Lazy
from rollforward.runtime.messages import TaskQueue
from rollforward.runtime.process.current import use_clients
from rollforward.runtime.process.heartbeats import Heart, ThreadedHeart
from rollforward.runtime.process.open_transactions import OpenTransactions
from rollforward.runtime.process.process_state import ProcessState
from rollforward.runtime.process.processes import NoProcesses, Processes

if TYPE_CHECKING:
    from google.cloud import tasks_v2

S = TypeVar("S")

# Longer than any call of ours takes, shorter than a user waits.
RPC_TIMEOUT_S = 15.0


class Relay(Protocol):
    """Creates the tasks that a process has committed, from the rows of the outbox.

    The outbox imports the clients, so its entity is not named here.
    """

    def send(self, clients: Clients, rows: Sequence[Any]) -> None:
        """Create the tasks of some committed rows, now or soon."""
        ...

    def resolve(self, clients: Clients, rows: Sequence[Any]) -> None:
        """Create the tasks of the rows that turn out to be committed."""
        ...


@dataclass(frozen=True)
class Clients:
    """Everything remote or random that pipelines use."""

    datastore: ndb.Client
    tasks: TaskQueue
    cache: Cache
    meter: Meter
    relay: Relay
    services: Mapping[type, object] = field(default_factory=dict)  # The app's own, by type.
    task_paths: Collection[str] | None = None  # What its registry delivers; None: not known here.
    process_state: ProcessState = field(default_factory=ProcessState)
    clock: Clock = field(default_factory=SystemClock)
    heart: Heart = field(default_factory=ThreadedHeart)
    processes: Processes = field(default_factory=NoProcesses)
    random: random.Random = field(default_factory=random.SystemRandom)

    def service(self, kind: Callable[..., S]) -> S:
        """Return the app's own service of a type: a mailer, a payment client.

        Raises:
            LookupError: the app was opened without one.
        """
        # `type[S]` would make mypy refuse a Protocol, which is what most services are named by.
        named = cast(type[S], kind)
        if named not in self.services:
            raise LookupError(f"Clients were opened without a {named.__name__}: add it to services")
        return cast(S, self.services[named])

    @contextmanager
    def context(self) -> Iterator[Any]:
        """Open ndb's context for this thread, and make these its current clients.

        ndb's own cache is off: with it on, a get would return this request's unsaved changes, and
        rows as old as the request.
        """
        context = self.datastore.context(cache_policy=False, global_cache=None, legacy_data=False)
        with use_clients(self), context as opened:
            yield opened

    def own_namespace(self) -> AbstractContextManager[None]:
        """Use the client's namespace in this thread, whose context has another, as of a tenant.

        A transaction that runs has its writes, too. For patterns with rows in no other namespace:

            with clients.own_namespace():
                VISITS.increment(clients, f"{tenant}:{page}")
        """
        return own_namespace()

    def new_id(self) -> str:
        """Return a random id of 128 bits, in hex."""
        return f"{self.random.getrandbits(128):032x}"

    def new_owner(self) -> str:
        """Return a random id for the holder of a lease, signed by this process."""
        return self.processes.sign(self.new_id())

    def publish(self, topic: str) -> None:
        """Notify the watchers of a topic, after the commit that changed its subject."""
        topics.publish(self.cache, topic, self.new_id())


def open_datastore(
    project: str,
    *,
    emulator: str | None = None,
    namespace: str | None = None,
    database: str | None = None,
    interceptors: Sequence[Any] = (),
    transactions: OpenTransactions | None = None,
) -> ndb.Client:
    """Return a Datastore client whose calls go through the interceptors, first one first.

    Args:
        emulator: "host:port" of an emulator; None means the real service.
        transactions: Tracks this client's transactions, and rolls back abandoned ones of others.
    """
    # ndb repeats each failed call three times, with seconds in between, even inside a
    # transaction that is lost already. Here `transact`, the queue or the visitor tries again.
    # There is no public switch; tests/rollforward/datastore/test_transactions.py notices if this
    # one goes.
    _retry._DEFAULT_RETRIES = 0
    keep_unknown_properties()
    explain_missing_context()
    if emulator:
        anonymous = auth_credentials.AnonymousCredentials()
        client = ndb.Client(project, namespace, anonymous, database=database)
        channel = grpc.insecure_channel(emulator, options=_CHANNEL)
    else:
        client = ndb.Client(project, namespace, database=database)
        client.stub.close()  # Its channel takes no reply above 4 MB.
        channel = BlockingTransactions.create_channel(
            client.host,
            credentials=client._credentials,
            options=[*_CHANNEL, ("grpc.primary_user_agent", client.client_info.to_user_agent())],
        )
    followers = [transactions] if transactions is not None else []
    client.stub = BlockingTransactions(
        host=emulator or client.host,
        credentials=auth_credentials.AnonymousCredentials(),
        channel=_intercepted(channel, [*followers, *interceptors]),
    )
    if transactions is not None:
        transactions.start(client.stub.rollback)
    return client


def open_cloud_tasks(
    *, emulator: str | None = None, interceptors: Sequence[Any] = ()
) -> tasks_v2.CloudTasksClient:
    """Return a Cloud Tasks client whose calls go through the interceptors.

    The library is loaded with the first call: it takes a sixth of the app's start, and a process
    that shows pages may never create a task.
    """

    def open_client() -> tasks_v2.CloudTasksClient:
        from google.cloud import tasks_v2
        from google.cloud.tasks_v2.services.cloud_tasks.transports import CloudTasksGrpcTransport

        if emulator:
            channel = grpc.insecure_channel(emulator, options=_CHANNEL)
        else:
            channel = CloudTasksGrpcTransport.create_channel(options=_CHANNEL)
        transport = CloudTasksGrpcTransport(channel=_intercepted(channel, interceptors))
        return tasks_v2.CloudTasksClient(transport=transport)

    return cast("tasks_v2.CloudTasksClient", Lazy(open_client))


def _intercepted(channel: Any, interceptors: Sequence[Any]) -> Any:
    return grpc.intercept_channel(channel, *interceptors, DeadlineInterceptor(RPC_TIMEOUT_S))


# Of each channel, to a service or its emulator. Twenty rows may be 20 MB, and gRPC stops at 4. A
# channel that loses its connection some times in a row waits up to two minutes before it connects
# again, and fails all calls meanwhile.
_CHANNEL: list[tuple[str, Any]] = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Cloud Run drops a connection that has rested for ten minutes, and tells neither end. Without
    # these each call on it fails, until TCP gives up a quarter of an hour later. So one ends when
    # nobody confirms its bytes for five seconds, or answers a ping. The pause between pings is that
    # of Google's own client of Firestore.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
]
