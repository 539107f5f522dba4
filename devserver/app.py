"""The app: gunicorn in a child process, reloaded when a file is saved.

`main:serve()` makes the app in each worker, after the fork, so a reload is a
SIGHUP to gunicorn's master: it starts fresh workers, then retires the old ones once
their requests are done. The emulators and their tasks stay as they are.

A saved file that does not even compile is reported and not loaded. If the app ends by
itself (a module that raises at import stops gunicorn), it is started again
after a pause that grows, or at once when a file is saved.
"""

import asyncio
import contextlib
import random
import re
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil
import watchfiles

from devserver import ports
from devserver.errors import ServiceFailedError
from devserver.processes import GuardedProcess, LineSink, suspended

# As many threads as are deployed (app.yaml).
WORKERS, THREADS = 2, 32
WATCHED_FOLDERS = ("demos", "handlers", "pipelines", "models", "templates")
_READY_S = 90.0
# What a worker may take to end its requests: as long as a page of mails on a slow relay.
GRACE_S = 30
_PAUSES_S = (0.5, 1, 2, 5, 10, 30)
_HEALTHY_S = 30.0  # an app that lived so long starts over with the shortest pause
# "ValueError: ...", "google.api_core.exceptions.Aborted: ..." as a traceback ends.
_ERROR_LINE = re.compile(r"[A-Za-z_.]*(?:Error|Exception|Warning|Exit): ")
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
        target: str = "main:serve()",
        threads: int = THREADS,
        grace_s: int = GRACE_S,
    ) -> None:
        """Describe the app; nothing starts yet.

        Args:
            root: The folder of main.py.
            port: Where it listens; 0 is no choice here, the app is told its address.
            env: The whole environment of the app.
            log_dir: Keeps its output.
            on_line: Called from another thread with each line of its output.
            target: What gunicorn serves.
            threads: Of each worker.
            grace_s: What requests under way may still take when the app is stopped.
        """
        self.root = root
        self.port = port
        self.env = {**env, "PORT": str(port)}
        self.log_dir = log_dir
        self.on_line = on_line
        self.target = target
        self.threads = threads
        self.grace_s = grace_s
        self.process: GuardedProcess | None = None
        self.restarts = 0

    @property
    def address(self) -> str:
        """host:port."""
        return f"{ports.LOOPBACK}:{self.port}"

    @property
    def url(self) -> str:
        """Where a browser finds the app."""
        return f"http://{self.address}"

    @property
    def running(self) -> bool:
        """Whether gunicorn runs."""
        return self.process is not None and self.process.running

    async def start(self) -> None:
        """Start gunicorn and return when a worker answers.

        Raises:
            ServiceFailedError: it ended or did not answer.
        """
        self._spawn()
        try:
            async with asyncio.timeout(_READY_S):
                await self._until_it_answers()
        except TimeoutError:
            raise ServiceFailedError(
                f"The app did not answer within {_READY_S:.0f} s; its log says more."
            ) from None

    async def _until_it_answers(self) -> None:
        while not await asyncio.to_thread(self._answers):
            if not self.running:
                raise ServiceFailedError(f"The app does not start: {self.why_it_ended}")
            await asyncio.sleep(0.05)

    async def stop(self) -> None:
        """End gunicorn: no request is taken any more, those under way get their time."""
        if self.process is not None:
            await asyncio.to_thread(self.process.stop)

    def standing_still(self) -> contextlib.AbstractContextManager[None]:
        """Suspend gunicorn and its workers meanwhile: they ask nobody anything."""
        with contextlib.suppress(ServiceFailedError, psutil.Error):
            if self.process is not None:
                master = self.process.process()
                return suspended([master, *master.children(recursive=True)])
        return contextlib.nullcontext()

    def kill(self) -> None:
        """End gunicorn and its workers at once; requests under way get no answer."""
        if self.process is not None:
            self.process.kill()

    @property
    def why_it_ended(self) -> str:
        """The last error the app printed, or its last line if none looks like one."""
        lines = list(self.process.last_lines) if self.process is not None else []
        errors = [line for line in lines if _ERROR_LINE.match(line)]
        return (errors or lines or ["it printed nothing"])[-1].strip()

    def reload(self) -> None:
        """Let fresh workers load the code as it is now; start gunicorn if it has ended."""
        if self.process is None or not self.process.running:
            self._spawn()
            return
        with contextlib.suppress(ServiceFailedError, psutil.Error):
            self.process.hang_up()

    def workers(self) -> list[int]:
        """Return the process ids of the workers."""
        if self.process is None:
            return []
        with contextlib.suppress(ServiceFailedError, psutil.Error):
            return [worker.pid for worker in self.process.process().children()]
        return []

    def kill_worker(self) -> int | None:
        """Kill one worker as a crash would; return its id, None if there is none.

        gunicorn starts another. Its requests are lost without an answer, which
        is what this is for.
        """
        alive = self.workers()
        if not alive:
            return None
        victim = random.choice(alive)
        with contextlib.suppress(psutil.Error):
            psutil.Process(victim).send_signal(signal.SIGKILL)
        return victim

    def _spawn(self) -> None:
        command = [sys.executable, "-m", "gunicorn", self.target, "--bind", self.address]
        command += ["--workers", str(WORKERS), "--threads", str(self.threads)]
        command += [
            "--graceful-timeout",
            str(self.grace_s),
            "--timeout",
            "120",
            "--no-control-socket",
        ]
        self.process = GuardedProcess(
            "app",
            command,
            env=self.env,
            cwd=self.root,
            grace_s=self.grace_s + 2,
            log_dir=self.log_dir,
            on_line=self.on_line,
        )
        self.process.start()

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(self.url + READY_PATH, timeout=10):
                return True
        except urllib.error.HTTPError as error:
            error.close()
            return True
        except OSError:
            return False


class AppKeeper:
    """Keeps an app running and, if wanted, fresh."""

    def __init__(self, app: AppServer, report: Callable[[str], None], *, reload: bool) -> None:
        """Describe the keeper.

        Args:
            app: What to keep.
            report: Called with a line for the person at the terminal.
            reload: Whether to watch the files.
        """
        self.app = app
        self.report = report
        self.reload = reload
        self.on_file: dict[Path, Callable[[], None]] = {}  # more files to watch, and why
        self._saved = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to watch."""
        self._tasks = [asyncio.create_task(self._revive(), name="app-revive")]
        if self.reload:
            self._tasks += [
                asyncio.create_task(self._watch(path, recursive), name=f"watch-{path.name}")
                for path, recursive in self._watched()
            ]

    async def stop(self) -> None:
        """Stop watching; the app stays as it is."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _watched(self) -> list[tuple[Path, bool]]:
        """Return the folders to watch. The root's other folders hold thousands of files."""
        folders = [self.app.root / name for name in WATCHED_FOLDERS]
        return [(self.app.root, False), *((path, True) for path in folders if path.is_dir())]

    async def _watch(self, folder: Path, recursive: bool) -> None:
        async for changes in watchfiles.awatch(folder, recursive=recursive, step=100):
            self._changed({Path(path) for _, path in changes})

    def _changed(self, paths: set[Path]) -> None:
        for path in paths & self.on_file.keys():
            self.on_file[path]()
        code = {path for path in paths if path.suffix == ".py"}
        if not code and not any(path.suffix in {".html", ".txt", ".xml"} for path in paths):
            return
        for path in sorted(code):
            if fault := syntax_fault(path):
                self.report(f"not reloaded: {fault}")
                return
        names = ", ".join(sorted(path.name for path in paths)[:3])
        self.report(f"reload: {names}")
        self._saved.set()
        if self.app.running:
            self.app.reload()

    async def _revive(self) -> None:
        """Start the app again whenever it has ended."""
        pauses, started = iter(_PAUSES_S), time.monotonic()
        while True:
            process = self.app.process
            if process is not None and not await asyncio.to_thread(process.wait, 1.0):
                continue
            if time.monotonic() - started > _HEALTHY_S:
                pauses = iter(_PAUSES_S)
            pause_s = next(pauses, _PAUSES_S[-1])
            why = self.app.why_it_ended
            self.report(f"the app ended: {why}. Again in {pause_s} s, or on save")
            self._saved.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._saved.wait(), pause_s)
            self.app.restarts += 1
            started = time.monotonic()
            self.app.reload()


def syntax_fault(path: Path) -> str | None:
    """Return what is wrong with a Python file's syntax, None if nothing is."""
    try:
        compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    except FileNotFoundError:  # deleted: the import will tell
        return None
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        return f"{path.name}:{line}: {getattr(error, 'msg', error)}"
    return None
