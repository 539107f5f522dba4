"""Client and handler of the emulator under load, each a lightweight process of its own.

The machine has few cores, and a heavy client or handler would compete with the emulator for one.
So `create` sends pre-serialized requests on a bare gRPC channel, without a client library. `serve`
parses only the part of HTTP/1.1 that the emulator's requests use.
"""

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import ClassVar

import grpc

_CREATE = "/google.cloud.tasks.v2.CloudTasks/CreateTask"
_END = b"\r\n\r\n"
_LENGTH = b"content-length:"


def create(
    pipe: Connection, address: str, requests: Sequence[bytes], seconds: float, calls: int
) -> None:
    """Send serialized requests in turn, over concurrent calls; report their number and times."""
    pipe.send(asyncio.run(_create(address, requests, seconds, calls)))


async def _create(
    address: str, requests: Sequence[bytes], seconds: float, calls: int
) -> tuple[int, float, float]:
    """Return the number of calls, the elapsed seconds, and the seconds of processor time."""
    count = 0
    async with grpc.aio.insecure_channel(address) as channel:
        create_task = channel.unary_unary(_CREATE)
        await create_task(requests[0])  # The first connection loads the emulator's gRPC server.
        start, start_cpu = time.perf_counter(), time.process_time()

        async def call_in_turn() -> None:
            nonlocal count
            while time.perf_counter() - start < seconds:
                count += 1
                await create_task(requests[count % len(requests)])

        await asyncio.gather(*(call_in_turn() for _ in range(calls)))
        return count, time.perf_counter() - start, time.process_time() - start_cpu


class Handler(asyncio.Protocol):
    """A connection that answers each POST with 204, and a GET with its path's times of POSTs."""

    arrivals: ClassVar[dict[bytes, list[float]]] = defaultdict(list)

    def __init__(self) -> None:
        self._received = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(_END)) >= 0:
            head = self._received[:end]
            ends_at = end + len(_END) + _length(head)
            if len(self._received) < ends_at:
                return
            self._received = self._received[ends_at:]
            self._answer(*head.split(b" ", 2)[:2])

    def _answer(self, method: bytes, path: bytes) -> None:
        if method != b"GET":
            self.arrivals[path].append(time.time())
            self._transport.write(b"HTTP/1.1 204 No Content\r\n\r\n")
            return
        body = json.dumps(self.arrivals[path]).encode()
        self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)


def _length(head: bytes) -> int:
    """Return the Content-Length in a request's head, or 0."""
    _, _, value = head.lower().partition(_LENGTH)
    return int(value.partition(b"\r\n")[0] or 0)


def serve(pipe: Connection) -> None:
    """Report the port, and serve until the process is terminated."""
    asyncio.run(_serve(pipe))


async def _serve(pipe: Connection) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Handler, "127.0.0.1", 0, backlog=1024)
    pipe.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()
