"""A client of HTTP/1.1 for deliveries: a request, and its status, headers and beginning of a body.

httptools parses the responses. The client follows no redirect, keeps no cookie and decompresses
nothing: the service's documents promise none of these, and a general client spends most of a
delivery's processor time on them.

Source: rfc9112
"""

import asyncio
import base64
import functools
import re
import ssl
from collections import defaultdict
from dataclasses import dataclass

import httptools
from yarl import URL

from rollforward.local.cloudtasks.engine.outcomes import MAX_BODY_KEPT_BYTES

_MAX_HEAD_BYTES = 128 * 1024
_NO_TARGET = re.compile(r"[\x00-\x20\x7f]")
# Methods whose requests say no length when they have no body (rfc9110#section-8.6).
_BODILESS = {"GET", "HEAD", "OPTIONS"}
_SWITCHING_PROTOCOLS = 101
# Then the next address of a host is tried as well (rfc8305#section-5).
_NEXT_ADDRESS_S = 0.25


class NoResponseError(OSError):
    """The connection brought no response, or something that is none."""


@dataclass(slots=True)
class HttpResponse:
    """The response to a request.

    Attributes:
        headers: By their names as they were sent; repeated ones are joined by commas.
        body: Its beginning.
    """

    status: int
    headers: dict[str, str]
    body: bytes = b""

    def header(self, name: str) -> str:
        """Return a header, by its name in any case; "" if there is none."""
        low = name.lower()
        return ", ".join(value for key, value in self.headers.items() if key.lower() == low)


@dataclass(frozen=True)
class _Target:
    """The parts of an address that each request to it has."""

    origin: tuple[str, int, bool]
    path: str
    host: str
    authorization: str


class HttpClient:
    """The connections of one event loop; one that has answered is used again for a while.

    Args:
        keepalive_s: For how long an unused connection is kept.
    """

    def __init__(self, keepalive_s: float) -> None:
        self.keepalive_s = keepalive_s
        self.connections: set[_Connection] = set()
        self.idle: dict[tuple[str, int, bool], list[_Connection]] = defaultdict(list)

    async def request(
        self, method: str, url: URL, headers: dict[str, str], body: bytes = b""
    ) -> HttpResponse:
        """Send a request and return the response, once it is whole.

        Raises:
            OSError: there is no connection, or no response by it.
            ValueError: the address or a header is none of HTTP's.
        """
        target = _target_of(url)
        message = _message(method, target, headers, body)
        connection = self._idle_one(target.origin) or await self._connect(target.origin)
        answer = connection.exchange(message, is_head=method == "HEAD")
        try:
            return await answer
        except BaseException:
            connection.give_up(answer)
            raise

    def _idle_one(self, origin: tuple[str, int, bool]) -> "_Connection | None":
        while idle := self.idle.get(origin):
            connection = idle.pop()
            if not idle:
                del self.idle[origin]
            if connection.is_open:
                return connection
        return None

    async def _connect(self, origin: tuple[str, int, bool]) -> "_Connection":
        host, port, is_secure = origin
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: _Connection(self, origin),
            host,
            port,
            ssl=_tls() if is_secure else None,
            happy_eyeballs_delay=_NEXT_ADDRESS_S,
        )
        return connection

    async def close(self) -> None:
        """Hang up."""
        for connection in [*self.connections]:
            connection.abort()
        while self.connections:
            await asyncio.sleep(0)


@functools.cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


@functools.lru_cache(1024)
def _target_of(url: URL) -> _Target:
    """Return the parts of an address.

    Raises:
        ValueError: it has no host, or a character that would end the request's first line.
    """
    host, port = url.raw_host, url.port
    if url.scheme not in ("http", "https") or not host or port is None:
        raise ValueError(f"{url} is no address of HTTP")
    if _NO_TARGET.search(url.raw_path_qs):
        raise ValueError(f"{url} holds a character that HTTP does not allow")
    name = f"[{host}]" if ":" in host else host
    if not url.is_default_port():
        name = f"{name}:{port}"
    authorization = ""
    if url.user is not None:
        pair = f"{url.user}:{url.password or ''}".encode()
        authorization = f"Basic {base64.b64encode(pair).decode()}"
    return _Target((host, port, url.scheme == "https"), url.raw_path_qs, name, authorization)


def _message(method: str, target: _Target, headers: dict[str, str], body: bytes) -> bytes:
    """Return the bytes of a request.

    Raises:
        ValueError: a header would end its line.
    """
    lines = [f"{method} {target.path} HTTP/1.1", f"Host: {target.host}"]
    has_authorization = False
    for name, value in headers.items():
        low = name.lower()
        has_authorization |= low == "authorization"
        if low not in ("content-length", "host"):
            lines.append(f"{name}: {value}")
    if target.authorization and not has_authorization:
        lines.append(f"Authorization: {target.authorization}")
    if body or method not in _BODILESS:
        lines.append(f"Content-Length: {len(body)}")
    head = "\r\n".join(lines)
    ends = len(lines) - 1
    if head.count("\n") != ends or head.count("\r") != ends or "\0" in head:
        raise ValueError("a header holds a line break or a zero")
    return f"{head}\r\n\r\n".encode() + body


class _Connection(asyncio.Protocol):
    """A connection, with one request at a time.

    httptools calls the methods `on_...`.
    """

    def __init__(self, client: HttpClient, origin: tuple[str, int, bool]) -> None:
        self._client = client
        self._origin = origin
        self._answer: asyncio.Future[HttpResponse] | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._begin()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._client.connections.add(self)

    @property
    def is_open(self) -> bool:
        """Whether neither side has hung up, as far as is known."""
        return not self._transport.is_closing()

    def exchange(self, message: bytes, *, is_head: bool) -> "asyncio.Future[HttpResponse]":
        """Send a request; the future has the response, or a NoResponseError."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        self._parser = httptools.HttpResponseParser(self)
        self._is_head = is_head
        self._begin()
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(message)
        return self._answer

    def give_up(self, answer: "asyncio.Future[HttpResponse]") -> None:
        """Hang up, unless the request has its response, and another one may be in progress."""
        if self._answer is answer:
            self.abort()

    def abort(self) -> None:
        """Hang up at once."""
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._answer is None:
            self._transport.abort()  # Nobody has asked, or there is more than was asked for.
            return
        if not self._has_head:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._finish(is_kept=False)
        except httptools.HttpParserError as error:
            self._fail(f"the response is no HTTP/1.1: {error}")
            self._transport.abort()
        if not self._has_head and self._head_bytes > _MAX_HEAD_BYTES:
            self._fail("the response is no HTTP/1.1: its headers are too long")
            self._transport.abort()
        if self._is_more_than_asked:
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._client.connections.discard(self)
        idle = self._client.idle.get(self._origin, [])
        if self in idle:
            idle.remove(self)
            if not idle:
                del self._client.idle[self._origin]
        if error is None and self._has_head and self._ends_with_connection():
            self._finish(is_kept=False)
        else:
            self._fail(str(error or "the connection ended before the response"))

    def _ends_with_connection(self) -> bool:
        """Return whether nothing but the end of the connection says where the body ends."""
        response = self._response
        coding = response.header("transfer-encoding").lower()
        return not coding.endswith("chunked") if coding else not response.header("content-length")

    def _fail(self, text: str) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(NoResponseError(text))
        self._answer = None

    # --- a response, part by part -------------------------------------------

    def _begin(self) -> None:
        self._response = HttpResponse(0, {})
        self._body = bytearray()
        self._has_head = False
        self._head_bytes = 0
        self._is_more_than_asked = False

    def on_message_begin(self) -> None:
        self._is_more_than_asked = self._answer is None

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._has_head:
            return  # Behind a body: not what the sender says of the response.
        headers, key = self._response.headers, name.decode(errors="replace")
        text = value.decode(errors="replace").strip()
        headers[key] = f"{headers[key]}, {text}" if key in headers else text

    def on_headers_complete(self) -> None:
        self._response.status = self._parser.get_status_code()
        self._has_head = self._response.status >= 200 or self._is_switching()
        if self._has_head and self._is_head:
            self._finish(is_kept=self._parser.should_keep_alive())

    def on_body(self, data: bytes) -> None:
        room = MAX_BODY_KEPT_BYTES - len(self._body)
        if room > 0:
            self._body += data[:room]

    def on_message_complete(self) -> None:
        if self._has_head:
            self._finish(is_kept=self._parser.should_keep_alive() and not self._is_switching())
        else:
            self._begin()  # The response to the request is still to come.

    def _is_switching(self) -> bool:
        return self._response.status == _SWITCHING_PROTOCOLS

    def _finish(self, *, is_kept: bool) -> None:
        """Hand the response over; keep the connection if it is good for another request."""
        answer, self._answer = self._answer, None
        if answer is None:
            return
        self._response.body = bytes(self._body)
        if not answer.done():
            answer.set_result(self._response)
        self._begin()
        if not is_kept:
            self._transport.close()
            return
        self._client.idle[self._origin].append(self)
        loop = asyncio.get_running_loop()
        self._expiry = loop.call_later(self._client.keepalive_s, self._transport.close)
