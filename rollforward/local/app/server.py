"""The app: gunicorn in a child process.

Each worker loads the target after the fork, so a reload is a SIGHUP to gunicorn's master. The
master starts fresh workers, then retires the old ones once their requests are done. The emulators
and their tasks stay as they are.

A worker that cannot load the app serves a page that says why (wsgi.py), and reports it once.
"""

import asyncio
import contextlib
import os
import random
import re
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote

import psutil

from rollforward.local import target
from rollforward.local.app import wsgi
from rollforward.local.app.load_reports import LoadReports
from rollforward.local.app.worker_deaths import WorkerDeaths
from rollforward.local.errors import BrokenAppError, ServiceFailedError, UsageError
from rollforward.local.system import ports
from rollforward.local.system.processes import GuardedProcess, LineSink, paused

# As many threads as are deployed (app.yaml).
WORKERS, THREADS = 2, 32
MAX_WORKERS = 8
# gunicorn takes one signal for one more or one fewer; two at once could be taken for one.
_BETWEEN_SIGNALS_S = 0.2
_READY_S = 90.0
_LOOK_S = 0.05
# Of workers, before one has loaded the app: then no other will.
_MAX_DEATHS = 6
# What a worker may take to end its requests: as long as a page of mails on a slow relay.
GRACE_S = 30
# The folder that this library was imported from: the app imports the same one.
_REPOSITORY = Path(__file__).resolve().parents[3]
# "ValueError: ...", "google.api_core.exceptions.Aborted: ..." as a traceback ends.
_ERROR_LINE = re.compile(r"[A-Za-z_.]*(?:Error|Exception|Warning|Exit): ")
_RECORD = re.compile(r"(?:DEBUG|INFO|WARNING) \S+: ")
READY_PATH = "/_ah/warmup"  # any answer will do, and App Engine sends this one too


class AppServer:
    """The app's gunicorn."""

    def __init__(
        self,
        root: Path,
        *,
        port: int,
        env: Mapping[str, str],
        log_dir: Path | None = None,
        on_line: LineSink | None = None,
        target: str = target.DEFAULT,
        workers: int = WORKERS,
        threads: int = THREADS,
        grace_s: int = GRACE_S,
    ) -> None:
        """Describe the app; nothing starts yet.

        Args:
            root: The folder that it runs in: the first folder that modules are looked for in.
            port: The port to listen on; 0 is no choice here, the app gets its address.
            env: The whole environment of the app.
            log_dir: Keeps its output.
            on_line: Called from another thread with each line of its output.
            target: The app, as `module:callable`.
            workers: How many processes serve.
            threads: The threads of each worker.
            grace_s: The time that requests in progress get when the app is stopped.
        """
        self.root = root
        self.port = port
        self.env = dict(env)
        self.log_dir = log_dir
        self.reports = LoadReports(on_line)
        self.deaths = WorkerDeaths(self.reports.take)
        self.target = target
        self.processes = workers
        self.threads = threads
        self.grace_s = grace_s
        self.process: GuardedProcess | None = None
        self.restarts = 0
        self.wanted = workers
        self._resizing = asyncio.Lock()

    @property
    def address(self) -> str:
        """host:port."""
        return f"{ports.LOOPBACK}:{self.port}"

    @property
    def url(self) -> str:
        """The app's URL for a browser."""
        return f"http://{self.address}"

    @property
    def running(self) -> bool:
        """True while gunicorn runs."""
        return self.process is not None and self.process.running

    async def start(self) -> None:
        """Start gunicorn and return when a worker answers.

        Raises:
            UsageError: the target makes no app.
            BrokenAppError: gunicorn runs, but a worker could not load the app.
            ServiceFailedError: it ended or did not answer.
        """
        self._spawn()
        try:
            async with asyncio.timeout(_READY_S):
                problem = await self._wait_until_ready()
        except TimeoutError:
            raise ServiceFailedError(
                f"The app did not answer within {_READY_S:.0f} s; its log says more."
            ) from None
        kind, _, reason = problem.partition(" ")
        if kind == wsgi.WRONG:
            raise UsageError(unquote(reason))
        if kind == wsgi.BROKEN:
            raise BrokenAppError(f"The app cannot be loaded: {unquote(reason)}")

    async def _wait_until_ready(self) -> str:
        """Return the problem of the app according to its first answer, "" for nothing."""
        problem = None
        while problem is None:
            asked = asyncio.create_task(asyncio.to_thread(self._read_health))
            # The question of a client waits while workers die one after the other.
            while not (await asyncio.wait({asked}, timeout=_LOOK_S))[0]:
                self._check_start()
            if (problem := asked.result()) is None:
                self._check_start()
                await asyncio.sleep(_LOOK_S)
        return problem

    def _check_start(self) -> None:
        """Raise what ended the app, if it has."""
        if not self.running or self.deaths.since_load >= _MAX_DEATHS:
            raise ServiceFailedError(f"The app does not start: {self.exit_reason}")

    async def stop(self) -> None:
        """End gunicorn: no request is taken any more, those in progress get their time."""
        if self.process is not None:
            await asyncio.to_thread(self.process.stop)

    def paused(self) -> contextlib.AbstractContextManager[None]:
        """Suspend gunicorn and its workers meanwhile: they call no service."""
        with contextlib.suppress(ServiceFailedError, psutil.Error):
            if self.process is not None:
                master = self.process.process()
                return paused([master, *master.children(recursive=True)])
        return contextlib.nullcontext()

    def kill(self) -> None:
        """End gunicorn and its workers at once; requests in progress get no answer."""
        if self.process is not None:
            self.process.kill()

    @property
    def exit_reason(self) -> str:
        """The last error the app printed, or how its workers ended, or its last line.

        A record of a log, short of an error, is no reason.
        """
        lines = list(self.process.last_lines) if self.process is not None else []
        reported = [line for line in lines if _ERROR_LINE.match(line)]
        errors = [line for line in reported if not line.startswith("gunicorn.errors.HaltServer")]
        if not errors and self.deaths.since_load:
            return f"its workers ended: {self.deaths.first}"
        lines = [line for line in lines if not _RECORD.match(line)]
        return (errors or lines or ["it gave no reason"])[-1].strip()

    def reload(self) -> None:
        """Let fresh workers load the code as it is now; start gunicorn if it has ended."""
        self.reports.reloading()
        self.deaths.reloading()
        self.wanted = self.processes  # As gunicorn reads it again.
        if self.process is None or not self.process.running:
            self._spawn()
            return
        with contextlib.suppress(ServiceFailedError, psutil.Error):
            self.process.reload()

    def workers(self) -> list[int]:
        """Return the process ids of the workers."""
        if self.process is None:
            return []
        with contextlib.suppress(ServiceFailedError, psutil.Error):
            return [worker.pid for worker in self.process.process().children()]
        return []

    def kill_worker(self) -> int | None:
        """Kill one worker as a crash would; return its id, None if there is none.

        gunicorn starts another. Its requests are lost without an answer, as
        intended.
        """
        alive = self.workers()
        if not alive:
            return None
        victim = random.choice(alive)
        with contextlib.suppress(psutil.Error):
            psutil.Process(victim).send_signal(signal.SIGKILL)
        return victim

    async def resize(self, count: int) -> None:
        """Have this number of workers, until the app is loaded again.

        gunicorn starts a fresh one at once; one too many ends its requests first.

        Raises:
            ValueError: too few, or too many.
        """
        if not 1 <= count <= MAX_WORKERS:
            raise ValueError(f"an app has 1 to {MAX_WORKERS} workers")
        async with self._resizing:
            with contextlib.suppress(ServiceFailedError, psutil.Error):  # It has ended.
                await self._resize(count)

    async def _resize(self, count: int) -> None:
        if self.process is not None:
            while self.wanted != count:
                step = 1 if count > self.wanted else -1
                self.process.process().send_signal(signal.SIGTTIN if step > 0 else signal.SIGTTOU)
                self.wanted += step
                await asyncio.sleep(_BETWEEN_SIGNALS_S)

    def _spawn(self) -> None:
        self.wanted = self.processes
        command = [
            sys.executable,
            "-m",
            "gunicorn",
            f"rollforward.local.app.wsgi:load({self.target!r})",
        ]
        command += ["--config", "python:rollforward.gunicorn.config", "--bind", self.address]
        command += ["--workers", str(self.processes), "--threads", str(self.threads)]
        command += ["--graceful-timeout", str(self.grace_s), "--timeout", "120"]
        command += ["--no-control-socket"]
        folders = [str(self.root), str(_REPOSITORY), self.env.get("PYTHONPATH", "")]
        python_path = os.pathsep.join(filter(None, folders))
        self.process = GuardedProcess(
            "app",
            command,
            env={**self.env, "PORT": str(self.port), "PYTHONPATH": python_path},
            cwd=self.root,
            grace_s=self.grace_s + 2,
            log_dir=self.log_dir,
            on_line=self.deaths.take,
        )
        self.process.start()

    def _read_health(self) -> str | None:
        """Return the problem that the app reports, "" for nothing; None if it does not answer."""
        try:
            with urllib.request.urlopen(self.url + READY_PATH, timeout=10) as response:
                return str(response.headers.get(wsgi.PROBLEM_HEADER, ""))
        except urllib.error.HTTPError as error:
            with error:
                return str(error.headers.get(wsgi.PROBLEM_HEADER, ""))
        except OSError:
            return None
