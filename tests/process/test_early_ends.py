"""gunicorn's workers end when they are told to, however early that is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.process.servers import gunicorn

# The first worker hears it while it still has the master's handlers, the second one a bit later.
CONFIGURATION = """
import os
import signal
from rollforward.gunicorn.config import *
from rollforward.gunicorn.config import post_fork
hear = post_fork


def end():
    os.kill(os.getpid(), signal.SIGTERM)


def post_fork(server, worker):
    if worker.age == 1:
        end()
    hear(server, worker)
    if worker.age == 2:
        end()


def post_worker_init(worker):
    with open(os.environ["LOADED"], "a") as loaded:
        loaded.write(f"{worker.age} ")
"""


@pytest.mark.process
def test_a_request_that_exits_ends_no_worker(tmp_path: Path) -> None:
    """A program that a view or a task calls as a function exits: others are in that process."""
    request = b"GET /%s HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with gunicorn(tmp_path, "standin:serve()", "--workers", "1") as server:
        pids = [server.ask(request % b"worker").rpartition(b"\r\n")[2]]
        assert server.status(request % b"exit") == 500
        pids.append(server.ask(request % b"worker").rpartition(b"\r\n")[2])
    assert pids[0] == pids[1] != b""
    assert "SystemExit: 2" in server.log.read_text()


@pytest.mark.process
def test_a_worker_that_is_told_to_end_while_it_starts_ends(tmp_path: Path) -> None:
    """Else gunicorn waits for it as long as for requests that are under way: half a minute."""
    (tmp_path / "conf.py").write_text(CONFIGURATION)
    loaded = tmp_path / "loaded"
    config = ("--config", str(tmp_path / "conf.py"))
    with gunicorn(tmp_path, "standin:serve()", *config, LOADED=str(loaded)):
        assert loaded.read_text() == "3 "
