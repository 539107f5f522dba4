"""A network for HTTP in this process and in virtual time, below `requests`, `urllib3` and
`http.client`, in the place of a socket.

Each exchange of a request and its answer is one remote call of the line. TLS is not part of it.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool
from urllib3.connection import HTTPConnection

from rollforward.testing.calls import APP, RemoteCall

if TYPE_CHECKING:
    from tests.simulation.world import World


class HttpRequest(NamedTuple):
    """A request as it came: the names of its headers are small letters."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


class HttpAnswer(NamedTuple):
    """An answer.

    Attributes:
        after_s: It comes after so many seconds, for which a client may not wait.
        is_cut: The connection ends in the middle of its body.
    """

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = {}
    after_s: float = 0.0
    is_cut: bool = False

    def sent(self) -> bytes:
        """Return what comes over the connection, which is closed then."""
        headers = {"Content-Length": len(self.body), "Connection": "close", **self.headers}
        lines = [f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        end = len(self.body) // 2 if self.is_cut else None
        return "\r\n".join([*lines, "", ""]).encode() + self.body[:end]


class Answer(io.BytesIO):
    """An answer that comes, or does not, when its first line is read."""

    def __init__(self, receive: Callable[[], bytes]) -> None:
        super().__init__()
        self._receive: Callable[[], bytes] | None = receive

    def readline(self, size: int | None = -1, /) -> bytes:
        receive, self._receive = self._receive, None
        if receive is not None:
            self.write(receive())
            self.seek(0)
        return super().readline(size)


class Wire:
    """A client's connection, as `http.client` uses a socket and its file."""

    def __init__(self, world: World, timeout_s: float | None) -> None:
        self._world = world
        self._timeout_s = timeout_s
        self._sent = b""

    def settimeout(self, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s

    def sendall(self, sent: bytes) -> None:
        self._sent += sent

    def makefile(self, mode: str) -> io.BytesIO:
        """Return the answer to what was sent, which comes when it is read."""
        return Answer(self._receive)

    def _receive(self) -> bytes:
        request = _parsed(self._sent)
        described = RemoteCall(f"http.{request.method}", APP)
        lost = lambda code: ConnectionResetError(code.name)  # noqa: E731
        line, payments = self._world.line, self._world.payments
        answer: HttpAnswer = line.around(
            described.name, lambda: self._exchange(request), lost, lambda: described
        )
        payments.told(request, answer)
        return answer.sent()

    def close(self) -> None:
        """Do nothing."""

    def _exchange(self, request: HttpRequest) -> HttpAnswer:
        answer = self._world.payments.answer(request)
        timeout_s = math.inf if self._timeout_s is None else self._timeout_s
        if answer.after_s:
            self._world.sleep(min(answer.after_s, timeout_s))
        if answer.after_s > timeout_s:
            raise TimeoutError("timed out")
        return answer


def _parsed(sent: bytes) -> HttpRequest:
    head, _, body = sent.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    method, path, _ = first.split(" ")
    headers = (line.split(": ", 1) for line in lines)
    return HttpRequest(method, path, {name.lower(): value for name, value in headers}, body)


def adapter_of(world: World) -> HTTPAdapter:
    """Return what a session mounts to have its requests go through the network of a world."""

    class Connection(HTTPConnection):
        def _new_conn(self) -> Any:
            return Wire(world, self.timeout)

    class Pool(HTTPConnectionPool):
        ConnectionCls = Connection

    adapter = HTTPAdapter()
    adapter.poolmanager.pool_classes_by_scheme = {"http": Pool}
    return adapter
