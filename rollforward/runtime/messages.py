"""What a pipeline asks of a task queue: a protocol, which the package above fills."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
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


class TaskQueue(Protocol):
    """Where messages go."""

    def create(self, message: Message) -> bool:
        """Create one task; False when its name exists already."""
        ...

    def create_many(self, messages: Sequence[Message]) -> list[bool]:
        """Create many, 100 a call; an answer per message, as of `create`."""
        ...

    def create_each(self, messages: Sequence[Message]) -> list[bool | Exception]:
        """Create many, 100 a call; per message the answer, or why it was not created."""
        ...

    def queues(self) -> list[str]:
        """Return the names of the queues that exist."""
        ...

    def ping(self) -> bool:
        """Return whether the service answers."""
        ...
