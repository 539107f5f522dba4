"""Health checks of the services: a real call to each, on a thread, with a time limit.

A process that runs may still answer nothing: it hangs, or waits for a lock. A service that does not
answer for SILENT_S is named at the terminal, in the console and by the app's own health page.
"""

import asyncio
import smtplib
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import grpc
from google.cloud.tasks_v2 import GetQueueRequest
from google.protobuf import empty_pb2

from rollforward.local.system import ports

SILENT_S = 10.0
ASK_EVERY_S = 2.0
ASK_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Probe:
    """The health check of one service.

    Attributes:
        name: As in the table of services.
        ask: Returns when the service has answered; raises, in ASK_TIMEOUT_S or a little more.
        advice: A sentence that says how to mend it.
    """

    name: str
    ask: Callable[[], object]
    advice: str


@dataclass
class _Health:
    """The last known health of one service."""

    answered_at: float
    asked: "Future[object] | None" = None
    is_silent: bool = False


@dataclass
class Watch:
    """Asks services for as long as run() runs.

    Attributes:
        probes: Whom to ask.
        say: Called with a service's name and a line for the person at the terminal.
        clock: Seconds that only go forward.
    """

    probes: Sequence[Probe]
    say: Callable[[str, str], None]
    clock: Callable[[], float] = time.monotonic
    _health: dict[str, _Health] = field(default_factory=dict)
    _threads: ThreadPoolExecutor | None = None

    async def run(self) -> None:
        """Ask until cancelled."""
        try:
            while True:
                self.poll()
                await asyncio.sleep(ASK_EVERY_S)
        finally:
            self.close()

    def poll(self) -> None:
        """Take the answers that came, name who is silent, and ask again who is not being asked."""
        if self._threads is None:
            # One each: a service that hangs must not keep another from being asked.
            self._threads = ThreadPoolExecutor(max(1, len(self.probes)), "watch")
        for probe in self.probes:
            health = self._health.setdefault(probe.name, _Health(self.clock()))
            if health.asked is None or health.asked.done():
                self._take(probe, health)
                health.asked = self._threads.submit(probe.ask)
            self._check(probe, health)

    def close(self) -> None:
        """Stop the checks; calls in progress end on their own."""
        if self._threads is not None:
            self._threads.shutdown(wait=False)
            self._threads = None

    def silent_s(self, name: str) -> float:
        """Return for how long a service has not answered; 0 if that is not worth a word."""
        health = self._health.get(name)
        if health is None or not health.is_silent:
            return 0.0
        return self.clock() - health.answered_at

    def hint(self, name: str) -> str:
        """Return what to do about a service."""
        return next((probe.advice for probe in self.probes if probe.name == name), "")

    def _take(self, probe: Probe, health: _Health) -> None:
        if health.asked is None or health.asked.exception() is not None:
            return
        if health.is_silent:
            quiet_s = self.clock() - health.answered_at
            self.say(probe.name, f"answers again, after {quiet_s:.0f} s → nothing to do")
        health.answered_at, health.is_silent = self.clock(), False

    def _check(self, probe: Probe, health: _Health) -> None:
        if health.is_silent or self.clock() - health.answered_at < SILENT_S:
            return
        health.is_silent = True
        self.say(probe.name, f"has not answered for {SILENT_S:.0f} s. {probe.advice}")


# How each kind of service is asked


def ping_memcached(address: str) -> None:
    """Return when the cache has said its version."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=ASK_TIMEOUT_S) as connection:
        connection.sendall(b"version\r\n")
        if not connection.recv(64).startswith(b"VERSION"):
            raise OSError("memcached said something else")


def ping_mail(address: str) -> None:
    """Return when the mail server has greeted us."""
    host, _, port = address.rpartition(":")
    with smtplib.SMTP(host, int(port), timeout=ASK_TIMEOUT_S) as connection:
        connection.noop()


def ping_cloud_tasks(address: str, queue: str) -> None:
    """Return when Cloud Tasks has answered, if only that the queue does not exist."""
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(
            "/google.cloud.tasks.v2.CloudTasks/GetQueue",
            request_serializer=GetQueueRequest.serialize,
            response_deserializer=empty_pb2.Empty.FromString,
        )
        try:
            call(GetQueueRequest(name=queue), timeout=ASK_TIMEOUT_S)
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.NOT_FOUND:
                raise


def ping_app(port: int, path: str) -> None:
    """Return when the app has answered, with any status."""
    with socket.create_connection((ports.LOOPBACK, port), timeout=ASK_TIMEOUT_S) as connection:
        request = (
            f"GET {path} HTTP/1.1\r\nHost: {ports.LOOPBACK}:{port}\r\nConnection: close\r\n\r\n"
        )
        connection.sendall(request.encode())
        if not connection.recv(64).startswith(b"HTTP/"):
            raise OSError("the app said something else")
