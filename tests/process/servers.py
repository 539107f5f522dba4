"""gunicorn with the library's configuration, on a stand-in or on the app, for tests to call."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rollforward.local.system.ports import free_port
from tests.infra.stack import ROOT, until

THREADS = 4
CONFIG = "--config", "python:rollforward.gunicorn.config"  # The last one of several counts.
# What a call may take that nobody holds up; far less than a held thread is held.
PATIENCE_S = 6
STANDIN = """
import hashlib
import os
from flask import Flask, request

def serve():
    app = Flask(__name__)

    @app.post("/echo")
    def echo():
        return hashlib.sha256(request.get_data()).hexdigest()

    @app.get("/large")
    def large():
        return bytes(50_000_000)

    @app.get("/worker")
    def worker():
        return str(os.getpid())

    @app.get("/exit")
    def leave():
        raise SystemExit(2)

    @app.get("/")
    def home():
        return "home"

    return app
"""


@dataclass
class Server:
    """A gunicorn at work."""

    port: int
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)

    def ask(self, request: bytes) -> bytes:
        """Send bytes as they are and return all that comes back until the end."""
        with self.connect() as line:
            with contextlib.suppress(OSError):  # Refused before all was sent.
                line.sendall(request)
                line.shutdown(socket.SHUT_WR)
            return everything(line)

    def status(self, request: bytes) -> int:
        answer = self.ask(request)
        assert answer, "no answer at all"
        return int(answer.split()[1])

    def answers(self, path: str = "/") -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.request("GET", path)
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()


def everything(line: socket.socket) -> bytes:
    found = b""
    with contextlib.suppress(ConnectionError):
        while more := line.recv(65536):
            found += more
    return found


@contextlib.contextmanager
def gunicorn(folder: Path, target: str, *arguments: str, **environment: str) -> Iterator[Server]:
    """Run gunicorn with the library's configuration; yield it when it answers."""
    (folder / "standin.py").write_text(STANDIN)
    server = Server(free_port(), folder / "log")
    command = [
        sys.executable,
        "-m",
        "gunicorn",
        target,
        *CONFIG,
        "--bind",
        f"127.0.0.1:{server.port}",
    ]
    command += ["--threads", str(THREADS), "--pythonpath", str(folder), "--no-control-socket"]
    with server.log.open("wb") as log:
        process = subprocess.Popen(
            [*command, *arguments], cwd=ROOT, env={**os.environ, **environment}, stderr=log
        )
    server.process = process
    try:
        path = "/" if target.startswith("standin") else "/health/live"
        until(lambda: process.poll() is not None or server.answers(path), 60)
        assert process.poll() is None, server.log.read_text()
        yield server
    finally:
        process.terminate()
        process.wait(40)
