"""What has come to inboxes of late, by this process or another of its instance.

Whoever puts a chunk into an inbox tells the worker that looks into it, with the chunk: so that
worker wakes at once and need not ask Datastore for it. It is a hint. A worker still looks for
itself now and then, for what other instances have sent, and before it says that nothing is there;
and a chunk that was told and is gone fails the commit that would take it out, by its version.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rollforward.runtime.process.process_state import ProcessState
from rollforward.runtime.process.worker_bus import MAX_BYTES, subscribe
from rollforward.streams.storage.remote_calls import StoredRow
from rollforward.streams.storage.schema import CHUNK, inbox_of, is_late
from rollforward.streams.storage.serde import load

# A worker looks for itself once in so long.
SCAN_PERIOD_S = 0.05
MAX_KEPT = 50  # Of one inbox.
MAX_INBOXES = 1_000


class InboxHint(NamedTuple):
    """A chunk that was committed: its name, version and body, as text, or as it is decoded."""

    name: str
    version: int
    text: bytes
    body: Any = None

    def row(self) -> StoredRow:
        """Return the row as a scan would."""
        return StoredRow(load(CHUNK, self.text) if self.body is None else self.body, self.version)


@dataclass
class _Inbox:
    """What is known of one inbox since its worker's last look."""

    arrived: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)
    kept: dict[str, InboxHint] = field(default_factory=dict)
    seen: Collection[str] = ()  # What the last look has found.
    looked_at: float = -SCAN_PERIOD_S
    has_more: bool = False  # Something has come that is not kept here.

    def note(self, chunk: InboxHint | None) -> None:
        """Keep a chunk that has come; None: one that only a look can find."""
        with self.lock:
            if self._is_look_due():  # Its worker may be in another process now, or gone.
                self.kept.clear()
                self.has_more = True
            elif chunk is None or is_late(chunk.name) or len(self.kept) >= MAX_KEPT:
                self.has_more = True
            elif chunk.name not in self.seen:
                self.kept[chunk.name] = chunk
        self.arrived.set()

    def take(self, low: str, high: str, limit: int) -> list[InboxHint]:
        """Return chunks that have come since the last look; none, if it is time for the next."""
        self.arrived.clear()
        with self.lock:
            if self.has_more or self._is_look_due():
                return []
            names = sorted(name for name in self.kept if low <= name < high)
            taken = [self.kept.pop(name) for name in names[:limit]]
            if self.kept:
                self.arrived.set()
            return taken

    def begin_scan(self) -> None:
        """Forget what has come: a look that begins now finds it."""
        self.arrived.clear()
        with self.lock:
            self.kept.clear()
            self.seen, self.has_more, self.looked_at = (), False, time.monotonic()

    def end_scan(self, names: Collection[str]) -> None:
        """Note what a look has found, some of which may have been told meanwhile."""
        with self.lock:
            self.seen = names
            for name in names:
                self.kept.pop(name, None)

    def _is_look_due(self) -> bool:
        return time.monotonic() - self.looked_at > SCAN_PERIOD_S


class InboxHints:
    """What has come to the inboxes that somebody in this process looks into."""

    def __init__(self) -> None:
        self._inboxes: dict[str, _Inbox] = {}
        self._bus = subscribe(self._hear)

    @classmethod
    def of(cls, state: ProcessState) -> InboxHints:
        """Return those of a process."""
        found = state.get_or_create("streams arrivals", cls)
        state.on_shutdown("streams arrivals", found.close)
        return found

    def wait(self, inbox: str, seconds: float) -> None:
        """Wait until something has come to an inbox since it was last looked into, or so long."""
        self._inbox(inbox).arrived.wait(seconds)

    def take(self, low: str, high: str, limit: int) -> list[tuple[str, StoredRow]]:
        """Return chunks of an inbox that are known to have come, in order; none may be known."""
        taken = self._inbox(_inbox_from(low)).take(low, high, limit)
        return [(chunk.name, chunk.row()) for chunk in taken]

    def begin_scan(self, low: str) -> None:
        """Note that somebody is about to look into an inbox: what comes from now on is new."""
        if inbox := self._inboxes.get(_inbox_from(low)):
            inbox.begin_scan()

    def end_scan(self, low: str, names: Collection[str]) -> None:
        """Note which chunks somebody has found."""
        if inbox := self._inboxes.get(_inbox_from(low)):
            inbox.end_scan(names)

    def publish(self, chunks: Collection[InboxHint]) -> None:
        """Tell those who look into their inboxes of chunks that were committed."""
        for chunk in chunks:
            if inbox := self._inboxes.get(inbox_of(chunk.name)):
                inbox.note(chunk)
            if self._bus is not None:
                self._bus.broadcast(_message(chunk))

    def close(self) -> None:
        """Hear nothing any more."""
        if self._bus is not None:
            self._bus.close()

    def _hear(self, message: bytes) -> None:
        name, version, text = message.split(b"\n", 2)
        chunk = InboxHint(name.decode(), int(version), text)
        if inbox := self._inboxes.get(inbox_of(chunk.name)):
            inbox.note(chunk if text else None)

    def _inbox(self, name: str) -> _Inbox:
        inbox = self._inboxes.get(name)
        if inbox is None:
            if len(self._inboxes) >= MAX_INBOXES:
                self._inboxes.clear()  # Who waits for one of them waits to the end.
            inbox = self._inboxes.setdefault(name, _Inbox())
        return inbox


def _message(chunk: InboxHint) -> bytes:
    """Return a chunk as the other processes hear it: without its text, if that is too long."""
    head = f"{chunk.name}\n{chunk.version}\n".encode()
    return head + chunk.text if len(head) + len(chunk.text) <= MAX_BYTES else head


def _inbox_from(low: str) -> str:
    """Return the inbox that a scan begins in."""
    return f"{low.rsplit(':', 2)[0]}:"
