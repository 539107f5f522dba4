"""Threads that the end of the process does not wait for."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)


def start_daemon(run: Callable[[], object], name: str) -> bool:
    """Start a thread; return False if the process can have no more.

    The caller then leaves its state as it was, so that its next call tries again.
    """
    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except RuntimeError as error:
        log.warning("%s waits for its next call: %s", name, error)
        return False
    return True
