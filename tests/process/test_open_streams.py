"""gunicorn with more listeners than threads: it serves others, and ends when it is told to."""

from __future__ import annotations

import contextlib
import http.client
import signal
import time
from pathlib import Path

import pytest
from itsdangerous import URLSafeSerializer

from tests.infra.documents import LOCAL_ENVIRONMENT
from tests.infra.stack import until
from tests.process.servers import PATIENCE_S, THREADS, Server, gunicorn

pytestmark = pytest.mark.process

STREAMS = 2
GRACE_S = 60
STOPS_WITHIN_S = 30  # Of this grace: a stream that nobody ends would use it up.


def test_open_streams_keep_nobody_out_and_hold_up_no_restart(tmp_path: Path) -> None:
    """S34: more listeners than threads; some are served, all others are told to ask."""
    token = URLSafeSerializer(LOCAL_ENVIRONMENT["SECRET_KEY"], salt="live updates").dumps(["x"])
    settings = {**LOCAL_ENVIRONMENT, "LIVE_STREAMS": str(STREAMS)}
    arguments = ("--graceful-timeout", str(GRACE_S))
    with (
        gunicorn(tmp_path, "main:serve()", *arguments, **settings) as server,
        contextlib.ExitStack() as stack,
    ):
        statuses = [_listen(server, stack, token) for _ in range(2 * THREADS)]

        assert statuses == [200] * STREAMS + [503] * (2 * THREADS - STREAMS)
        assert server.answers("/health/live")
        assert server.answers(f"/updates/{token}")

        assert server.process is not None
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(STOPS_WITHIN_S) == 0


def _listen(server: Server, stack: contextlib.ExitStack, token: str) -> int:
    """Ask for a stream, which stays open; return how that was answered."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)
    stack.callback(connection.close)
    connection.request("GET", f"/updates/{token}/events")
    return connection.getresponse().status


def test_open_streams_hold_up_no_worker_that_has_had_its_requests(tmp_path: Path) -> None:
    """S34: gunicorn starts the next one when it has ended, and until then nobody is served."""
    token = URLSafeSerializer(LOCAL_ENVIRONMENT["SECRET_KEY"], salt="live updates").dumps(["x"])
    arguments = ("--graceful-timeout", str(GRACE_S), "--max-requests", "5")
    with (
        gunicorn(tmp_path, "main:serve()", *arguments, **LOCAL_ENVIRONMENT) as server,
        contextlib.ExitStack() as stack,
    ):
        assert _listen(server, stack, token) == 200
        began_s = time.monotonic()
        for _ in range(5):
            server.answers("/health/live")
        until(lambda: server.answers("/health/live"), GRACE_S)
        assert time.monotonic() - began_s < STOPS_WITHIN_S
