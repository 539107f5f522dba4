"""Cloud Tasks and seconds that wait for the test, for the relay after the response."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rollforward.runtime import Clients
from rollforward.runtime.messages import Message, TaskQueue


@dataclass
class Gate:
    """Cloud Tasks behind a gate that the test opens; notes the size of each call."""

    tasks: TaskQueue
    is_open: threading.Event = field(default_factory=threading.Event)
    was_asked: threading.Event = field(default_factory=threading.Event)
    sizes: list[int] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)
    answers: list[Exception] = field(default_factory=list)

    def create_all(self, messages: Sequence[Message]) -> list[bool | Exception]:
        self.sizes.append(len(messages))
        self.was_asked.set()
        assert self.is_open.wait(20)
        if self.errors:
            raise self.errors.pop()
        if self.answers:
            return [self.answers.pop()] * len(messages)
        return self.tasks.create_all(messages)


@dataclass
class ManualTimer:
    """Seconds that pass when the test says so."""

    acts: list[Callable[[], None]] = field(default_factory=list)

    def __call__(self, seconds: float, act: Callable[[], None]) -> None:
        assert seconds == 1
        self.acts.append(act)

    def pass_one(self) -> None:
        acts, self.acts = self.acts, []
        for act in acts:
            act()


def finish(clients: Clients) -> None:
    """Wait until the thread has finished its work."""
    clients.relay._thread.submit(lambda: None).result(20)  # type: ignore[attr-defined]
