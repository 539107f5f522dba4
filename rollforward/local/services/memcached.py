"""The cache: a memcached of our own, never one that others use.

1. MEMCACHE_HOSTS, if set: another program runs it.
2. `memcached` on PATH.
3. As root on a Debian system: installed by apt, once.
4. Otherwise none: the app works without a cache, only in smaller batches.
"""

import os
import pwd
import shutil
import socket
import time

from rollforward.local.errors import ServiceFailedError, ServiceMissingError
from rollforward.local.system import debian, ports
from rollforward.local.system.processes import GuardedProcess, LineSink

MEGABYTES = 64
HOW_TO_GET = (
    "memcached is missing: the app runs without a cache (smaller batches, same results). "
    "To have one: apt-get install memcached, or brew install memcached"
)
_READY_S = 10.0
_PORT_ATTEMPTS = 3


class Memcached:
    """One memcached process on the loopback interface."""

    def __init__(self, *, port: int = 0, on_line: LineSink | None = None) -> None:
        """Describe it; port 0 takes a free port."""
        self.port = port
        self.on_line = on_line
        self.process: GuardedProcess | None = None

    @property
    def address(self) -> str:
        """host:port, for MEMCACHE_HOSTS."""
        return f"{ports.LOOPBACK}:{self.port}"

    def start(self) -> None:
        """Start it and return when it answers.

        Raises:
            ServiceMissingError: it is not installed and cannot be.
            ServiceFailedError: it ended or did not answer.
        """
        program = find_program() or install()
        attempts = 1 if self.port else _PORT_ATTEMPTS
        for attempt in range(1, attempts + 1):
            if attempts > 1:
                self.port = ports.free_port()
            try:
                self._start_once(program)
            except ServiceFailedError:
                self.stop()
                if attempt == attempts:
                    raise
            else:
                return

    def stop(self) -> None:
        """End it; a cache has nothing to save."""
        if self.process is not None:
            self.process.stop()
            self.process = None

    def flush(self) -> None:
        """Drop all values."""
        with socket.create_connection((ports.LOOPBACK, self.port), timeout=2) as connection:
            connection.sendall(b"flush_all\r\n")
            connection.recv(64)

    def _start_once(self, program: str) -> None:
        command = [program, "-l", ports.LOOPBACK, "-p", str(self.port), "-U", "0"]
        command += ["-m", str(MEGABYTES), *_run_as()]
        self.process = GuardedProcess("memcached", command, grace_s=1, on_line=self.on_line)
        self.process.start()
        deadline = time.monotonic() + _READY_S
        while not ports.accepts_connections(ports.LOOPBACK, self.port):
            if not self.process.wait(0.02) and time.monotonic() < deadline:
                continue
            raise ServiceFailedError(f"memcached did not start:\n{self.process.describe_end()}")


def find_program() -> str | None:
    """Return the path of memcached, or None."""
    return shutil.which("memcached")


def install() -> str:
    """Install memcached with apt and return its path.

    Raises:
        ServiceMissingError: this is no Debian, we are not root, or apt failed.
    """
    program = debian.install("memcached", "memcached")
    if program is None:
        raise ServiceMissingError(HOW_TO_GET)
    return program


def _run_as() -> list[str]:
    """As root, memcached insists on the name of a user to become."""
    if os.geteuid() != 0:
        return []
    try:
        pwd.getpwnam("nobody")
    except KeyError:
        return ["-u", "root"]
    return ["-u", "nobody"]
