"""A client of HTTP/1.1 for deliveries: a request, and its status, headers and beginning of a body.

It follows no redirect, keeps no cookie and decompresses nothing: the service's documents promise
none of these. A general client spends most of a delivery's processor time on what is not used here.

Source: rfc9112
"""

import asyncio
import base64
import functools
import re
import ssl
from collections import defaultdict
from dataclasses import dataclass, field

from yarl import URL

from rollforward.local.cloudtasks.engine.outcomes import MAX_BODY_KEPT_BYTES

_MAX_HEAD_BYTES = 128 * 1024
_MAX_SIZE_LINE_BYTES = 16 * 1024
_END_OF_HEAD = re.compile(rb"\r?\n\r?\n")
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: .*)?")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?")
_LENGTH = re.compile(r"[0-9]{1,15}")
_NO_TARGET = re.compile(r"[\x00-\x20\x7f]")
# Methods whose requests say no length when they have no body (rfc9110#section-8.6).
_BODILESS = {"GET", "HEAD", "OPTIONS"}
_UNTIL_CLOSED = -1
_SWITCHING_PROTOCOLS = 101
_NO_BODY = {_SWITCHING_PROTOCOLS, 204, 304}


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
        keepalive_s: For how long a connection is kept that nobody uses.
    """

    def __init__(self, keepalive_s: float) -> None:
        self.keepalive_s = keepalive_s
        self.connections: set[_Connection] = set()
        self.idle: dict[tuple[str, int, bool], list[_Connection]] = defaultdict(list)

    async def ask(
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
        try:
            return await connection.exchange(message, is_head=method == "HEAD")
        except BaseException:
            connection.abort()
            raise

    def _idle_one(self, origin: tuple[str, int, bool]) -> "_Connection | None":
        idle = self.idle[origin]
        while idle:
            connection = idle.pop()
            if connection.is_open:
                return connection
        return None

    async def _connect(self, origin: tuple[str, int, bool]) -> "_Connection":
        host, port, is_secure = origin
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: _Connection(self, origin), host, port, ssl=_tls() if is_secure else None
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


@dataclass(slots=True)
class _Progress:
    """The progress of a response.

    Attributes:
        response: None until its head is there.
        left_bytes: Of the body or of the chunk; -1: until the connection ends.
        is_in_trailer: The last chunk has come.
    """

    answer: "asyncio.Future[HttpResponse]"
    is_head: bool
    response: HttpResponse | None = None
    left_bytes: int = 0
    is_chunked: bool = False
    is_in_trailer: bool = False
    is_kept: bool = True
    body: bytearray = field(default_factory=bytearray)


class _Connection(asyncio.Protocol):
    """A connection, with one request at a time."""

    def __init__(self, client: HttpClient, origin: tuple[str, int, bool]) -> None:
        self._client = client
        self._origin = origin
        self._received = bytearray()
        self._progress: _Progress | None = None
        self._expiry: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._client.connections.add(self)

    @property
    def is_open(self) -> bool:
        """True if neither side has hung up, as far as is known."""
        return not self._transport.is_closing()

    def exchange(self, message: bytes, *, is_head: bool) -> "asyncio.Future[HttpResponse]":
        """Send a request; the future has the response, or a NoResponseError."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        answer: asyncio.Future[HttpResponse] = asyncio.get_running_loop().create_future()
        self._progress = _Progress(answer, is_head)
        self._transport.write(message)
        return answer

    def abort(self) -> None:
        """Hang up at once."""
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        progress = self._progress
        if progress is None:
            self._transport.abort()  # Nobody has asked.
            return
        self._received += data
        try:
            while not progress.answer.done() and self._takes_more(progress):
                pass
        except ValueError as error:
            self._fail(f"the response is no HTTP/1.1: {error}")
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._client.connections.discard(self)
        idle = self._client.idle[self._origin]
        if self in idle:
            idle.remove(self)
        progress = self._progress
        if progress is None:
            return
        is_whole = progress.response is not None and progress.left_bytes == _UNTIL_CLOSED
        if is_whole and error is None and not progress.answer.done():
            progress.is_kept = False
            self._finish(progress)
        else:
            self._fail(str(error or "the connection ended before the response"))

    def _fail(self, text: str) -> None:
        if self._progress is not None and not self._progress.answer.done():
            self._progress.answer.set_exception(NoResponseError(text))
        self._progress = None

    # --- a response, part by part -------------------------------------------

    def _takes_more(self, progress: _Progress) -> bool:
        """Take the next part out of what has come; return whether there was one.

        Raises:
            ValueError: it is none of HTTP/1.1.
        """
        if progress.response is None:
            return self._take_head(progress)
        if progress.left_bytes:
            return self._take_body(progress)
        if not progress.is_chunked:
            self._finish(progress)
            return False
        return self._take_trailer(progress) if progress.is_in_trailer else self._take_size(progress)

    def _take_head(self, progress: _Progress) -> bool:
        end = _END_OF_HEAD.search(self._received)
        if end is None:
            if len(self._received) > _MAX_HEAD_BYTES:
                raise ValueError("its headers are too long")
            return False
        lines = bytes(self._received[: end.start()]).splitlines()
        del self._received[: end.end()]
        line = _STATUS_LINE.fullmatch(lines[0]) if lines else None
        if line is None:
            raise ValueError("it has no status line")
        status = int(line[2])
        if 100 <= status < 200 and status != _SWITCHING_PROTOCOLS:
            return True  # The response is still to come.
        response = HttpResponse(status, _headers(lines[1:]))
        progress.response = response
        options = response.header("connection").lower()
        is_newer = line[1] == b"1"
        progress.is_kept = "close" not in options if is_newer else "keep-alive" in options
        if not progress.is_head and status not in _NO_BODY:
            self._expect_body(progress, response)
        return True

    @staticmethod
    def _expect_body(progress: _Progress, response: HttpResponse) -> None:
        encoding, length = response.header("transfer-encoding"), response.header("content-length")
        if encoding:
            progress.is_chunked = encoding.lower().endswith("chunked")
            progress.left_bytes = 0 if progress.is_chunked else _UNTIL_CLOSED
        elif length:
            lengths = {text.strip() for text in length.split(",")}
            if len(lengths) > 1 or not _LENGTH.fullmatch(only := lengths.pop()):
                raise ValueError("its length is no number")
            progress.left_bytes = int(only)
        else:
            progress.left_bytes = _UNTIL_CLOSED

    def _take_body(self, progress: _Progress) -> bool:
        left, received = progress.left_bytes, self._received
        part = received if left == _UNTIL_CLOSED else received[:left]
        if not part:
            return False
        room = MAX_BODY_KEPT_BYTES - len(progress.body)
        if room > 0:
            progress.body += part[:room]
        if left != _UNTIL_CLOSED:
            progress.left_bytes -= len(part)
        del received[: len(part)]
        return True

    def _take_line(self) -> bytes | None:
        """Take a line out of what has come, None if its end has not."""
        end = self._received.find(b"\n")
        if end < 0:
            if len(self._received) > _MAX_SIZE_LINE_BYTES:
                raise ValueError("a line between its chunks is too long")
            return None
        line = bytes(self._received[:end]).removesuffix(b"\r")
        del self._received[: end + 1]
        return line

    def _take_size(self, progress: _Progress) -> bool:
        """Take the line before a chunk; the end of the chunk before it is an empty one."""
        line = self._take_line()
        if line is None:
            return False
        if not line and progress.body:
            return True
        size = _CHUNK_SIZE.fullmatch(line)
        if size is None:
            raise ValueError("a chunk has no size")
        progress.left_bytes = int(size[1], 16)
        progress.is_in_trailer = not progress.left_bytes
        return True

    def _take_trailer(self, progress: _Progress) -> bool:
        line = self._take_line()
        if line is None:
            return False
        if not line:
            progress.is_chunked = False
        return True

    def _finish(self, progress: _Progress) -> None:
        """Hand the response over; keep the connection if it is good for another request."""
        response = progress.response
        if response is None:
            raise RuntimeError("the head has been taken")
        response.body = bytes(progress.body)
        if not progress.answer.done():
            progress.answer.set_result(response)
        self._progress = None
        if self._received or not progress.is_kept or response.status == _SWITCHING_PROTOCOLS:
            self._transport.close()
            return
        self._client.idle[self._origin].append(self)
        loop = asyncio.get_running_loop()
        self._expiry = loop.call_later(self._client.keepalive_s, self._transport.close)


def _headers(lines: list[bytes]) -> dict[str, str]:
    """Return headers by their names.

    Raises:
        ValueError: a line is none.
    """
    headers: dict[str, str] = {}
    name = ""
    for line in lines:
        text = line.decode(errors="replace")
        if text[0] in " \t" and name:  # Goes on from the line before (rfc9112#section-5.2).
            headers[name] = f"{headers[name]} {text.strip()}"
            continue
        name, colon, value = text.partition(":")
        if not colon or not name or name != name.strip():
            raise ValueError("a header has no name")
        value = value.strip()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers
