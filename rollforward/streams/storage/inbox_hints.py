"""In-memory notifications of new inbox chunks, from this process and its sibling workers.

A sender publishes each chunk, with its content, to the worker that reads the inbox. That worker
wakes immediately and needs no read of Datastore. Hints may be missing or stale. So a worker still
scans the inbox periodically, for chunks of other instances, and before it reports an empty inbox.
A stale chunk fails the commit that deletes it, by its version.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rollforward.runtime.process.process_state import ProcessState
from rollforward.runtime.process.worker_bus import MAX_BYTES, WorkerBus, subscribe
from rollforward.streams.storage.joint_commits import JointCommits
from rollforward.streams.storage.remote_calls import StoredRow
from rollforward.streams.storage.schema import CHUNK, inbox_of, inbox_of_range, is_late
from rollforward.streams.storage.serde import load

# The period of a worker's scans, which doubles while each chunk that they find had a hint.
SCAN_PERIOD_S, MAX_SCAN_PERIOD_S = 0.05, 0.2
# Of one inbox: hints with their chunks, and names of published chunks.
MAX_HINTS, MAX_NAMES = 50, 1_000
MAX_INBOXES = 1_000
_HINT = "chunk"  # The kind of a message between processes.


class InboxHint(NamedTuple):
    """A committed chunk: its name, version and body, as text or decoded; no text: too long."""

    name: str
    version: int
    text: bytes
    body: Any = None

    def row(self) -> StoredRow:
        """Return the row as a scan would."""
        return StoredRow(load(CHUNK, self.text) if self.body is None else self.body, self.version)


@dataclass
class _Inbox:
    """Chunks published to one inbox since its worker's last scan."""

    arrived: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)
    hints: dict[str, InboxHint] = field(default_factory=dict)
    scanned: Collection[str] = ()  # Names of the chunks of the last scan.
    scanned_at_s: float = -MAX_SCAN_PERIOD_S
    period_s: float = SCAN_PERIOD_S
    published: set[str] = field(default_factory=set)  # Names of chunks since the last scan's end.
    has_more: bool = False  # A chunk was published that only a scan returns.

    def note(self, chunk: InboxHint) -> None:
        """Store a published chunk; without its text, only a scan returns it."""
        with self.lock:
            if self._is_scan_due():  # Its worker may have moved to another process, or stopped.
                self.hints.clear()
                self.has_more = True
            elif not chunk.text or is_late(chunk.name) or len(self.hints) >= MAX_HINTS:
                self.has_more = True
            elif chunk.name not in self.scanned:
                self.hints[chunk.name] = chunk
            if len(self.published) < MAX_NAMES:
                self.published.add(chunk.name)
        self.arrived.set()

    def take(self, low: str, high: str, limit: int) -> list[InboxHint]:
        """Return chunks published since the last scan, or none if the next scan is due."""
        self.arrived.clear()
        with self.lock:
            if self.needs_scan():
                return []
            names = sorted(name for name in self.hints if low <= name < high)
            chunks = [self.hints.pop(name) for name in names[:limit]]
            if self.hints:
                self.arrived.set()
            return chunks

    def begin_scan(self) -> None:
        """Drop all hints: a scan that begins now returns their chunks."""
        self.arrived.clear()
        with self.lock:
            self.hints.clear()
            self.scanned, self.has_more, self.scanned_at_s = (), False, time.monotonic()

    def end_scan(self, names: Collection[str]) -> None:
        """Store the names of scanned chunks, some of which may have been published meanwhile."""
        with self.lock:
            self.scanned = names
            longer_s = min(2 * self.period_s, MAX_SCAN_PERIOD_S)
            self.period_s = longer_s if self.published.issuperset(names) else SCAN_PERIOD_S
            self.published.clear()
            for name in names:
                self.hints.pop(name, None)

    def needs_scan(self) -> bool:
        """Return whether a scan is due, or a chunk was published that only a scan returns."""
        return self.has_more or self._is_scan_due()

    def is_complete(self) -> bool:
        """Return whether no scan is due, and the last one has found nothing without a hint."""
        return self.period_s > SCAN_PERIOD_S and not self.needs_scan()

    def _is_scan_due(self) -> bool:
        return time.monotonic() - self.scanned_at_s >= self.period_s


class InboxHints:
    """Notifications for the inboxes that workers of this process read."""

    def __init__(self) -> None:
        self._inboxes: dict[str, _Inbox] = {}
        self._bus: WorkerBus | None = None
        self.joint_commits = JointCommits(self._send, self._end_pause)
        self._bus = subscribe(self._receive)

    @classmethod
    def of(cls, state: ProcessState) -> InboxHints:
        """Return the notifications of a process."""
        hints = state.get_or_create("streams inbox hints", cls)
        state.on_shutdown("streams inbox hints", hints.close)
        return hints

    def wait(self, inbox: str, seconds: float) -> None:
        """Wait until a chunk is published to an inbox after its last scan, or for a timeout."""
        self._inbox(inbox).arrived.wait(seconds)

    def take(self, low: str, high: str, limit: int) -> list[tuple[str, StoredRow]]:
        """Return published chunks of an inbox, in order of their names; there may be none."""
        hints = self._inbox(inbox_of_range(low)).take(low, high, limit)
        return [(chunk.name, chunk.row()) for chunk in hints]

    def is_scan_due(self, low: str) -> bool:
        """Return whether only a scan returns the chunks of an inbox."""
        inbox = self._inboxes.get(inbox_of_range(low))
        return inbox is None or inbox.needs_scan()

    def is_complete(self, low: str) -> bool:
        """Return whether what is published is likely to be all that an inbox has."""
        inbox = self._inboxes.get(inbox_of_range(low))
        return inbox is not None and inbox.is_complete()

    def begin_scan(self, low: str) -> None:
        """Note that a worker begins to scan an inbox: chunks published from now on are new."""
        if inbox := self._inboxes.get(inbox_of_range(low)):
            inbox.begin_scan()

    def end_scan(self, low: str, names: Collection[str]) -> None:
        """Note which chunks a scan has returned."""
        if inbox := self._inboxes.get(inbox_of_range(low)):
            inbox.end_scan(names)

    def publish(self, chunks: Collection[InboxHint]) -> None:
        """Notify the workers of their inboxes of committed chunks."""
        for chunk in chunks:
            if inbox := self._inboxes.get(inbox_of(chunk.name)):
                inbox.note(chunk)
            self._publish_to_siblings(chunk)

    def close(self) -> None:
        """Unsubscribe from the other processes."""
        if self._bus is not None:
            self._bus.close()

    def _publish_to_siblings(self, chunk: InboxHint) -> None:
        """Notify the siblings, without the chunk's text if that is too long."""
        if not self._send(_HINT, chunk.name, f"{chunk.version}\n".encode() + chunk.text):
            self._send(_HINT, chunk.name, f"{chunk.version}\n".encode())

    def _send(self, kind: str, about: str, text: bytes) -> bool:
        message = f"{kind}\n{about}\n".encode() + text
        if self._bus is None or len(message) > MAX_BYTES:
            return False
        self._bus.broadcast(message)
        return True

    def _receive(self, message: bytes) -> None:
        kind, about, text = message.split(b"\n", 2)
        if kind.decode() != _HINT:
            self.joint_commits.receive(kind.decode(), about.decode(), text)
            return
        version, _, text = text.partition(b"\n")
        chunk = InboxHint(about.decode(), int(version), text)
        if inbox := self._inboxes.get(inbox_of(chunk.name)):
            inbox.note(chunk)
            self.joint_commits.announce(inbox_of(chunk.name))

    def _end_pause(self, inbox: str) -> None:
        self._inbox(inbox).arrived.set()

    def _inbox(self, name: str) -> _Inbox:
        inbox = self._inboxes.get(name)
        if inbox is None:
            if len(self._inboxes) >= MAX_INBOXES:
                self._inboxes.clear()  # A worker that waits for one of them waits to its timeout.
            inbox = self._inboxes.setdefault(name, _Inbox())
        return inbox
