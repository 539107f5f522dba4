"""Word from one worker process to the others of its instance: always a hint, lost without harm.

The processes of one gunicorn share a folder of sockets, which its master makes (gunicorn.conf.py)
and names in the environment. Where there is none, as in a program of one process, nobody is told.
Processes of other instances hear nothing: who waits for something looks now and then, too.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger(__name__)

FOLDER = "WORKER_SOCKETS"
# The kernel takes some 200 KB.
MAX_BYTES = 128 * 1024
LISTED_FOR_S = 1.0


class Siblings:
    """The other processes of this instance."""

    def __init__(self, folder: str, hear: Callable[[bytes], None]) -> None:
        """Begin to listen.

        Args:
            folder: Where each process has its socket.
            hear: Gets each message, on a thread of its own.

        Raises:
            OSError: no socket can be made there.
        """
        self._folder = Path(folder)
        self._hear = hear
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._path = self._folder / f"{os.getpid()}-{id(self):x}"
        try:
            self._socket.bind(str(self._path))
        except OSError:
            self._socket.close()
            raise
        self._others: list[str] = []
        self._listed_at = -LISTED_FOR_S
        threading.Thread(target=self._listen, name="siblings", daemon=True).start()

    def tell(self, message: bytes) -> None:
        """Tell the others something of at most 128 KB; who cannot hear it now never will."""
        for path in self._found():
            try:
                self._socket.sendto(message, socket.MSG_DONTWAIT, path)
            except (ConnectionRefusedError, FileNotFoundError):  # Its process has ended.
                Path(path).unlink(missing_ok=True)
                self._listed_at = -LISTED_FOR_S
            except OSError as error:  # Its buffer is full, for example.
                log.debug("%s cannot be told: %s", path, error)

    def close(self) -> None:
        """Hear nothing any more."""
        self._path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _found(self) -> list[str]:
        now = time.monotonic()
        if now - self._listed_at > LISTED_FOR_S:
            with contextlib.suppress(FileNotFoundError):  # The master has ended.
                self._others = [str(each) for each in self._folder.iterdir() if each != self._path]
            self._listed_at = now
        return self._others

    def _listen(self) -> None:
        while True:
            try:
                message = self._socket.recv(MAX_BYTES)
            except OSError:  # It was closed.
                return
            if not message:
                return
            try:
                self._hear(message)
            except Exception:
                log.exception("what another process of this instance said is not understood")


def open_siblings(hear: Callable[[bytes], None]) -> Siblings | None:
    """Begin to listen to the other processes of this instance; None: it has no others."""
    folder = os.environ.get(FOLDER)
    if not folder:
        return None
    try:
        return Siblings(folder, hear)
    except OSError as error:
        log.warning("the other processes of this instance are not heard: %s", error)
        return None
