"""One port that takes HTTP/1.1 and gRPC: which is which, in pieces, in bulk, and at the end."""

import socket
import threading
import time

import grpc
import pytest
from google.cloud.tasks_v2 import CloudTasksClient
from google.cloud.tasks_v2.services.cloud_tasks.transports import CloudTasksGrpcTransport

from rollforward.local.cloudtasks.emulator import RunningEmulator, running
from tests.infra.stack import until
from tests.rollforward.local.cloudtasks.control_calls import call, queue_name, with_queue

pytestmark = pytest.mark.fast

REQUEST = b"GET /api/v1/queues HTTP/1.1\r\nHost: localhost\r\n\r\n"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\0\0\0\4\0\0\0\0\0"


@pytest.fixture
def emulator():
    """An emulator that delivers nothing, with one queue."""
    with running(dispatching=False) as emulator:
        yield with_queue(emulator)


def connect(emulator: RunningEmulator) -> socket.socket:
    """Return a connection to the one port."""
    host, _, port = emulator.grpc_address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=20)


def send_in_pieces(emulator: RunningEmulator, data: bytes) -> bytes:
    """Send bytes one by one, and return the beginning of what comes back."""
    with connect(emulator) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for index in range(len(data)):
            connection.sendall(data[index : index + 1])
            time.sleep(0.001)  # So that the bytes come as so many packets.
        return connection.recv(64)


def test_both_on_one_port(emulator):
    """A client of each kind finds its server, at the same time."""
    with grpc.insecure_channel(emulator.grpc_address) as channel:
        client = CloudTasksClient(transport=CloudTasksGrpcTransport(channel=channel))

        assert client.get_queue(name=queue_name(emulator)).name == queue_name(emulator)
        status, content = call(emulator, "GET", "/api/v1/queues")
        assert (status, len(content["queues"])) == (200, 1)
        assert client.get_queue(name=queue_name(emulator)).name == queue_name(emulator)


def test_bytes_that_come_one_by_one(emulator):
    """The first bytes may come in any number of packets."""
    assert send_in_pieces(emulator, REQUEST).startswith(b"HTTP/1.1 200 OK")
    assert send_in_pieces(emulator, PREFACE + SETTINGS)[3] == 4  # A frame of type SETTINGS.


@pytest.mark.parametrize("start", [b"P", b"PRI ", b""])
def test_a_client_that_leaves_early(emulator, start):
    """A connection that ends before it has said what it speaks disturbs nobody."""
    with connect(emulator) as connection:
        connection.sendall(start)
        connection.shutdown(socket.SHUT_WR)

        assert connection.recv(64) == b""
    assert call(emulator, "GET", "/api/v1/queues")[0] == 200


def test_what_is_no_http(emulator):
    """Bytes of another protocol get an answer of HTTP's, and the connection ends."""
    with connect(emulator) as connection:
        connection.sendall(b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n")

        assert connection.recv(64).startswith(b"HTTP/1.0 400")


def test_large_messages_and_many_callers(emulator):
    """A relayed connection carries megabytes both ways, for several calls at a time."""
    task = {"http_request": {"url": "http://a.b/", "body": b"x" * 900_000}}
    queue, total = queue_name(emulator), 8
    options = [("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(emulator.grpc_address, options) as channel:
        client = CloudTasksClient(transport=CloudTasksGrpcTransport(channel=channel))
        callers = [
            threading.Thread(target=client.create_task, kwargs={"parent": queue, "task": task})
            for _ in range(total)
        ]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        request = {"parent": queue, "response_view": "FULL"}
        tasks = list(client.list_tasks(request=request))

    assert [len(task.http_request.body) for task in tasks] == [900_000] * total


def test_a_relay_ends_with_its_client(emulator):
    """Neither half stays when the other has gone."""
    with connect(emulator) as relayed:
        relayed.sendall(PREFACE + SETTINGS)
        assert relayed.recv(9)[3] == 4
        connections = emulator.emulator._front.connections
        assert len(connections) == 2

    until(lambda: not connections, 20, every_s=0.02)


def test_a_stop_ends_all_connections():
    """No client waits for an emulator that has stopped."""
    with running(dispatching=False) as emulator:
        idle, http, relayed = (connect(emulator) for _ in range(3))
        http.sendall(REQUEST)
        assert http.recv(12) == b"HTTP/1.1 200"
        relayed.sendall(PREFACE + SETTINGS)
        assert relayed.recv(9)[3] == 4

    for connection in (idle, http, relayed):
        with connection:
            assert _rest_of(connection) is None


def _rest_of(connection: socket.socket) -> None:
    """Read a connection to its end, which it must have."""
    try:
        while connection.recv(65536):
            pass
    except ConnectionResetError:
        pass


def test_a_loopback_name():
    """`localhost` may have several addresses: they share one port."""
    with running(dispatching=False, host="localhost") as emulator:
        assert call(emulator, "GET", "/api/v1/queues")[0] == 200
