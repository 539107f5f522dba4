"""Messages, and the protocol of the task queue that takes them; `tasks` implements it."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


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


class TaskQueue(Protocol):
    """A queue that creates tasks from messages."""

    def create(self, message: Message) -> bool:
        """Create one task; False when its name exists already."""
        ...

    def create_many(self, messages: Sequence[Message]) -> list[bool]:
        """Create many, 100 a call; return for each message what `create` would."""
        ...

    def create_each(self, messages: Sequence[Message]) -> list[bool | Exception]:
        """Create many, 100 a call; return the answer or the error of each message."""
        ...

    def queues(self) -> list[str]:
        """Return the names of the queues that exist."""
        ...

    def ping(self) -> bool:
        """Return whether the service answers."""
        ...
