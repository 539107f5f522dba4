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
from collections.abc import Callable, Iterable
from pathlib import Path

log = logging.getLogger(__name__)

FOLDER = "WORKER_SOCKETS"
MAX_BYTES = 64 * 1024
LISTED_FOR_S = 1.0


class Siblings:
    """The other processes of this instance."""

    def __init__(self, folder: str, hear: Callable[[str], None]) -> None:
        """Begin to listen.

        Args:
            folder: Where each process has its socket.
            hear: Gets each word, on a thread of its own.

        Raises:
            OSError: no socket can be made there.
        """
        self._folder = Path(folder)
        self._hear = hear
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._path = self._folder / f"{os.getpid()}-{id(self):x}"
        self._socket.bind(str(self._path))
        self._others: list[str] = []
        self._listed_at = -LISTED_FOR_S
        threading.Thread(target=self._listen, name="siblings", daemon=True).start()

    def tell(self, words: Iterable[str]) -> None:
        """Tell the others some words, each of one line; who cannot hear them now never will."""
        message = "\n".join(words).encode()
        for path in self._found():
            try:
                self._socket.sendto(message, socket.MSG_DONTWAIT, path)
            except (ConnectionRefusedError, FileNotFoundError):  # Its process has ended.
                Path(path).unlink(missing_ok=True)
                self._listed_at = -LISTED_FOR_S
            except OSError as error:
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
            here = self._path
            self._others = [str(path) for path in self._folder.iterdir() if path != here]
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
            for word in message.decode(errors="replace").splitlines():
                self._hear(word)


def open_siblings(hear: Callable[[str], None]) -> Siblings | None:
    """Begin to listen to the other processes of this instance; None: it has no others."""
    folder = os.environ.get(FOLDER)
    if not folder:
        return None
    try:
        return Siblings(folder, hear)
    except OSError as error:
        log.warning("the other processes of this instance are not heard: %s", error)
        return None
