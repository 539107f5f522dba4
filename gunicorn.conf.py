"""What gunicorn does besides its arguments; it reads this file where it starts."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from typing import Any

worker_class = "serving.PatientWorker"

# By default SCRIPT_NAME and PATH_INFO. No front end of ours sends them, so a caller would.
forwarder_headers = ""


def on_starting(server: Any) -> None:
    """Refuse arguments by which a caller could forge the headers that prove the queue."""
    if server.cfg.forwarder_headers or server.cfg.header_map == "dangerous":
        raise SystemExit(
            "--header-map=dangerous and --forwarder-headers let any caller forge X-AppEngine-*"
        )
    # By which the workers wake each other (pipelines/runtime/siblings.py); nobody else may.
    os.environ["WORKER_SOCKETS"] = tempfile.mkdtemp(prefix="worker-sockets-")


def on_exit(server: Any) -> None:
    """Leave nothing behind."""
    shutil.rmtree(os.environ["WORKER_SOCKETS"], ignore_errors=True)


def worker_exit(server: Any, worker: Any) -> None:
    """Let a worker store what it keeps in memory, before Python begins to shut down."""
    app = getattr(worker, "wsgi", None)
    wiring = getattr(app, "extensions", {}).get("wiring")  # Locally, any app may be served.
    if wiring is not None:
        wiring.clients.process_state.shutdown()


def post_fork(server: Any, worker: Any) -> None:
    """Have the garbage collector rest while the app is loaded, since next to nothing is garbage.

    Its walks took a seventh of the start.
    """
    gc.disable()


def post_worker_init(worker: Any) -> None:
    """Have the garbage collector pass over what the app was loaded with: that stays anyway.

    A worker of streams makes so many small objects that it walked all of it again and again.
    """
    gc.freeze()
    gc.enable()
