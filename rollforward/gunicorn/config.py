"""Configuration of gunicorn: the worker, the hooks around its life, and arguments it refuses."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import tempfile
from typing import Any

from rollforward.gunicorn.worker import extensions_of

worker_class = "rollforward.gunicorn.worker.PatientWorker"

# By default SCRIPT_NAME and PATH_INFO. No front end of ours sends them, so a caller would.
forwarder_headers = ""

READ_BY_THE_MASTER = {
    "rollforward",
    "rollforward.gunicorn",
    "rollforward.gunicorn.config",
    "rollforward.gunicorn.worker",
    "rollforward.lazy_imports",
}
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


def _restore_signals(server: Any) -> None:
    """End if the master has asked for it since the fork, and let signals end the process.

    A worker begins with the master's handlers. They put a signal into a queue that no worker
    reads, so gunicorn would wait for its grace period, and then kill the worker.
    """
    for end in _ENDS:
        signal.signal(end, signal.SIG_DFL)
    while not server.SIG_QUEUE.empty():
        if server.SIG_QUEUE.get_nowait() in _ENDS:
            raise SystemExit(0)


def _forget_import() -> None:
    """Let a worker import the library's door as it is now: the master did so for this module.

    If the master has read more of the library (`--preload`), all of it stays as it was.
    """
    names = {name for name in sys.modules if name.partition(".")[0] == "rollforward"}
    if names <= READ_BY_THE_MASTER:
        for name in names:
            del sys.modules[name]


def worker_exit(server: Any, worker: Any) -> None:
    """Let a worker store what it keeps in memory, before Python begins to shut down."""
    wiring = extensions_of(getattr(worker, "wsgi", None)).get("wiring")
    if wiring is not None:
        wiring.clients.process_state.shutdown()


def post_fork(server: Any, worker: Any) -> None:
    """Prepare a fresh worker: it hears that it is to end, and loads the app without collection."""
    _restore_signals(server)
    _forget_import()
    gc.disable()  # Next to nothing is garbage, and its walks took a seventh of the start.


def post_worker_init(worker: Any) -> None:
    """Finish the start of a worker that has loaded its app."""
    open_app(worker)
    freeze_heap()


def open_app(worker: Any) -> None:
    """Open an app that `rf.serve` has declared; a failure ends the worker, and is logged."""
    opening = extensions_of(worker.wsgi).get("rollforward")
    if opening is not None:  # Any app may be served, and main.py opens its own.
        opening.open()


def freeze_heap() -> None:
    """Let the garbage collector pass over the objects of the app's start: they stay anyway.

    A worker of streams makes many small objects, so the collector walked all of them again and
    again. Almost none is garbage, so it now looks after 20,000 new objects instead of 700.
    """
    gc.freeze()
    gc.set_threshold(20_000)
    gc.enable()
