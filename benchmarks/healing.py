"""How long after the last fault everything is exact again, on the whole stack as `make run` has it.

Writers add to a sum and to a school without pause while a fault strikes; then they end, and the
time counts until total and bars are what was accepted. A write without an answer is sent again
with its key. Cron rests: what is measured is not the sweep of the next minute.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import requests

from benchmarks.results import Result
from devserver import ports
from devserver.services import datastore_emulator

ROOT = Path(__file__).parent.parent
SUM = "healing"
SUM_WRITERS, SCHOOL_WRITERS = 4, 2
WRITE_S, FORGET_S = 3.0, 8.0
LOST_SHARE = 0.3
GIVE_UP_S = 180.0
LOOK_EVERY_S = 0.2
PORTS = ("APP", "CONSOLE", "TASKS", "DATASTORE", "MEMCACHE", "MAIL")
NOT_LINKED = {".dev", ".git"}
COMMIT = "/google.datastore.v1.Datastore/Commit"
BAR = re.compile(
    r'<tr><th scope="row">(\d+)</th><td class="n">(\d+)</td><td class="n">[\d.–]+</td>'
)


def measure() -> Iterator[Result]:
    """Measure each kind of fault once; the targets are for a machine with nothing else to do."""
    with running() as stack:
        yield _result("killed_worker", 10.0, heal(stack, stack.kill_worker))
    with running() as stack:
        yield _result("graceful_restart", 5.0, heal(stack, stack.restart))
    with (
        datastore_emulator() as real,
        forgetful(real) as proxy,
        running(DATASTORE_EMULATOR_HOST=proxy.address) as stack,
    ):
        yield _result("lost_replies", 5.0, heal(stack, proxy.forget_for_a_while))


def _result(name: str, most_s: float, healed: dict[str, float]) -> Result:
    slowest_s = max(healed.values())
    versus = "from the end of the fault to exact"
    return Result(f"healing_{name}", slowest_s, "s", versus, most_s, at_least=False, raw={**healed})


def heal(stack: Stack, fault: Callable[[], None]) -> dict[str, float]:
    """Return the seconds from the end of a fault until each total was exact."""
    stack.rest_cron()
    books = Books(stack)
    books.open()
    with books.writing():
        time.sleep(WRITE_S)
        fault()
        began = time.monotonic()
    stack.rest_cron()
    return books.until_exact(began)


# The stack


@dataclass
class Stack:
    """A dev server that can be restarted in its folder, at its ports."""

    folder: Path
    environment: dict[str, str]
    where: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "devserver", "--json", "--no-reload"]
        self.process = subprocess.Popen(
            command,
            cwd=self.folder,
            env={**os.environ, **self.environment},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.where = json.loads(self.process.stdout.readline())

    def stop(self, number: signal.Signals = signal.SIGINT) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        self.process.send_signal(number)
        self.process.wait(120)
        self.process.stdout.close()

    def restart(self) -> None:
        """Stop as Ctrl-C does, and start again."""
        self.stop()
        self.start()

    def kill_worker(self) -> None:
        """Kill one of the app's workers."""
        self.control("/api/v1/workers/kill", {})

    def rest_cron(self) -> None:
        """Let no sweep run by itself."""
        for job in self.control("/api/v1/cron")["jobs"]:
            self.control("/api/v1/cron/pause", {"name": job["name"], "paused": True})

    def sweeps(self) -> int:
        """Return how many jobs of cron have run."""
        return sum(job["last"] is not None for job in self.control("/api/v1/cron")["jobs"])

    def control(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Ask the local platform; a body makes it a POST."""
        method = "GET" if body is None else "POST"
        answer = requests.request(method, self.where["console"] + path, json=body, timeout=30)
        answer.raise_for_status()
        return answer.json()


@contextlib.contextmanager
def running(**environment: str) -> Iterator[Stack]:
    """Run a dev server that keeps its data in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        for path in ROOT.iterdir():
            if path.name not in NOT_LINKED:
                (Path(folder) / path.name).symlink_to(path)
        chosen = {f"{name}_PORT": str(ports.free_port()) for name in PORTS}
        stack = Stack(Path(folder), {**chosen, **environment})
        stack.start()
        try:
            yield stack
        finally:
            stack.stop()


# What is written, and what must come of it


class Books:
    """What the writers were told is accepted."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.amount = self.items = 0
        self.students: Counter[int] = Counter()
        self._lock = threading.Lock()
        self._has_ended = threading.Event()

    def open(self) -> None:
        """Make the sum; the school is there."""
        self._send_form(requests.Session(), "/sums", "/sums", {"name": SUM})

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Write meanwhile; on return every write that was begun is accepted."""
        self._has_ended.clear()
        work = [self._add_up] * SUM_WRITERS + [self._add_students] * SCHOOL_WRITERS
        with futures.ThreadPoolExecutor(len(work)) as threads:
            writers = [threads.submit(write) for write in work]
            try:
                yield
            finally:
                self._has_ended.set()
            for writer in writers:
                writer.result()

    def until_exact(self, began: float = 0.0) -> dict[str, float]:
        """Return the seconds since `began`, or now, until each total is what was accepted.

        Raises:
            AssertionError: it is not within GIVE_UP_S.
        """
        looks = {"sum": self._sum_is_exact, "bars": self._bars_are_exact}
        began = began or time.monotonic()
        exact_s: dict[str, float] = {}
        while len(exact_s) < len(looks):
            for name in looks.keys() - exact_s.keys():
                if looks[name]():
                    exact_s[name] = round(time.monotonic() - began, 1)
            if time.monotonic() - began > GIVE_UP_S:
                raise AssertionError(f"not exact after {GIVE_UP_S:.0f} s; exact were {exact_s}")
            time.sleep(LOOK_EVERY_S)
        return exact_s

    def _sum_is_exact(self) -> bool:
        answer = self._get(f"/api/v1/sums/{SUM}")
        if answer is None:
            return False
        told = answer.json()
        return bool((told["total"], told["items"]) == (self.amount, self.items))

    def _bars_are_exact(self) -> bool:
        answer = self._get("/grades")
        bars = {
            int(grade): int(count) for grade, count in BAR.findall(answer.text if answer else "")
        }
        return {grade: count for grade, count in bars.items() if count} == dict(self.students)

    def _get(self, path: str) -> requests.Response | None:
        with contextlib.suppress(requests.RequestException):
            answer = requests.get(self.stack.where["app"] + path, timeout=30)
            if answer.status_code == 200:
                return answer
        return None

    def _add_up(self) -> None:
        session = requests.Session()
        while not self._has_ended.is_set():
            amount, key = random.randint(-1000, 1000), secrets.token_hex(16)
            _until_taken(partial(self._send_amount, session, amount, key), {202})
            with self._lock:
                self.amount += amount
                self.items += 1

    def _send_amount(self, session: requests.Session, amount: int, key: str) -> requests.Response:
        url = f"{self.stack.where['app']}/api/v1/sums/{SUM}"
        headers = {"Idempotency-Key": key}
        return session.post(url, json={"amount": amount}, headers=headers, timeout=30)

    def _add_students(self) -> None:
        session = requests.Session()
        while not self._has_ended.is_set():
            grade, student = random.randint(1, 12), secrets.token_hex(16)
            form = {"id": student, "name": "Ada", "grade": str(grade), "points": "50"}
            self._send_form(session, "/grades", "/grades/students", form)
            with self._lock:
                self.students[grade] += 1

    def _send_form(
        self, session: requests.Session, page: str, path: str, form: dict[str, str]
    ) -> None:
        def send() -> requests.Response:
            shown = session.get(self.stack.where["app"] + page, timeout=30).text
            token = re.search(r'name="csrf_token" value="([^"]+)"', shown)
            sent = {**form, "csrf_token": token.group(1) if token else ""}
            url = self.stack.where["app"] + path
            return session.post(url, data=sent, timeout=30, allow_redirects=False)

        _until_taken(send, {303})


def _until_taken(send: Callable[[], requests.Response], taken: set[int]) -> None:
    """Send the same until it is accepted."""
    ends_at = time.monotonic() + GIVE_UP_S
    while time.monotonic() < ends_at:
        with contextlib.suppress(requests.RequestException):
            if send().status_code in taken:
                return
        time.sleep(LOOK_EVERY_S)
    raise AssertionError(f"not accepted within {GIVE_UP_S:.0f} s")


# A Datastore that forgets to answer


class Proxy(grpc.GenericRpcHandler):
    """Hands every call on; on request it loses replies of commits that took effect."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.address = ""
        self._channel = channel
        self._forgets = False

    def forget_for_a_while(self) -> None:
        """Lose LOST_SHARE of the replies for FORGET_S."""
        self._forgets = True
        time.sleep(FORGET_S)
        self._forgets = False

    def service(self, handler_call_details: Any) -> Any:
        method = handler_call_details.method
        forward = self._channel.unary_unary(method)

        def serve(request: bytes, context: grpc.ServicerContext) -> bytes:
            try:
                answer: bytes = forward(request, timeout=60)
            except grpc.RpcError as error:
                context.abort(error.code(), error.details())
            if method == COMMIT and self._forgets and random.random() < LOST_SHARE:
                context.abort(grpc.StatusCode.UNAVAILABLE, "the reply was lost")
            return answer

        return grpc.unary_unary_rpc_method_handler(serve)


@contextlib.contextmanager
def forgetful(real: str) -> Iterator[Proxy]:
    """Run a proxy before a Datastore."""
    limits = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(real, limits) as channel:
        server = grpc.server(futures.ThreadPoolExecutor(64), options=limits)
        proxy = Proxy(channel)
        server.add_generic_rpc_handlers([proxy])
        proxy.address = f"{ports.LOOPBACK}:{server.add_insecure_port(f'{ports.LOOPBACK}:0')}"
        server.start()
        try:
            yield proxy
        finally:
            server.stop(0).wait()
