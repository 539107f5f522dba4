"""One port for gRPC and HTTP/1.1: the first bytes of a connection say which of the two it speaks.

An HTTP/2 client begins with "PRI * HTTP/2.0" (rfc9113#section-3.4), and no method of HTTP/1.1
begins so. A connection that does is relayed to the gRPC server, which listens on a port of its own:
gRPC for Python takes no connection from another listener. Any other connection is handed to the
HTTP server of this process, bytes and all, with no relay. The first connection for a server loads
and starts it: each takes longer to load than the rest of the emulator.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any

_PREFACE = b"PRI * HTTP/2.0"
# gRPC's own server gives up on a client that says nothing after as long.
_SILENCE_S = 120.0
_BACKLOG = 1024
GRPC_HOST = "127.0.0.1"
# A batch may hold 100 tasks of 1 MiB.
MAX_MESSAGE_BYTES = 128 * 1024 * 1024

HttpProtocol = Callable[[], Awaitable[Any]]
GrpcPort = Callable[[], Awaitable[int]]

log = logging.getLogger(__name__)


class Front:
    """The listening sockets of one port, from start() to stop().

    Args:
        http: Makes the protocol of an HTTP/1.1 connection.
        grpc_port: Returns the port of the gRPC server, on the loopback interface.
    """

    def __init__(self, http: HttpProtocol, grpc_port: GrpcPort) -> None:
        self._http = http
        self._grpc_port = grpc_port
        self._servers: list[asyncio.Server] = []
        self.connections: set[asyncio.Transport] = set()
        self._dials: set[asyncio.Task[None]] = set()

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port, which is a free one for 0.

        Raises:
            OSError: the port is taken, or the host is not this machine's.
        """
        loop = asyncio.get_running_loop()
        for address in await _addresses(host):
            server = await loop.create_server(
                lambda: _Arrival(self), address, port, backlog=_BACKLOG
            )
            self._servers.append(server)
            port = server.sockets[0].getsockname()[1]
        return port

    async def stop(self) -> None:
        """Take no connection, and end all except the HTTP server's."""
        for server in self._servers:
            server.close()
        for dial in list(self._dials):
            dial.cancel()
        await asyncio.gather(*self._dials, return_exceptions=True)
        for transport in list(self.connections):
            transport.abort()
        while self.connections:
            await asyncio.sleep(0)

    def serve(self, transport: asyncio.Transport, received: bytes) -> None:
        """Hand a connection to the server whose protocol it speaks."""
        transport.pause_reading()
        serving = self._relay if received.startswith(_PREFACE) else self._forward
        dial = asyncio.create_task(self._or_abort(serving(transport, received), transport))
        self._dials.add(dial)
        dial.add_done_callback(self._dials.discard)

    async def _or_abort(self, serving: Awaitable[None], transport: asyncio.Transport) -> None:
        try:
            await serving
        except Exception as error:
            if not isinstance(error, OSError):  # Not one that a stop has closed.
                log.exception("A server did not start")
            transport.abort()

    async def _forward(self, transport: asyncio.Transport, received: bytes) -> None:
        """Give a connection to the HTTP server."""
        protocol = await self._http()
        self.connections.discard(transport)
        if not transport.is_closing():
            transport.set_protocol(protocol)
            protocol.connection_made(transport)
            transport.resume_reading()  # Before these bytes: the server may pause because of them.
            protocol.data_received(received)

    async def _relay(self, transport: asyncio.Transport, received: bytes) -> None:
        """Relay a connection to the gRPC server."""
        near = _Relay(self)
        near.connection_made(transport)
        transport.set_protocol(near)
        port = await self._grpc_port()
        loop = asyncio.get_running_loop()
        inner, far = await loop.create_connection(lambda: _Relay(self), GRPC_HOST, port)
        near.peer, far.peer = inner, transport
        transport.resume_reading()  # Before these bytes, which may fill the buffer, too.
        inner.write(received)
        if transport.is_closing():
            inner.close()


class _Arrival(asyncio.Protocol):
    """A connection whose first bytes have not come."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._received = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._front.connections.add(transport)
        self._patience = asyncio.get_running_loop().call_later(_SILENCE_S, transport.abort)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) < len(_PREFACE) and _PREFACE.startswith(self._received):
            return
        self._patience.cancel()
        self._front.serve(self._transport, self._received)

    def connection_lost(self, error: Exception | None) -> None:
        self._patience.cancel()
        self._front.connections.discard(self._transport)


class _Relay(asyncio.Protocol):
    """One end of a relayed connection: it sends its bytes to its peer."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self.peer: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._front.connections.add(transport)

    def data_received(self, data: bytes) -> None:
        if self.peer is not None:
            self.peer.write(data)

    def eof_received(self) -> bool:
        """Pass a half-closed connection on; the other half stays open."""
        if self.peer is not None and self.peer.can_write_eof():
            self.peer.write_eof()
        return True

    def pause_writing(self) -> None:
        if self.peer is not None:
            with contextlib.suppress(RuntimeError):
                self.peer.pause_reading()

    def resume_writing(self) -> None:
        if self.peer is not None:
            with contextlib.suppress(RuntimeError):
                self.peer.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._front.connections.discard(self._transport)
        if self.peer is not None:
            self.peer.close()


async def _addresses(host: str) -> list[str]:
    """Return the addresses that a host's name has, without repetition."""
    loop = asyncio.get_running_loop()
    resolved = await loop.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in resolved))
