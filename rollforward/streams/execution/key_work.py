"""A key in the course of a batch: as it came, and what hooks have made of it so far."""

from __future__ import annotations

from typing import Any

from rollforward.streams.model.computation import Computation
from rollforward.streams.model.key_state import NOTHING, KeyState
from rollforward.streams.model.state import State, check_size, check_timers


class Work:
    """A key in the course of a batch."""

    __slots__ = ("before", "computation", "expires", "items", "state", "text", "timers", "version")

    def __init__(self, before: KeyState, computation: Computation) -> None:
        self.before, self.computation = before, computation
        self.put(before)

    def put(self, state: KeyState) -> None:
        """Have the key as it was at some time, in the place of what hooks have left."""
        self.text, timers, self.expires, self.version = state
        self.timers = dict(timers)
        self.items: dict[str, Any] | None = None  # Decoded when a hook asks for it.
        self.state: State | None = None

    def decoded(self) -> State:
        if self.state is None:
            self.items = self.computation.load(self.text, self.version) if self.text else {}
            self.state = State(self.items)
        return self.state

    def freeze(self) -> KeyState:
        """Return the key as it is now.

        Raises:
            Exception: its state cannot be written.
        """
        if self.items is not None:
            self.text = self.computation.codec.dump(self.items) if self.items else ""
            self.version = self.computation.version
            check_size(self.text)
        if not self.text and not self.timers:
            return NOTHING
        check_timers(self.timers)
        now = KeyState(self.text, dict(self.timers), self.expires, self.version)
        return self.before if now == self.before else now  # What follows from it is known then.
