"""Messages, and the protocols of what takes them: the task queue, and the key of a lane."""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rollforward.runtime.clients import Clients

# Tells a named task from those that have its name later: Cloud Tasks frees a name one day.
BORN_HEADER = "X-Rollforward-Born"


@dataclass(frozen=True)
class Message:
    """A task as it leaves the process."""

    path: str
    queue: str
    body: bytes
    name: str | None = None
    at: datetime.datetime | None = None
    max_attempts: int | None = None
    # Delivered with the task. A mapping has no hash, and the rest of the message is enough for one.
    headers: Mapping[str, str] = field(default_factory=dict, hash=False)
    deadline_s: int | None = None

    def digest(self, *more: str | None) -> str:
        """Return a short digest of all but the time, which differs between two attempts.

        Args:
            more: Further texts that tell two messages apart.
        """
        parts = [self.path, self.queue, self.body.decode(), self.name, *more]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:8]


class TaskQueue(Protocol):
    """A queue that creates tasks from messages."""

    def create(self, message: Message) -> bool:
        """Create one task; False when its name exists already."""
        ...

    def create_many(self, messages: Sequence[Message]) -> list[bool]:
        """Create many, 100 a call; return for each message what `create` would."""
        ...

    def create_all(self, messages: Sequence[Message]) -> list[bool | Exception]:
        """Create many, 100 a call; return the answer or the error of each message."""
        ...

    def queues(self) -> list[str]:
        """Return the names of the queues that exist."""
        ...

    def ping(self) -> bool:
        """Return whether the service answers."""
        ...


class MessageLane(Protocol):
    """A key of a lane, in which messages wait for their turn; `lanes` implements it."""

    def add(self, clients: Clients, messages: Sequence[Message]) -> None:
        """Let messages wait, by one commit of their own."""
        ...

    def add_in_transaction(self, clients: Clients, message: Message) -> None:
        """Let a message wait, by the commit of the transaction that this code runs in."""
        ...

    def check_registered(self, clients: Clients) -> None:
        """Raise UnknownTaskError if the app delivers no tasks of the lane."""
        ...

    @property
    def id(self) -> str:
        """Its id among the keys of all lanes, "<lane>|<key>"."""
        ...

    @property
    def lane(self) -> object:
        """The lane that it is a key of, which an app registers."""
        ...


class DeadTaskLane(Protocol):
    """A key of a lane, as a dead task of it is replayed or deleted."""

    def replay_in_transaction(
        self, clients: Clients, message: Message, *, dead_id: str, lane_task: str
    ) -> None:
        """Let the task of a dead task wait again; if it blocks the key, it runs first."""
        ...

    def unblock_in_transaction(self, clients: Clients, *, dead_id: str) -> None:
        """Unblock the key, if this dead task, which is deleted, blocks it."""
        ...
