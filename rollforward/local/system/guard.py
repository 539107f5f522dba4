"""Run one command for as long as a parent holds our standard input open.

    python guard.py GRACE_S COMMAND [ARGUMENT ...]

A parent that is killed with SIGKILL cannot tidy up, and Linux's parent-death
signal reaches neither grandchildren nor other systems. So every child process
of the local platform runs under this small one:

1. The command becomes the leader of its own process group.
2. Our standard input is a pipe that only the parent holds. When the parent
   ends, however it ends, the pipe closes.
3. Then, or on SIGTERM, the command gets SIGTERM, GRACE_S seconds, and at last
   its whole group gets SIGKILL.
4. When the command ends on its own, the rest of its group is killed too,
   and its exit code becomes ours.

SIGHUP is handed on to the command: gunicorn reloads on it.
Only the standard library is used, so that this starts in a few milliseconds.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
from types import FrameType

_SIGNAL_EXIT_BASE = 128


def main(arguments: list[str]) -> int:
    """Run the command and return its exit code."""
    grace_s, command = float(arguments[0]), arguments[1:]
    wake_read, wake_write = os.pipe()
    for end in (wake_read, wake_write):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _only_wake)
    # Ctrl-C is the parent's to answer; it stops us in its own order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return 127
    try:
        _watch(child, wake_read)
        _terminate(child, grace_s)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
    code = child.wait()
    return code if code >= 0 else _SIGNAL_EXIT_BASE - code


def _only_wake(number: int, frame: FrameType | None) -> None:
    """Do nothing: the signal's number arrives through the wake-up pipe."""


def _watch(child: "subprocess.Popen[bytes]", wake_read: int) -> None:
    """Return when the command has ended or must end."""
    while child.poll() is None:
        readable, _, _ = select.select([wake_read, sys.stdin.fileno()], [], [])
        if sys.stdin.fileno() in readable and not os.read(sys.stdin.fileno(), 4096):
            return
        signals = _drain(wake_read)
        if signal.SIGTERM in signals:
            return
        if signal.SIGHUP in signals:
            child.send_signal(signal.SIGHUP)


def _terminate(child: "subprocess.Popen[bytes]", grace_s: float) -> None:
    """Ask the command to end and wait at most grace_s seconds for it."""
    if child.poll() is not None:
        return
    child.terminate()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGCONT)  # It may have been suspended; then it would not hear.
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(timeout=grace_s)


def _drain(wake_read: int) -> set[int]:
    """Return the numbers of the signals that came since the last call."""
    with contextlib.suppress(BlockingIOError):
        return set(os.read(wake_read, 4096))
    return set()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
