"""gunicorn as it is deployed, and callers that are slow, garbled, or forge a front end's words."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from rollforward.local.system.ports import free_port
from tests.infra.documents import LOCAL_ENVIRONMENT
from tests.infra.stack import ROOT, until
from tests.process.servers import CONFIG, THREADS, Server, everything, gunicorn

pytestmark = pytest.mark.process

CALLERS = 3 * THREADS
HURRIED = """
from rollforward.gunicorn import worker
from rollforward.gunicorn.config import *
worker.ARRIVES_WITHIN_S = worker.ANSWER_TAKEN_WITHIN_S = worker.HANGS_UP_WITHIN_S = 0.3
"""

CHUNKED = b"POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
JSON = b"Content-Type: application/json\r\n"
FORM = b"Content-Type: application/x-www-form-urlencoded\r\n"
MULTIPART = b"Content-Type: multipart/form-data; boundary=b\r\n"


CROWDED = """
from rollforward.gunicorn import worker
from rollforward.gunicorn.config import *
worker.MAX_LONG_BYTES = 1_000_000
worker.MAX_IN_LINE = 1
"""


def post(kind: bytes, length: int, body: bytes = b"") -> bytes:
    """Return the beginning of a request with a body of some length."""
    head = b"POST /echo HTTP/1.1\r\nHost: localhost\r\n" + kind
    return head + b"Content-Length: %d\r\n\r\n" % length + body


SLOW = {
    "nothing": b"",
    "half-a-line": b"GET / HT",
    "half-a-head": b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
    "half-a-form": post(FORM, 1000, b"a="),
    "half-a-json": post(JSON, 1000, b'{"a'),
    "half-a-multipart": post(MULTIPART, 1000, b"--b\r\n"),
    "half-a-chunk": CHUNKED + b"\r\nff\r\n{",
    "half-of-much": post(JSON, 10_000_000, b" " * 100_000),
    "waits-for-our-word": post(b"Expect: 100-continue\r\n", 1000),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with gunicorn(tmp_path_factory.mktemp("server"), "standin:serve()") as running:
        yield running


@pytest.fixture(scope="module")
def hurried(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose patience is short."""
    folder = tmp_path_factory.mktemp("hurried")
    (folder / "conf.py").write_text(HURRIED)
    with gunicorn(folder, "standin:serve()", "-c", str(folder / "conf.py")) as running:
        yield running


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that has room for one upload, and for one that waits."""
    folder = tmp_path_factory.mktemp("crowded")
    (folder / "conf.py").write_text(CROWDED)
    with gunicorn(folder, "standin:serve()", "-c", str(folder / "conf.py")) as running:
        yield running


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The app itself, without any service."""
    folder = tmp_path_factory.mktemp("app")
    with gunicorn(folder, "main:serve()", **LOCAL_ENVIRONMENT) as running:
        yield running


@pytest.mark.parametrize("kind", SLOW)
def test_slow_callers_do_not_keep_others_out(server: Server, kind: str) -> None:
    """S24: three times as many slow callers as threads, and the next one is answered."""
    with contextlib.ExitStack() as stack:
        for _ in range(CALLERS):
            stack.enter_context(server.connect()).sendall(SLOW[kind])

        assert server.answers()


def test_callers_that_do_not_hang_up_do_not_keep_others_out(server: Server) -> None:
    """S24: an answered caller whose line stays open costs nobody time."""
    with contextlib.ExitStack() as stack:
        for _ in range(CALLERS):
            line = stack.enter_context(server.connect())
            line.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert everything(line)

        assert server.answers()


@pytest.mark.parametrize("kind", SLOW)
def test_a_byte_now_and_then_buys_no_time(hurried: Server, kind: str) -> None:
    """S24: the time is that of the whole request, however steadily it dribbles in."""
    with hurried.connect() as line:
        line.sendall(SLOW[kind])

        assert everything_while(line, lambda: line.sendall(b" ")).partition(b" ")[0] in (
            b"",
            b"HTTP/1.1",
        )
    assert hurried.answers()


def everything_while(line: socket.socket, do: Callable[[], None]) -> bytes:
    """Return what comes until the other side hangs up, doing something again and again."""
    found, is_open = b"", True
    line.settimeout(0.02)
    ends_at = time.monotonic() + 60
    while is_open:
        assert time.monotonic() < ends_at, "it stayed open"
        try:
            do()
            more = line.recv(65536)
            found, is_open = found + more, bool(more)
        except TimeoutError:
            continue
        except OSError:
            is_open = False
    return found


def test_an_answer_that_nobody_takes_is_given_up(hurried: Server) -> None:
    """S24: callers that ask for much and read nothing hold their threads for a while only."""
    with contextlib.ExitStack() as stack:
        for _ in range(CALLERS):
            line = stack.enter_context(hurried.connect())
            line.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")

        until(hurried.answers, 60)


BODY = bytes(range(256)) * 4
SHA = hashlib.sha256(BODY).hexdigest().encode()
WHOLE = post(JSON, len(BODY), BODY)
WHOLE_IN_CHUNKS = CHUNKED + b"\r\n" + b"400\r\n" + BODY + b"\r\n0\r\n\r\n"


@pytest.mark.parametrize("step", [1, 7, 100, 100_000])
@pytest.mark.parametrize("request_", [WHOLE, WHOLE_IN_CHUNKS], ids=["length", "chunks"])
def test_a_request_is_the_same_in_any_pieces(server: Server, request_: bytes, step: int) -> None:
    """Whatever arrives together, the app reads the same body."""
    with server.connect() as line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for begin in range(0, len(request_), step):
            line.sendall(request_[begin : begin + step])
        line.shutdown(socket.SHUT_WR)

        assert everything(line).endswith(SHA)


def test_requests_behind_each_other_are_answered_in_order(server: Server) -> None:
    """A caller may send the next request before the answer, on one line."""
    answer = server.ask(WHOLE + b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" + WHOLE_IN_CHUNKS)

    assert [answer.count(SHA), answer.count(b"\r\n\r\nhome")] == [2, 1]
    assert answer.index(SHA) < answer.index(b"home") < answer.rindex(SHA)


def test_a_long_body_and_one_that_waits_for_our_word_are_read(server: Server) -> None:
    """Beyond what waits in the event loop, and with 100-continue, which wants an answer first."""
    assert server.status(post(JSON, 5_000_000, bytes(5_000_000))) == 200
    with server.connect() as line:
        line.sendall(post(b"Expect: 100-continue\r\n", len(BODY)))
        assert line.recv(100).startswith(b"HTTP/1.1 100")
        line.sendall(BODY)
        line.shutdown(socket.SHUT_WR)
        assert everything(line).endswith(SHA)


def await_turns(server: Server) -> None:
    """Wait until the event loop has seen what was sent before.

    An answer takes one turn of it, in which it may have come first; a later turn has seen the rest.
    """
    for _ in range(3):
        assert server.answers()


def test_callers_that_hang_up_stand_in_no_line(crowded: Server) -> None:
    """S24: the room to wait in is for uploads; the ends of kept connections took it from them."""
    size = 900_000
    with contextlib.ExitStack() as stack:
        first, second = (stack.enter_context(crowded.connect()) for _ in range(2))
        first.sendall(post(JSON, size, bytes(70_000)))
        await_turns(crowded)
        kept = [stack.enter_context(crowded.connect()) for _ in range(20)]
        for line in kept:
            line.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert line.recv(1)
        for line in kept:
            line.shutdown(socket.SHUT_WR)

        second.sendall(post(JSON, size, bytes(70_000)))
        first.sendall(bytes(size - 70_000))
        assert first.recv(12) == b"HTTP/1.1 200"
        second.sendall(bytes(size - 70_000))
        assert second.recv(12) == b"HTTP/1.1 200"


def test_uploads_are_let_in_by_their_bytes(crowded: Server) -> None:
    """S24: two have threads enough and not memory; a third is told when to come again.

    A task's body, which is short, passes them all.
    """
    half, size = bytes(450_000), 900_000
    with crowded.connect() as first, crowded.connect() as second:
        first.sendall(post(JSON, size, half))
        await_turns(crowded)
        second.sendall(post(JSON, size, half[:70_000]))
        await_turns(crowded)

        refusal = crowded.ask(post(JSON, size, bytes(size)))
        assert refusal.startswith(b"HTTP/1.1 503")
        assert b"\r\nRetry-After: 10\r\n" in refusal
        assert crowded.status(post(JSON, 100_000, bytes(100_000))) == 200

        first.sendall(half)
        first.shutdown(socket.SHUT_WR)
        assert everything(first).startswith(b"HTTP/1.1 200")
        second.sendall(bytes(size - 70_000))
        second.shutdown(socket.SHUT_WR)
        assert everything(second).startswith(b"HTTP/1.1 200")


def test_an_answer_is_not_lost_to_a_caller_that_still_sends(server: Server) -> None:
    """A refusal reaches its caller, although the rest of the body is on its way."""
    with server.connect() as line:
        line.sendall(b"BAD LINE\r\n\r\n" + bytes(10_000))

        assert everything(line).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize(
    "chunks",
    [
        b"zz\r\nabc\r\n",
        b"-5\r\nabcde\r\n0\r\n\r\n",
        b"0x5\r\nabcde\r\n0\r\n\r\n",
        b"5 \r\nabcde\r\n0\r\n\r\n",
        b"1_0\r\nabcdefghijklmnop\r\n0\r\n\r\n",
        b"\r\nabc\r\n",
        b"5\r\nabcdefgh\r\n0\r\n\r\n",
        b"0\r\nbad trailer\r\n\r\n",
        b"5;" + b"x" * 70_000 + b"\r\nabcde\r\n0\r\n\r\n",
        b"ff\r\nabc",
        b"5\r\nabcde\r\n",
    ],
    ids=lambda chunks: repr(chunks[:10]),
)
@pytest.mark.parametrize(
    ("path", "kind"),
    [
        (b"/api/v1/sums/visitors", JSON),
        (b"/grades/students", FORM),
        (b"/grades/lists", MULTIPART),
    ],
)
def test_garbled_chunks_are_the_callers_error(
    app: Server, path: bytes, kind: bytes, chunks: bytes
) -> None:
    """S23: a body that is no HTTP is a 400, and no stack in the log."""
    status = app.status(CHUNKED.replace(b"/echo", path) + kind + b"\r\n" + chunks)

    assert status == 400
    assert "Traceback" not in app.log.read_text()


@pytest.mark.parametrize("name", [b"SCRIPT_NAME", b"PATH_INFO", b"Script_Name"])
def test_a_caller_cannot_say_where_the_app_is_mounted(app: Server, name: bytes) -> None:
    """S3: what a front end may say with other servers is a stranger's header here."""
    request = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n" + name + b": /tasks\r\n\r\n"

    assert app.status(request) == 200


@pytest.mark.parametrize(
    "argument",
    [
        "--header-map=dangerous",
        "--forwarder-headers=X_APPENGINE_CRON",
        "--forwarder-headers=*",
        "--forwarder-headers=SCRIPT_NAME",
    ],
)
def test_arguments_that_let_callers_forge_headers_stop_gunicorn(argument: str) -> None:
    """S3: whoever can set them in GUNICORN_CMD_ARGS by mistake is told, and nothing is served."""
    ended = subprocess.run(
        [
            sys.executable,
            "-m",
            "gunicorn",
            "main:serve()",
            *CONFIG,
            "--bind",
            f"127.0.0.1:{free_port()}",
        ],
        cwd=ROOT,
        env={**os.environ, **LOCAL_ENVIRONMENT, "GUNICORN_CMD_ARGS": argument},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert ended.returncode != 0
    assert "forge" in ended.stderr
