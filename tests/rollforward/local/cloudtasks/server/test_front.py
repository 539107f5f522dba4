"""Connections that the front hands to the HTTP server."""

from __future__ import annotations

import asyncio

import pytest

from rollforward.local.cloudtasks.server.front import Front

pytestmark = pytest.mark.fast


class _Full(asyncio.Protocol):
    """A server that has no room left after the first bytes of a connection."""

    def __init__(self) -> None:
        self.received: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received.append(data)
        self.transport.pause_reading()


def test_a_server_that_pauses_for_its_first_bytes_stays_paused() -> None:
    """Else a large body would be read into memory as fast as it comes."""
    asyncio.run(_begin_a_body())


async def _begin_a_body() -> None:
    full = _Full()

    async def http() -> _Full:
        return full

    async def no_grpc() -> int:
        raise AssertionError

    front = Front(http, no_grpc)
    port = await front.start("127.0.0.1", 0)
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST / HTTP/1.1\r\n\r\nbody")
    async with asyncio.timeout(30):
        while not full.received or front._dials:
            await asyncio.sleep(0)
        assert not full.transport.is_reading()

        writer.write(b"more")
        full.transport.resume_reading()
        while len(full.received) < 2:
            await asyncio.sleep(0)
    assert full.received == [b"POST / HTTP/1.1\r\n\r\nbody", b"more"]
    full.transport.abort()
    writer.close()
    await front.stop()
