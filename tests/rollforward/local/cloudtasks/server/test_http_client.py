"""The client that delivers: every form of a response, and what is none."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from yarl import URL

from rollforward.local.cloudtasks.engine.outcomes import MAX_BODY_KEPT_BYTES
from rollforward.local.cloudtasks.server.http_client import (
    HttpClient,
    HttpResponse,
    NoResponseError,
)

pytestmark = pytest.mark.fast

KEEPALIVE_S = 60.0
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@dataclass
class Server:
    """A server that sends the same bytes for each request, and writes down what it got.

    Attributes:
        parts: Sent one after another, with a pause between.
        hangs_up: It closes the connection after them.
    """

    parts: tuple[bytes, ...] = (OK,)
    hangs_up: bool = False
    url: URL = field(default_factory=URL)
    requests: list[bytes] = field(default_factory=list)
    tasks: list[Any] = field(default_factory=list)

    @property
    def connections(self) -> int:
        """How many there were."""
        return len(self.tasks)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of a connection."""
        self.tasks.append(asyncio.current_task())
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
                self.requests.append(head + await reader.readexactly(int(length or 0)))
                for part in self.parts:
                    writer.write(part)
                    await writer.drain()
                    await asyncio.sleep(0.001)
                if self.hangs_up:
                    break
        writer.close()


@contextlib.asynccontextmanager
async def serving(*parts: bytes, **fields: Any) -> AsyncIterator[tuple[Server, HttpClient]]:
    """Run a server, and a client without connections."""
    answering = Server(parts or (OK,), **fields)
    listening = await asyncio.start_server(answering.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    answering.url = URL(f"http://127.0.0.1:{port}/a?b=c")
    client = HttpClient(KEEPALIVE_S)
    try:
        yield answering, client
    finally:
        await client.close()
        listening.close()
        await asyncio.gather(*answering.tasks, return_exceptions=True)


def response_to(
    *parts: bytes, method: str = "GET", hangs_up: bool = False
) -> tuple[HttpResponse, int]:
    """Ask twice; return the response, and how many connections that took."""

    async def request() -> tuple[HttpResponse, int]:
        async with serving(*parts, hangs_up=hangs_up) as (server, client):
            first = await client.request(method, server.url, {})
            assert await client.request(method, server.url, {}) == first
            return first, server.connections

    return asyncio.run(asyncio.wait_for(request(), 20))


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("data", "status", "body"),
    [
        (OK, 200, b"ok"),
        (b"HTTP/1.1 204\r\n\r\n", 204, b""),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", 304, b""),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 3\r\n\r\nno!", 404, b"no!"),
        (b"HTTP/1.1 500 Oops\r\ncontent-LENGTH:0\r\n\r\n", 500, b""),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nLink: a\r\n\r\n" + OK, 200, b"ok"),
        (
            CHUNKED + b"3\r\nabc\r\n10;x=y\r\n0123456789abcdef\r\n0\r\n\r\n",
            200,
            b"abc0123456789abcdef",
        ),
        (CHUNKED + b"10\r\n0123456789abcdef\r\n0\r\nX-Sum: 1\r\n\r\n", 200, b"0123456789abcdef"),
        (CHUNKED + b"0\r\n\r\n", 200, b""),
        (b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 1\r\n\r\nx", 200, b"x"),
    ],
)
def test_responses_with_an_end(data: bytes, status: int, body: bytes) -> None:
    """However the bytes come, the response is the same, and the connection is used again."""
    for parts in ([data], [data[i : i + 1] for i in range(len(data))]):
        response, connections = response_to(*parts)

        assert (response.status, response.body, connections) == (status, body, 1)


@pytest.mark.parametrize(
    ("data", "body"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\nuntil the end", b"until the end"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nx", b"x"),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx", b"x"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx", b"x"),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", b""),
        (OK + b"more than was asked for", b"ok"),
        (OK + b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n", b"ok"),
    ],
)
def test_connections_that_end(data: bytes, body: bytes) -> None:
    """Another request takes another connection."""
    response, connections = response_to(data, hangs_up=True)

    assert (response.body, connections) == (body, 2)
    assert response.status in (101, 200)


def test_a_response_to_head() -> None:
    """It has the length of a body that does not come."""
    response, connections = response_to(
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", method="HEAD"
    )

    assert (response.body, connections) == (b"", 1)


@pytest.mark.parametrize("coding", ["length", "chunked", "end"])
def test_a_large_body(coding: str) -> None:
    """Its beginning is kept, and the rest is read: the connection is good for another request."""
    body = bytes(range(256)) * 4_000
    if coding == "chunked":
        data = CHUNKED + b"%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n"
    elif coding == "length":
        data = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    else:
        data = b"HTTP/1.1 200 OK\r\n\r\n" + body
    response, connections = response_to(data, hangs_up=coding == "end")

    assert response.body == body[:MAX_BODY_KEPT_BYTES]
    assert connections == (2 if coding == "end" else 1)


def test_a_trailer_is_no_header() -> None:
    """It comes behind the body, of any length."""
    response, _ = response_to(CHUNKED + b"1\r\nx\r\n0\r\nTransfer-Encoding: y\r\nB: 1\r\n\r\n")

    assert response.headers == {"Transfer-Encoding": "chunked"}


def test_headers_of_a_response() -> None:
    """Repeated ones are joined, and names have any case."""
    head = b"HTTP/1.1 200 OK\r\nA: 1\r\nB:\r\nA:  2 \r\nContent-Length: 0\r\n\r\n"
    response, _ = response_to(head)

    assert response.headers == {"A": "1, 2", "B": "", "Content-Length": "0"}
    assert (response.header("a"), response.header("d")) == ("1, 2", "")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "ended before the response"),
        (b"HTTP/1.1 200 OK\r\nContent-Le", "ended before the response"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhalf", "ended before the response"),
        (CHUNKED + b"5\r\nhalf", "ended before the response"),
        (CHUNKED + b"1\r\nx\r\n0\r\n", "ended before the response"),
        (CHUNKED + b"-1\r\n", "is no HTTP/1.1"),
        (CHUNKED + b"0x1\r\n", "is no HTTP/1.1"),
        (CHUNKED + b"1" * 20_000, "is no HTTP/1.1"),
        (b"hello\r\n\r\n", "is no HTTP/1.1"),
        (b"\r\n\r\n", "ended before the response"),
        (b"HTTP/2 200\r\n\r\n", "is no HTTP/1.1"),
        (b"HTTP/1.1 20x OK\r\n\r\n", "is no HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "is no HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", "is no HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n", "is no HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\nA : 1\r\n\r\n", "is no HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\nA: 1\r\n 2\r\n\r\n", "is no HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\nA: " + b"x" * 200_000, "headers are too long"),
    ],
)
def test_what_is_no_response(data: bytes, words: str) -> None:
    """The attempt has failed, and nothing is left of its connection."""

    async def request() -> None:
        async with serving(data, hangs_up=True) as (server, client):
            with pytest.raises(NoResponseError, match=words):
                await client.request("POST", server.url, {}, b"x")
            while client.connections:
                await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(request(), 20))


def test_requests() -> None:
    """Headers go out as they are; length and host are the client's own."""

    async def request() -> list[bytes]:
        async with serving() as (server, client):
            url = server.url
            await client.request("GET", url, {"X-MiXed": "ä", "content-length": "7", "Host": "b"})
            await client.request("POST", url, {})
            await client.request("DELETE", url, {}, b"body")
            await client.request("GET", url.with_user("me").with_password("pw"), {})
            await client.request("GET", url.with_user("me"), {"authorization": "Bearer t"})
            host = f"127.0.0.1:{url.port}".encode()
            return [request.replace(host, b"HOST") for request in server.requests]

    assert asyncio.run(request()) == [
        "GET /a?b=c HTTP/1.1\r\nHost: HOST\r\nX-MiXed: ä\r\n\r\n".encode(),
        b"POST /a?b=c HTTP/1.1\r\nHost: HOST\r\nContent-Length: 0\r\n\r\n",
        b"DELETE /a?b=c HTTP/1.1\r\nHost: HOST\r\nContent-Length: 4\r\n\r\nbody",
        b"GET /a?b=c HTTP/1.1\r\nHost: HOST\r\nAuthorization: Basic bWU6cHc=\r\n\r\n",
        b"GET /a?b=c HTTP/1.1\r\nHost: HOST\r\nauthorization: Bearer t\r\n\r\n",
    ]


@pytest.mark.parametrize(
    ("url", "headers", "words"),
    [
        ("http://a.b/", {"A": "x\r\nB: y"}, "a header holds"),
        ("http://a.b/", {"A\n": "x"}, "a header holds"),
        ("http://a.b/", {"A": "\0"}, "a header holds"),
        ("http://a.b/c d", {}, "a character that HTTP does not allow"),
        ("ftp://a.b/", {}, "is no address of HTTP"),
        ("/a", {}, "is no address of HTTP"),
        ("http:///a", {}, "is no address of HTTP"),
    ],
)
def test_requests_that_are_none(url: str, headers: dict[str, str], words: str) -> None:
    """Nothing is sent that could be taken for two requests, or to no address."""
    with pytest.raises(ValueError, match=words):
        asyncio.run(HttpClient(1.0).request("GET", URL(url, encoded=True), headers))


def test_connections_are_kept_for_a_while() -> None:
    """Requests side by side take a connection each; one that nobody uses ends."""

    async def request() -> tuple[int, int]:
        async with serving() as (server, client):
            await asyncio.gather(*(client.request("GET", server.url, {}) for _ in range(3)))
            await asyncio.gather(*(client.request("GET", server.url, {}) for _ in range(3)))
            kept = server.connections
            client.keepalive_s = 0.001
            await client.request("GET", server.url, {})
            while len(client.connections) == kept:
                await asyncio.sleep(0.001)
            return kept, len(client.connections)

    assert asyncio.run(request()) == (3, 2)


def test_a_request_that_is_given_up() -> None:
    """Its connection ends: a late response is nobody's."""

    async def request() -> None:
        async with serving(b"HTTP/1.1 200 OK\r\n") as (server, client):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await client.request("GET", server.url, {})
            while client.connections:
                await asyncio.sleep(0)
            server.parts = (OK,)
            assert (await client.request("GET", server.url, {})).body == b"ok"

    asyncio.run(asyncio.wait_for(request(), 20))


def test_a_request_that_is_given_up_when_its_response_has_come() -> None:
    """Its connection may have another request by then, which goes on."""

    async def request() -> None:
        async with serving() as (server, client):
            await client.request("GET", server.url, {})
            [connection] = client.connections
            late = asyncio.create_task(client.request("GET", server.url, {}))
            while not server.requests[1:]:
                await asyncio.sleep(0)
            while not client.idle:
                await asyncio.sleep(0)
            answer = asyncio.ensure_future(client.request("POST", server.url, {}))
            late.cancel()
            assert (await answer).body == b"ok"
            assert client.connections == {connection}

    asyncio.run(asyncio.wait_for(request(), 20))


def test_a_connection_that_ends_before_its_first_request() -> None:
    """Nobody waits for it, and nothing is kept for its address."""

    async def request() -> None:
        async with serving() as (server, client):
            address = ("127.0.0.1", server.url.port or 0, False)
            connection = await client._connect(address)
            connection.abort()
            while client.connections:
                await asyncio.sleep(0)
            assert not client.idle

    asyncio.run(asyncio.wait_for(request(), 20))
