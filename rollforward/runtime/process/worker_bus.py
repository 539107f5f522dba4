"""Messages between the worker processes of an instance: always hints, lost without harm.

The processes of one gunicorn share a folder of sockets, which its master makes and names in the
environment (rollforward/gunicorn/config.py). Without the folder, as in a program of one process,
messages go nowhere. Processes of other instances receive nothing, so a receiver must also poll now
and then.
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


class WorkerBus:
    """The socket of this process, and the addresses of the other processes of its instance."""

    def __init__(self, folder: str, receive: Callable[[bytes], None]) -> None:
        """Begin to listen.

        Args:
            folder: Holds the socket of each process.
            receive: Called with each message, on a thread of the bus.

        Raises:
            OSError: no socket can be made in the folder.
        """
        self._folder = Path(folder)
        self._receive = receive
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._path = self._folder / f"{os.getpid()}-{id(self):x}"
        try:
            self._socket.bind(str(self._path))
        except OSError:
            self._socket.close()
            raise
        self._peers: list[str] = []
        self._listed_at = -LISTED_FOR_S
        threading.Thread(target=self._listen, name="worker-bus", daemon=True).start()

    def broadcast(self, message: bytes) -> None:
        """Send at most 128 KB to the other processes. Delivery is best effort."""
        for path in self._list_peers():
            try:
                self._socket.sendto(message, socket.MSG_DONTWAIT, path)
            except (ConnectionRefusedError, FileNotFoundError):  # Its process has ended.
                Path(path).unlink(missing_ok=True)
                self._listed_at = -LISTED_FOR_S
            except OSError as error:  # Its buffer is full, for example.
                log.debug("%s does not take a message: %s", path, error)

    def close(self) -> None:
        """Stop listening."""
        self._path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _list_peers(self) -> list[str]:
        now_s = time.monotonic()
        if now_s - self._listed_at > LISTED_FOR_S:
            with contextlib.suppress(OSError):  # The master has ended, or no file can be opened.
                self._peers = [str(path) for path in self._folder.iterdir() if path != self._path]
            self._listed_at = now_s
        return self._peers

    def _listen(self) -> None:
        while True:
            try:
                message = self._socket.recv(MAX_BYTES)
            except OSError:  # It was closed.
                return
            if not message:
                return
            try:
                self._receive(message)
            except Exception:
                log.exception("a message of another process of this instance is not understood")


def subscribe(receive: Callable[[bytes], None]) -> WorkerBus | None:
    """Receive the messages of the other processes of this instance; None: it has no others."""
    folder = os.environ.get(FOLDER)
    if not folder:
        return None
    try:
        return WorkerBus(folder, receive)
    except OSError as error:
        log.warning("messages of other processes of this instance are not received: %s", error)
        return None
