"""Child processes that never outlive us.

Each child runs under rollforward/local/system/guard.py, which holds the read end of a pipe; the
write end is ours. Whatever ends us, even SIGKILL, closes the pipe, and the
guard ends the child and everything that the child started.

The output of a child goes to a log file (if a folder is given) and, line by line,
to `on_line`.
"""

import collections
import contextlib
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import psutil

from rollforward.local.errors import ServiceFailedError

_GUARD = Path(__file__).with_name("guard.py")
_LAST_LINES = 40
_LOOK_EVERY_S = 0.02
_CALM_LOOKS = 3
_LOG_LIMIT_BYTES = 10_000_000
_STANDS_S = 5.0  # The longest wait for a process that was told to stand still.
_AT_REST = (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)

LineSink = Callable[[str], None]

log = logging.getLogger(__name__)


def _wait_until_it_stands(process: psutil.Process) -> None:
    """Wait for a process that was asked to pause: it does so when it is next scheduled."""
    deadline = time.monotonic() + _STANDS_S
    with contextlib.suppress(psutil.Error):
        while process.status() not in _AT_REST and time.monotonic() < deadline:
            time.sleep(0.005)


@contextlib.contextmanager
def paused(processes: Iterable[psutil.Process]) -> Iterator[None]:
    """Pause processes meanwhile; ended ones are skipped."""
    still: list[psutil.Process] = []
    try:
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.suspend()
                still.append(process)
        for process in still:
            _wait_until_it_stands(process)
        yield
    finally:
        for process in still:
            with contextlib.suppress(psutil.Error):
                process.resume()


def until_idle(process: psutil.Process, timeout_s: float) -> bool:
    """Return whether a process came to rest in time: no processor time, nothing that wants any."""
    ends_at, calm, spent_s = time.monotonic() + timeout_s, 0, -1.0
    while calm < _CALM_LOOKS:
        if time.monotonic() > ends_at:
            return False
        times = process.cpu_times()
        is_calm = times.user + times.system == spent_s and not _wants_processor(process)
        calm, spent_s = (calm + 1 if is_calm else 0), times.user + times.system
        time.sleep(_LOOK_EVERY_S)
    return True


def _wants_processor(process: psutil.Process) -> bool:
    """Return whether a thread waits for a processor; where that cannot be seen, none does."""
    for stat in Path(f"/proc/{process.pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):
            if stat.read_text().rpartition(")")[2].split()[0] == "R":
                return True
    return False


class GuardedProcess:
    """One command under its guard. Start it once, stop it any number of times."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        grace_s: float = 5.0,
        log_dir: Path | None = None,
        on_line: LineSink | None = None,
    ) -> None:
        """Describe the child; nothing starts yet.

        Args:
            name: Names the log file and prefixes messages.
            command: The program and its arguments.
            env: The child's whole environment; None passes our own on.
            cwd: The folder that it runs in.
            grace_s: Seconds between SIGTERM and SIGKILL.
            log_dir: Keeps the output in <name>.log there.
            on_line: Called from another thread with each line.
        """
        self.name = name
        self.command = list(command)
        self.env = dict(env) if env is not None else None
        self.cwd = cwd
        self.grace_s = grace_s
        self.log_dir = log_dir
        self.on_line = on_line
        self.last_lines: collections.deque[str] = collections.deque(maxlen=_LAST_LINES)
        self._guard: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None

    def start(self) -> None:
        """Start the guard, which starts the command."""
        guard_command = [sys.executable, "-I", "-S", str(_GUARD), str(self.grace_s)]
        self._guard = subprocess.Popen(
            [*guard_command, *self.command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self.env,
            cwd=self.cwd,
            start_new_session=True,
        )
        self._reader = threading.Thread(
            target=self._read, args=(self._guard,), name=f"log-{self.name}", daemon=True
        )
        self._reader.start()

    @property
    def running(self) -> bool:
        """True while the command runs."""
        return self._guard is not None and self._guard.poll() is None

    @property
    def exit_code(self) -> int | None:
        """The command's exit code (128 + n for signal n), None while it runs."""
        return None if self._guard is None else self._guard.poll()

    def process(self) -> psutil.Process:
        """Return the command's own process, not the guard's.

        Raises:
            ServiceFailedError: it does not run.
        """
        if self._guard is not None:
            with contextlib.suppress(psutil.Error):
                for child in psutil.Process(self._guard.pid).children():
                    return child
        raise ServiceFailedError(f"{self.name} is not running.")

    def reload(self) -> None:
        """Send SIGHUP to the command: gunicorn then starts fresh workers."""
        self.process().send_signal(1)

    def kill(self) -> None:
        """Send SIGKILL to the command; its guard ends its children."""
        with contextlib.suppress(ServiceFailedError, psutil.Error):
            self.process().kill()

    def wait(self, timeout_s: float) -> bool:
        """Wait until the command ends on its own; return whether it did."""
        if self._guard is None:
            return True
        try:
            self._guard.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        self._join_reader()
        return True

    def stop(self) -> None:
        """End the command and all that it started; return when they are gone."""
        guard = self._guard
        if guard is None:
            return
        if guard.stdin is not None:
            with contextlib.suppress(OSError):
                guard.stdin.close()
        try:
            guard.wait(self.grace_s + 5)
        except subprocess.TimeoutExpired:
            guard.kill()
            guard.wait()
        self._join_reader()

    def describe_end(self) -> str:
        """Return the last lines it printed, for an error message."""
        return "\n".join(f"  {line}" for line in self.last_lines) or "  (it printed nothing)"

    def _join_reader(self) -> None:
        if self._reader is not None:
            self._reader.join(timeout=5)

    def _read(self, guard: subprocess.Popen[bytes]) -> None:
        """Read until the end; then close the pipe to the guard, in case its owner forgot it."""
        assert guard.stdin is not None
        assert guard.stdout is not None
        with contextlib.closing(guard.stdin), guard.stdout, self._open_log() as file:
            for raw in guard.stdout:
                line = raw.decode("utf-8", "replace").rstrip()
                self.last_lines.append(line)
                if file is not None:
                    with contextlib.suppress(OSError):  # A full disk must not end the command.
                        file.write(f"{line}\n".encode())
                if self.on_line is not None:
                    try:
                        self.on_line(line)
                    except Exception:  # Nor must an error of ours.
                        log.exception("A line of %s was not shown", self.name)
            guard.wait()  # It may have closed its output early; its input would end it.

    def _open_log(self) -> contextlib.AbstractContextManager[IO[bytes] | None]:
        """Open the log for appending, if that can be; a log that grew large starts again."""
        if self.log_dir is None:
            return contextlib.nullcontext()
        path = self.log_dir / f"{self.name}.log"
        try:
            self.log_dir.mkdir(parents=True, exist_ok=True)
            grown = path.exists() and path.stat().st_size > _LOG_LIMIT_BYTES
            return path.open("wb" if grown else "ab", buffering=0)
        except OSError:
            return contextlib.nullcontext()
