"""Clients of the real services, whose network is a local server."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import google.auth
import grpc
import pytest
from google.api_core import exceptions as rpc_errors
from google.auth.credentials import AnonymousCredentials
from google.cloud import ndb
from google.cloud.datastore_v1.types import (
    BeginTransactionResponse,
    CommitRequest,
    CommitResponse,
    EntityResult,
    LookupResponse,
    MutationResult,
)
from google.cloud.tasks_v2 import ListQueuesResponse, Queue

from rollforward.datastore.transactions import transact
from rollforward.runtime import clients, open_cloud_tasks, open_datastore
from rollforward.runtime.clients import RPC_TIMEOUT_S
from rollforward.testing.services import PROJECT

pytestmark = pytest.mark.fast

# gRPC takes up to 4 MB unless it is told otherwise.
LARGE_BYTES = 6_000_000


class Blob(ndb.Model):
    """A row of some size."""

    text = ndb.TextProperty()


@dataclass
class LocalNetwork(grpc.GenericRpcHandler):  # type: ignore[misc]
    """A server in the place of every host, with one answer for each method."""

    answers: dict[str, bytes] = field(default_factory=dict)
    requests: dict[str, bytes] = field(default_factory=dict)
    hosts: list[str] = field(default_factory=list)
    user_agents: list[str] = field(default_factory=list)
    left_s: list[float] = field(default_factory=list)  # Until the deadline of each call.
    port: int = 0  # To which channels connect.

    def service(self, details: Any) -> Any:
        method = details.method.rpartition("/")[2]
        self.user_agents.append(dict(details.invocation_metadata)["user-agent"])

        def answer(request: bytes, context: Any) -> bytes:
            self.requests[method] = request
            self.left_s.append(context.time_remaining())
            return self.answers[method]

        return grpc.unary_unary_rpc_method_handler(answer)


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalNetwork]:
    """Stands where the real services are; only that channels are not encrypted is not real."""
    handler = LocalNetwork()
    any_size = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    server = grpc.server(ThreadPoolExecutor(2), handlers=[handler], options=any_size)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    handler.port = port

    def channel_to(target: str, credentials: Any, options: Any = (), **_: Any) -> Any:
        handler.hosts.append(target)
        return grpc.insecure_channel(f"127.0.0.1:{handler.port}", options=options)

    monkeypatch.setattr(grpc, "secure_channel", channel_to)
    monkeypatch.setattr(google.auth, "default", lambda **_: (AnonymousCredentials(), PROJECT))
    yield handler
    server.stop(None)


def test_rows_beyond_4_mb_are_written_and_read(network: LocalNetwork) -> None:
    """The real service's channel takes messages of any size, as the emulator's does."""
    written = CommitResponse(mutation_results=[MutationResult(version=1)])
    network.answers["Commit"] = CommitResponse.serialize(written)
    with open_datastore(PROJECT).context(cache_policy=False, legacy_data=False):
        blob = Blob(id="b", text="x" * LARGE_BYTES)
        blob.put()
        [mutation] = CommitRequest.deserialize(network.requests["Commit"]).mutations
        response = LookupResponse(found=[EntityResult(entity=mutation.upsert)])
        network.answers["Lookup"] = LookupResponse.serialize(response)

        assert blob.key.get() == blob
    assert network.hosts[-1].startswith("datastore.googleapis.com")
    assert network.user_agents[-1].startswith("google-cloud-ndb")


def test_a_reply_of_cloud_tasks_may_be_larger_than_4_mb(network: LocalNetwork) -> None:
    queue = Queue(name="q" * LARGE_BYTES)
    network.answers["ListQueues"] = ListQueuesResponse.serialize(ListQueuesResponse(queues=[queue]))

    assert list(open_cloud_tasks().list_queues(parent="p")) == [queue]
    assert network.hosts == ["cloudtasks.googleapis.com"]


def test_no_call_waits_for_ever(network: LocalNetwork) -> None:
    """Each call has a deadline: ndb sets none by itself, and the library of Cloud Tasks 20 s."""
    replies = {
        "BeginTransaction": BeginTransactionResponse(transaction=b"t"),
        "Commit": CommitResponse(mutation_results=[MutationResult(version=1)]),
        "ListQueues": ListQueuesResponse(),
    }
    for method, reply in replies.items():
        network.answers[method] = type(reply).serialize(reply)

    with open_datastore(PROJECT).context(cache_policy=False, legacy_data=False):
        transact(Blob(id="b").put)
        Blob(id="b").put()
    list(open_cloud_tasks().list_queues(parent="p"))

    assert network.requests.keys() == replies.keys()
    assert max(network.left_s) < 4 * RPC_TIMEOUT_S


class Way:
    """Hands bytes on to a port, until it loses the connections that exist: both ends stay open."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self._lost: set[socket.socket] = set()
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_connections(self) -> None:
        self._lost.update(self._sockets)

    def close(self) -> None:
        for end in (self._listener, *self._sockets):
            end.close()

    def _accept(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:  # It was closed.
                return
            callee = socket.create_connection(("127.0.0.1", self._port))
            self._sockets += [caller, callee]
            for source, sink in ((caller, callee), (callee, caller)):
                threading.Thread(target=self._hand_on, args=(source, sink), daemon=True).start()

    def _hand_on(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65_536):
                if source not in self._lost:
                    sink.sendall(data)
        except OSError:
            pass


FEW = 5


def test_a_connection_that_is_lost_in_silence_fails_few_calls(
    network: LocalNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An instance that rested: the network has forgotten its connection, and tells nobody."""
    pauses = [(name, ms // 50 if "_time" in name else ms) for name, ms in clients._CHANNEL]
    monkeypatch.setattr(clients, "_CHANNEL", pauses)
    monkeypatch.setattr(clients, "RPC_TIMEOUT_S", 2.0)
    written = CommitResponse(mutation_results=[MutationResult(version=1)])
    network.answers["Commit"] = CommitResponse.serialize(written)
    way = Way(network.port)
    network.port = way.port
    try:
        with open_datastore(PROJECT).context(cache_policy=False, legacy_data=False):
            Blob(id="b").put()
            way.lose_connections()

            failed = 0
            while failed < FEW:
                try:
                    Blob(id="b").put()
                except rpc_errors.GoogleAPICallError:
                    failed += 1  # On a busy machine perhaps for the pauses, which are short here.
                else:
                    break
            assert 0 < failed < FEW
    finally:
        way.close()
