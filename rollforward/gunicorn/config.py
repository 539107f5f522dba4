"""What gunicorn does besides its arguments; it reads this file where it starts."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
from typing import Any

worker_class = "serving.PatientWorker"

# By default SCRIPT_NAME and PATH_INFO. No front end of ours sends them, so a caller would.
forwarder_headers = ""

_ENDS = signal.SIGTERM, signal.SIGINT, signal.SIGQUIT


def on_starting(server: Any) -> None:
    """Refuse arguments by which a caller could forge the headers that prove the queue."""
    if server.cfg.forwarder_headers or server.cfg.header_map == "dangerous":
        raise SystemExit(
            "--header-map=dangerous and --forwarder-headers let any caller forge X-AppEngine-*"
        )
    os.environ["WORKER_THREADS"] = str(server.cfg.threads)  # Half of them may hold streams.
    # Only the workers wake each other by it (rollforward/runtime/process/worker_bus.py).
    os.environ["WORKER_SOCKETS"] = tempfile.mkdtemp(prefix="worker-sockets-")
    # By which they know who has died, and what it held (rollforward/runtime/process/processes.py).
    os.environ["WORKER_FILES"] = tempfile.mkdtemp(prefix="worker-files-")


def on_exit(server: Any) -> None:
    """Leave nothing behind."""
    for name in ("WORKER_SOCKETS", "WORKER_FILES"):
        shutil.rmtree(os.environ[name], ignore_errors=True)


def _hear_the_end(server: Any) -> None:
    """End if the master has said so since the fork, and until the worker hears for itself.

    A worker begins with the master's own handlers, which put a signal into a line that nobody reads
    here: gunicorn would wait for it as long as for requests under way, and kill it then.
    """
    for each in _ENDS:
        signal.signal(each, signal.SIG_DFL)
    while not server.SIG_QUEUE.empty():
        if server.SIG_QUEUE.get_nowait() in _ENDS:
            raise SystemExit(0)


def worker_exit(server: Any, worker: Any) -> None:
    """Let a worker store what it keeps in memory, before Python begins to shut down."""
    app = getattr(worker, "wsgi", None)
    wiring = getattr(app, "extensions", {}).get("wiring")  # Locally, any app may be served.
    if wiring is not None:
        wiring.clients.process_state.shutdown()


def post_fork(server: Any, worker: Any) -> None:
    """Have a fresh worker hear that it is to end, and load the app without garbage collection."""
    _hear_the_end(server)
    gc.disable()  # Next to nothing is garbage, and its walks took a seventh of the start.


def post_worker_init(worker: Any) -> None:
    """Have the garbage collector pass over what the app was loaded with: that stays anyway.

    A worker of streams makes so many small objects that it walked all of it again and again. And
    next to none of them need it: so it looks after 20,000 more of them, not after 700.
    """
    gc.freeze()
    gc.set_threshold(20_000)
    gc.enable()
