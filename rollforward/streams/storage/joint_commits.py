"""Joint commits: a push and the bundle that processes its records are written by one commit.

A push that commits separately costs two commits until its result can be read: its own, and then its
reader's. If a process of this instance has a worker at the inbox, the push offers its commit to
this worker instead. The worker processes the offered chunk as if it had read it from the inbox, and
its next commit writes the rows of both; the chunk is neither inserted nor deleted.

An offer is a hint, as each message between processes is: it may be lost, or be taken and not be
answered. A push without an answer commits separately. If the worker has committed it too, one of
the two commits fails, since both name the version of the source's row.

A worker whose joint commit fails has processed its bundle in vain. So it takes no offers for some
time, which doubles with each failure: however slow its hooks are, it is not kept from its work.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from operator import itemgetter

from rollforward.streams.storage.remote_calls import ChangedError, Commit, Key, StoredRow
from rollforward.streams.storage.schema import CHUNK, chunk_size, inbox_of, inbox_of_range, is_late
from rollforward.streams.storage.serde import dump, load

# A worker that has looked into its inbox a longer time ago is busy, or has left.
MAX_AGE_S = 0.25
# How long a push waits until a worker has taken its offer, then until it commits, and for its end.
UNTAKEN_S, TAKEN_S, COMMIT_S = 0.05, 0.5, 60.0
# After a joint commit that has failed, the worker takes no offers for so long.
CLOSED_S, MAX_CLOSED_S, MAX_FAILURES = 5.0, 300.0, 10
MAX_OFFERS, MAX_READERS = 10, 1_000
# Larger pushes gain nothing: their commits cost more than the round trip.
MAX_RECORDS, MAX_OFFER_BYTES = 100, 60_000
ANNOUNCED_EVERY_S = 0.1

Versions = Sequence[int]
Send = Callable[[str, str, bytes], bool]
Answer = Callable[[str, Versions], None]


class OfferState(Enum):
    """The progress of an offer."""

    OPEN = "open"
    TAKEN = "taken"  # A worker has it in its bundle.
    COMMITTING = "committing"
    ENDED = "ended"
    WITHDRAWN = "withdrawn"


_BEFORE = {
    OfferState.TAKEN: (OfferState.OPEN, OfferState.TAKEN),  # Again after a failed bundle.
    OfferState.COMMITTING: (OfferState.OPEN, OfferState.TAKEN),
}
_numbers = count(1)


@dataclass(eq=False)
class Offer:
    """A commit that is offered to the worker of an inbox.

    Attributes:
        chunk: One of its inserts, which the worker processes.
        id: The id of a sibling's offer; empty: the offer is of this process.
        answer: Sends the outcome to the sibling.
        token: Stands in the place of the chunk's version. Versions of rows are positive.
    """

    commit: Commit
    chunk: Key
    id: str = ""
    answer: Answer | None = None
    token: int = field(default_factory=lambda: -next(_numbers))
    state: OfferState = OfferState.OPEN
    is_taken: bool = False  # A worker has had it.
    versions: Versions | None = None
    offered_at_s: float = field(default_factory=lambda: time.monotonic())
    ended: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def source(self) -> tuple[Key, int]:
        """The row that no other commit may have changed, and its expected version."""
        key, _, version = self.commit.puts[0]
        return key, version

    def row(self) -> StoredRow:
        """Return the chunk as a scan would, with the token as its version."""
        [body] = [body for key, body in self.commit.inserts if key == self.chunk]
        return StoredRow(body, self.token)

    def advance(self, state: OfferState) -> bool:
        """Move on to a state; return False if the offer is past it."""
        with self._lock:
            if self.state not in _BEFORE[state]:
                return False
            self.state, self.is_taken = state, True
        if self.answer is not None and state is OfferState.TAKEN:
            self.answer("taken", ())
        return True

    def is_over(self, now_s: float) -> bool:
        """Return whether the sibling that has made the offer waits no longer."""
        wait_s = UNTAKEN_S if self.state is OfferState.OPEN else COMMIT_S
        return self.answer is not None and now_s - self.offered_at_s > wait_s

    def withdraw(self, *states: OfferState) -> bool:
        """Withdraw the offer if it is in one of some states; return whether it is withdrawn."""
        with self._lock:
            if self.state in states:
                self.state = OfferState.WITHDRAWN
            return self.state is OfferState.WITHDRAWN

    @property
    def was_untaken(self) -> bool:
        """Return whether the push has withdrawn it before a worker took it."""
        return self.state is OfferState.WITHDRAWN and not self.is_taken

    def end(self, versions: Versions | None) -> None:
        """End the offer.

        Args:
            versions: The versions of the rows of its commit; None: the push commits separately.
        """
        with self._lock:
            if self.state not in (OfferState.WITHDRAWN, OfferState.ENDED):
                self.state, self.versions = OfferState.ENDED, versions
        self.ended.set()
        if self.answer is not None:
            self.answer("refused" if versions is None else "ended", versions or ())

    def wait(self) -> Versions | None:
        """Wait for the end; return the versions, or None if the push commits separately."""
        for wait_s, states in (
            (UNTAKEN_S, [OfferState.OPEN]),
            (TAKEN_S, [OfferState.OPEN, OfferState.TAKEN]),
        ):
            if self.ended.wait(wait_s) or self.withdraw(*states):
                return self.versions
        self.ended.wait(COMMIT_S)
        return self.versions


def merge(commit: Commit, offers: Iterable[Offer]) -> Commit:
    """Return a worker's commit together with the offered commits whose chunks it consumes.

    A chunk that the worker has consumed is not written. If it has consumed a part, the rest is
    inserted.
    """
    rests = [(key, body) for key, body, version in commit.puts if version < 0]
    consumed = {key for key, version in commit.deletes if version is not None and version < 0}
    dropped = consumed | {key for key, _ in rests}
    joint = Commit(
        puts=[put for put in commit.puts if put[2] >= 0],
        inserts=[*rests, *commit.inserts],
        deletes=[delete for delete in commit.deletes if delete[0] not in consumed],
    )
    for offer in offers:
        joint.puts += offer.commit.puts
        joint.inserts += [insert for insert in offer.commit.inserts if insert[0] not in dropped]
    return joint


def versions_in(commit: Commit, versions: Mapping[Key, int]) -> list[int]:
    """Return the versions of a commit's puts, then of its inserts; 0 for one without a version."""
    return [versions.get(key, 0) for key, _ in commit.rows]


def offered(commit: Commit) -> dict[int, str]:
    """Return the names of the offered chunks that a commit consumes, by their tokens."""
    chunks = [(key.name, at) for key, _, at in commit.puts]
    chunks += [(key.name, at) for key, at in commit.deletes if at is not None]
    return {at: name for name, at in chunks if at < 0}


@dataclass
class _Reader:
    """The worker of an inbox, as this process knows it: its own worker, or one of a sibling.

    Attributes:
        seen_s: When the worker of this process has last asked for offers.
        sibling_seen_s: When the worker of a sibling was last heard of.
        failures: Joint commits that have failed, in a row.
        replaced: Versions of sources that joint commits have replaced.
    """

    seen_s: float = -MAX_AGE_S
    sibling_seen_s: float = -MAX_AGE_S
    announced_s: float = -ANNOUNCED_EVERY_S
    closed_until_s: float = 0.0
    failures: int = 0
    replaced: dict[Key, int] = field(default_factory=dict)

    def is_here(self, now_s: float) -> bool:
        """Return whether the worker of this process takes offers."""
        return now_s - self.seen_s < MAX_AGE_S and now_s >= self.closed_until_s

    def has_failed(self, now_s: float) -> None:
        """Take no offers for some time."""
        self.closed_until_s = now_s + min(CLOSED_S * 2**self.failures, MAX_CLOSED_S)
        self.failures = min(self.failures + 1, MAX_FAILURES)


class JointCommits:
    """The offers of one process, to its own workers and to workers of its siblings."""

    def __init__(self, send: Send, wake: Callable[[str], None]) -> None:
        """Begin without any.

        Args:
            send: Sends a message to the siblings: its kind, the id of the inbox or offer that it is
                about, and its text. Returns False if it is too long, or there are no siblings.
            wake: Ends the pause of the worker of an inbox.
        """
        self._send, self._wake = send, wake
        self._lock = threading.Lock()
        self._readers: dict[str, _Reader] = {}
        self._offers: dict[int, Offer] = {}  # To workers of this process, by token.
        self._sent: dict[str, Offer] = {}  # To workers of siblings, by id.

    # The push

    def offer(self, commit: Commit) -> Versions | None:
        """Offer a commit; return its versions, or None if the caller commits separately."""
        chunks = [key for key, _ in commit.inserts if key.kind == CHUNK]
        for key in chunks if _are_small(chunks) else ():
            reader, now_s = self._readers.get(inbox_of(key.name)), time.monotonic()
            if reader is None or is_late(key.name):
                continue
            if reader.is_here(now_s):
                return self._offer_here(reader, Offer(commit, key))
            if now_s - reader.sibling_seen_s < MAX_AGE_S:
                return self._offer_to_siblings(reader, Offer(commit, key))
        return None

    def _offer_here(self, reader: _Reader, offer: Offer) -> Versions | None:
        if not self._add(offer):
            return None
        try:
            versions = offer.wait()
        finally:
            self._remove([offer])
        if offer.was_untaken:
            reader.seen_s = -MAX_AGE_S  # The worker is busy, or has left: until it asks again.
        return versions

    def _offer_to_siblings(self, reader: _Reader, offer: Offer) -> Versions | None:
        id_ = f"{os.getpid()}.{-offer.token}"
        self._sent[id_] = offer
        try:
            if not self._send("offer", id_, _text(offer)):
                return None
            versions = offer.wait()
        finally:
            del self._sent[id_]
        if versions is None:
            self._send("withdrawn", id_, b"")
            reader.sibling_seen_s = -MAX_AGE_S  # Until the worker is heard of again.
        return versions

    def _add(self, offer: Offer) -> bool:
        """Hand an offer to the worker of this process; return False if it would come to nothing."""
        inbox, (source, version) = inbox_of(offer.chunk.name), offer.source
        with self._lock:
            replaced = self._reader(inbox).replaced.get(source, -1)
            is_offered = any(other.source[0] == source for other in self._offers.values())
            if is_offered or version <= replaced or len(self._offers) >= MAX_OFFERS:
                return False
            self._offers[offer.token] = offer
        self._wake(inbox)
        return True

    def _remove(self, offers: Iterable[Offer]) -> None:
        with self._lock:
            for offer in offers:
                self._offers.pop(offer.token, None)

    # The worker

    def take(self, low: str, high: str, limit: int) -> list[tuple[str, StoredRow]]:
        """Return offered chunks of an inbox, in order of their names, each with its token."""
        now_s = time.monotonic()
        with self._lock:
            self._reader(inbox_of_range(low)).seen_s = now_s
            for offer in [each for each in self._offers.values() if each.is_over(now_s)]:
                del self._offers[offer.token]
            offers = [each for each in self._offers.values() if low <= each.chunk.name < high]
        taken = [each for each in offers[: max(0, limit)] if each.advance(OfferState.TAKEN)]
        return sorted(((each.chunk.name, each.row()) for each in taken), key=itemgetter(0))

    def begin(self, commit: Commit) -> list[Offer]:
        """Begin a joint commit; return the offers whose chunks it consumes.

        Raises:
            ChangedError: one of them was withdrawn. The others are ended.
        """
        chunks = offered(commit)
        if not chunks:
            return []
        with self._lock:
            offers = [self._offers[token] for token in chunks if token in self._offers]
        has_all = [each.advance(OfferState.COMMITTING) for each in offers]
        if len(offers) < len(chunks) or not all(has_all):
            self._close(chunks.values())
            self._end(offers, None)
            raise ChangedError("a push has committed separately")
        return offers

    def end(self, offers: Sequence[Offer], versions: Mapping[Key, int] | None) -> None:
        """End the offers of a joint commit.

        Args:
            versions: The versions of all rows that it has written; None: it has failed, or may
                have.
        """
        if versions is None:
            self._close(offer.chunk.name for offer in offers)
        else:
            self._note(offers)
        self._end(offers, versions)

    def _close(self, chunks: Iterable[str]) -> None:
        """Take no offers for some time in the inboxes of some chunks."""
        now_s = time.monotonic()
        with self._lock:
            for inbox in set(map(inbox_of, chunks)):
                self._reader(inbox).has_failed(now_s)

    def _note(self, offers: Iterable[Offer]) -> None:
        """Note which versions of sources a joint commit has replaced."""
        with self._lock:
            for offer in offers:
                reader = self._reader(inbox_of(offer.chunk.name))
                source, version = offer.source
                reader.failures, reader.replaced[source] = 0, version

    def _end(self, offers: Sequence[Offer], versions: Mapping[Key, int] | None) -> None:
        self._remove(offers)
        for offer in offers:
            offer.end(None if versions is None else versions_in(offer.commit, versions))

    # Siblings

    def announce(self, inbox: str) -> None:
        """Tell the siblings that a worker of this process takes offers, if it does."""
        reader, now_s = self._readers.get(inbox), time.monotonic()
        if reader is None or now_s - reader.announced_s < ANNOUNCED_EVERY_S:
            return
        if reader.is_here(now_s):
            reader.announced_s = now_s
            self._send("reader", inbox, b"")

    def receive(self, kind: str, about: str, text: bytes) -> None:
        """Take a message of a sibling."""
        if kind == "reader":
            with self._lock:
                self._reader(about).sibling_seen_s = time.monotonic()
        elif kind == "offer":
            self._receive_offer(about, text)
        elif kind == "withdrawn":
            for offer in [each for each in list(self._offers.values()) if each.id == about]:
                offer.withdraw(OfferState.OPEN, OfferState.TAKEN)
                self._remove([offer])
        elif (sent := self._sent.get(about)) is not None:
            self._receive_reply(kind, sent, text)

    def _receive_offer(self, id_: str, text: bytes) -> None:
        def reply(kind: str, versions: Versions) -> None:
            self._send(kind, id_, json.dumps(versions).encode())

        offer = _offer_of(id_, text, reply)
        reader = self._readers.get(inbox_of(offer.chunk.name))
        if reader is None or time.monotonic() - reader.seen_s >= MAX_AGE_S:
            return  # Another sibling may have the worker.
        if not reader.is_here(time.monotonic()) or not self._add(offer):
            reply("refused", ())

    def _receive_reply(self, kind: str, sent: Offer, text: bytes) -> None:
        with self._lock:
            self._reader(inbox_of(sent.chunk.name)).sibling_seen_s = time.monotonic()
        if kind == "taken":
            sent.advance(OfferState.TAKEN)
        else:
            sent.end(json.loads(text) if kind == "ended" else None)

    def _reader(self, inbox: str) -> _Reader:
        if inbox not in self._readers and len(self._readers) >= MAX_READERS:
            self._readers.clear()
        return self._readers.setdefault(inbox, _Reader())


def _are_small(chunks: Iterable[Key]) -> bool:
    records = size = 0
    for key in chunks:
        chunk_records, chunk_bytes = chunk_size(key.name)
        records, size = records + chunk_records, size + chunk_bytes
    return records <= MAX_RECORDS and size <= MAX_OFFER_BYTES


def _text(offer: Offer) -> bytes:
    """Return an offer as a message."""
    puts = [(*key, dump(key.kind, body).decode(), at) for key, body, at in offer.commit.puts]
    inserts = [(*key, dump(key.kind, body).decode()) for key, body in offer.commit.inserts]
    return json.dumps([offer.chunk.name, puts, inserts]).encode()


def _offer_of(id_: str, text: bytes, answer: Answer) -> Offer:
    """Return the offer of a message."""
    chunk, puts, inserts = json.loads(text)
    commit = Commit(
        puts=[(Key(kind, name), load(kind, body), at) for kind, name, body, at in puts],
        inserts=[(Key(kind, name), load(kind, body)) for kind, name, body in inserts],
    )
    return Offer(commit, Key(CHUNK, chunk), id_, answer)
