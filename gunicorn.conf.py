"""What gunicorn does besides its arguments; it reads this file where it starts."""

from __future__ import annotations

from typing import Any


def worker_exit(server: Any, worker: Any) -> None:
    """Let a worker store what it keeps in memory, before Python begins to shut down."""
    app = getattr(worker, "wsgi", None)
    if app is not None:
        app.extensions["wiring"].clients.memory.end()
