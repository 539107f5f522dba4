"""A gunicorn worker that gives threads to whole requests only, so slow callers hold none.

gunicorn's gthread gives a connection a thread at its first byte, until the rest has come. A few
callers, one for each thread, can stop an app by a byte now and then (Slowloris). This worker:

1. buffers a request in its event loop until its head and a body of up to 64 KiB have arrived, for
   ten seconds in all; then it closes the connection;
2. lets a thread read a longer body, or one in chunks, with at most half of the threads and 24 MiB
   at a time, because the app holds an upload a few times over. A body has ten seconds, and the time
   of its bytes at 64 KiB/s. Others queue; when the queue is full, a caller gets 503 with
   Retry-After;
3. gives up an answer that its caller does not read within twenty seconds;
4. closes an ended connection when its caller has hung up, or two seconds later, in the event loop;
5. answers 500 to a request in which the app exits, and serves the others.

A connection goes to the worker that has the fewest. The kernel would give it to any, and
long-lived connections would stay uneven.

A thousand callers at once (`worker_connections`) still keep others out for ten seconds. A front
end that buffers requests, as App Engine and most load balancers do, keeps slow callers away
altogether.

`rollforward.gunicorn.config` names this worker. This module imports nothing of the app, because
gunicorn's master reads it once and never again.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Mapping
from functools import partial
from selectors import EVENT_READ
from typing import Any

from gunicorn.http.errors import NoMoreData
from gunicorn.http.unreader import SocketUnreader
from gunicorn.workers.gthread import ThreadWorker

ARRIVES_WITHIN_S = 10.0
MAX_WAITING_BYTES = 64 * 1024
MIN_BYTES_PER_S = 64 * 1024
ANSWER_TAKEN_WITHIN_S = 20.0
HANGS_UP_WITHIN_S = 2.0
# Of the long bodies that are read at a time; of each that does not say its length.
MAX_LONG_BYTES = 24 * 1024 * 1024
LONGEST_BYTES = 11 * 1024 * 1024
# Tasks have bodies of up to 100 KB. They wait for a thread, and for no upload.
SHORT_BYTES = 256 * 1024
MAX_IN_LINE = 50
FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 10\r\nConnection: close\r\n"
    b"Content-Type: text/plain\r\nContent-Length: 69\r\n\r\n"
    b"Too many uploads are under way. Nothing was done; try again in 10 s.\n"
)
# How long a worker leaves a connection to one that has fewer, and how old its count may be.
YIELDS_FOR_S = 0.001
HEARD_WITHIN_S = 3.0
_LENGTH = re.compile(rb"^content-length:[ \t]*([0-9]{1,18})[ \t]*\r?$", re.MULTILINE)


def extensions_of(wsgi: Any) -> Mapping[str, Any]:
    """Return the extensions of a Flask app, also of one that WSGI middleware goes around.

    Any app may be served; one that is neither has none.
    """
    opening = sys.modules.get("rollforward.flask.opening")
    if hasattr(wsgi, "extensions") or opening is None or len(opening.DECLARED) != 1:
        return getattr(wsgi, "extensions", {})
    [app] = opening.DECLARED
    return app.extensions  # type: ignore[no-any-return]


class TooSlowError(NoMoreData):  # type: ignore[misc]
    """The rest of a request did not come in time, or its caller does not read the answer."""


class Loads:
    """The number of connections of each worker, in memory shared by the master's children."""

    _SLOT = struct.Struct("dq")  # When it was written, and the connections.
    _SLOTS = 64

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, self._SLOT.size * self._SLOTS)

    def report(self, worker: int, connections: int) -> None:
        """Write down how many connections a worker has; workers are numbered as they start."""
        at = worker % self._SLOTS * self._SLOT.size
        self._SLOT.pack_into(self._memory, at, time.monotonic(), connections)

    def has_fewer(self, connections: int) -> bool:
        """Return whether some worker has fewer connections than that, as far as is known."""
        since = time.monotonic() - HEARD_WITHIN_S
        slots = self._SLOT.iter_unpack(self._memory[:])
        return any(at > since and fewer < connections for at, fewer in slots)


class PatientWorker(ThreadWorker):  # type: ignore[misc]
    """A gthread worker whose event loop waits for callers, so that its threads need not.

    All of it but `handle_request` runs in the event loop.
    """

    pending_conns: deque[Any]
    loads = Loads()  # Made by the master, before it forks.

    def init_process(self) -> None:
        self.is_ssl = bool(self.cfg.is_ssl)  # Looked up once: each request asks twice.
        self.most_long = max(1, self.cfg.threads // 2)
        # Whose requests a thread has to read, and of how many bytes.
        self.long: dict[Any, int] = {}
        self.short_in_line: deque[Any] = deque()  # Of at most SHORT_BYTES; they go first.
        self.long_in_line: deque[Any] = deque()
        self.ending: set[Any] = set()
        super().init_process()

    def notify(self) -> None:
        """Say that this worker is alive, as it does in each turn of its loop."""
        super().notify()
        self.loads.report(self.age, self.nr_conns)

    def accept(self, listener: Any) -> None:
        """Take a connection, unless another worker that has fewer takes it first."""
        if self.loads.has_fewer(self.nr_conns):
            time.sleep(YIELDS_FOR_S)
        super().accept(listener)

    def enqueue_req(self, conn: Any) -> None:
        """Give a connection a thread when its request is here, and not before."""
        if self.is_ssl:  # The handshake would hold up the event loop.
            super().enqueue_req(conn)
        elif conn in self.ending:
            self._await_end(conn)
        else:
            self._await_request(conn)

    def _await_request(self, conn: Any) -> None:
        if not conn.initialized:
            conn.init()
            conn.parser.unreader = Unreader(conn.sock)
        unreader = conn.parser.unreader
        if unreader.ends_at is None:
            unreader.begin()
        if not unreader.collect():
            self._wait(conn, unreader.ends_at)
        elif unreader.has_ended or is_complete(unreader.buf.getvalue()):
            super().enqueue_req(conn)
        elif _long_bytes(conn) <= SHORT_BYTES:
            self.short_in_line.append(conn)
            self._serve_long()
        elif len(self.long_in_line) < MAX_IN_LINE:
            self.long_in_line.append(conn)
            self._serve_long()
        else:
            self._reject(conn)

    def _serve_long(self) -> None:
        while len(self.long) < self.most_long and (conn := self._next_in_line()):
            self.long[conn] = _long_bytes(conn)
            conn.parser.unreader.begin()  # Its time in line does not count.
            super().enqueue_req(conn)

    def _next_in_line(self) -> Any:
        """Take the next connection whose body has room, if there is one."""
        if self.short_in_line:
            return self.short_in_line.popleft()
        if not self.long_in_line:
            return None
        bytes_then = sum(self.long.values()) + _long_bytes(self.long_in_line[0])
        has_room = not self.long or bytes_then <= MAX_LONG_BYTES
        return self.long_in_line.popleft() if has_room else None

    def _reject(self, conn: Any) -> None:
        """Tell a caller that uploads are too many just now, without a thread."""
        conn.sock.setblocking(False)
        with contextlib.suppress(OSError):
            conn.sock.send(FULL)
        self.nr_conns -= 1  # `_end` puts it back until the caller has hung up.
        conn.close = partial(self._end, conn)
        conn.close(graceful=True)

    def handle_request(self, req: Any, conn: Any) -> Any:
        """Answer a request, in a thread.

        Raises:
            TooSlowError: its caller does not read the answer.
            RuntimeError: the app has exited, which would end the loop of all requests.
        """
        conn.sock.settimeout(ANSWER_TAKEN_WITHIN_S)
        try:
            return super().handle_request(req, conn)
        except TimeoutError as error:
            raise TooSlowError from error
        except Exception:
            raise
        except BaseException as exit_:
            raise RuntimeError(f"the app has raised {type(exit_).__name__}") from exit_

    def finish_request(self, conn: Any, fs: Any) -> None:
        self.long.pop(conn, None)
        self._serve_long()
        if not self.is_ssl:
            conn.parser.unreader.ends_at = None
            # gthread would wait in here until the caller hangs up, and block all others.
            conn.close = partial(self._end, conn)
        super().finish_request(conn, fs)

    def _end(self, conn: Any, graceful: bool = False) -> None:
        """Close a connection, after an answer when its caller does: else it may be lost."""
        del conn.close
        if not graceful:
            conn.close()
            return
        self.nr_conns += 1  # It has been taken off too early.
        self.ending.add(conn)
        with contextlib.suppress(OSError):
            conn.sock.shutdown(socket.SHUT_WR)
        conn.timeout = time.monotonic() + HANGS_UP_WITHIN_S
        self._await_end(conn)

    def _await_end(self, conn: Any) -> None:
        conn.sock.setblocking(False)
        try:
            received = conn.sock.recv(MAX_WAITING_BYTES)
        except BlockingIOError:
            received = b"perhaps"
        except OSError:
            received = b""
        if received:
            self._wait(conn, conn.timeout)
        else:
            self.nr_conns -= 1
            self.ending.discard(conn)
            conn.close()

    def _wait(self, conn: Any, ends_at: float) -> None:
        conn.sock.setblocking(False)
        conn.timeout = ends_at
        self.pending_conns.append(conn)
        self.poller.register(conn.sock, EVENT_READ, partial(self.on_pending_socket_readable, conn))

    def murder_pending(self) -> None:
        # gthread looks no further than the first whose time is not over.
        self.pending_conns = deque(sorted(self.pending_conns, key=lambda conn: conn.timeout))
        super().murder_pending()
        self.ending.intersection_update(self.pending_conns)

    def _cap_keepalive(self, deadline: float) -> None:
        """Begin to end, by a signal or after `max_requests`: streams end now, not in a minute."""
        super()._cap_keepalive(deadline)
        for conn in self.pending_conns:
            conn.timeout = min(conn.timeout, deadline)
        live = extensions_of(self.wsgi).get("live")
        if live is not None:
            live.streams.close()


class Unreader(SocketUnreader):  # type: ignore[misc]
    """Reads a request within its time."""

    ends_at: float | None = None
    has_ended = False  # The caller has hung up, or sends no more.

    def begin(self) -> None:
        """Let the time for a request begin."""
        self.ends_at = time.monotonic() + ARRIVES_WITHIN_S

    def collect(self) -> bool:
        """Receive without waiting; return whether a thread can continue from here."""
        self.sock.setblocking(False)
        try:
            while not self.has_ended and not is_ready(self.buf.getvalue()):
                data = self.sock.recv(MAX_WAITING_BYTES)
                self.has_ended = not data
                self.buf.seek(0, os.SEEK_END)
                self.buf.write(data)
        except BlockingIOError:
            return False
        except OSError:
            self.has_ended = True
        return True

    def chunk(self, size_hint: int | None = None) -> bytes:
        """Wait for the next bytes, in a thread.

        Raises:
            TooSlowError: the request's time is over.
        """
        assert self.ends_at is not None
        left_s = self.ends_at - time.monotonic()
        if left_s <= 0:
            raise TooSlowError
        self.sock.settimeout(left_s)
        try:
            data: bytes = super().chunk(size_hint)
        except TimeoutError:
            raise TooSlowError from None
        finally:
            self.sock.settimeout(ANSWER_TAKEN_WITHIN_S)
        self.ends_at += len(data) / MIN_BYTES_PER_S
        return data


def is_complete(received: bytes) -> bool:
    r"""Return whether a request is all there.

    >>> is_complete(b"GET / HTTP/1.1\r\n\r\n"), is_complete(b"GET / HTTP/1.1\r\n")
    (True, False)
    """
    head, end, body = received.partition(b"\r\n\r\n")
    length = _body_bytes(head)
    return bool(end) and length is not None and len(body) >= length


def is_ready(received: bytes) -> bool:
    r"""Return whether there is nothing to wait for: a request is all there, or is a long one.

    >>> is_ready(b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nab")
    False
    >>> is_ready(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
    True
    """
    head, end, body = received.partition(b"\r\n\r\n")
    if not end:
        return len(received) >= MAX_WAITING_BYTES
    length = _body_bytes(head)
    return length is None or length > MAX_WAITING_BYTES or len(body) >= length


def long_bytes(received: bytes) -> int:
    """Return how many bytes a request's body may have, by what its head says."""
    length = _body_bytes(received.partition(b"\r\n\r\n")[0])
    return LONGEST_BYTES if length is None else min(length, LONGEST_BYTES)


def _long_bytes(conn: Any) -> int:
    return long_bytes(conn.parser.unreader.buf.getvalue())


def _body_bytes(head: bytes) -> int | None:
    """Return how long a request's body is; None: that is not said plainly, or we are to speak."""
    head = head.lower()
    if b"\ntransfer-encoding" in head or b"\nexpect" in head:
        return None
    lengths = _LENGTH.findall(head)
    if len(lengths) != head.count(b"content-length"):
        return None
    return int(lengths[0]) if len(lengths) == 1 else None if lengths else 0
