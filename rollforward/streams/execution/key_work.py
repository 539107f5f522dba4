"""Working copy of a key during a bundle: its original state, and the hooks' changes so far."""

from __future__ import annotations

from typing import Any

from rollforward.streams.model.computation import Computation
from rollforward.streams.model.key_state import NOTHING, KeyState
from rollforward.streams.model.state import State, check_size, check_timers


class Work:
    """The working copy of a key."""

    __slots__ = (
        "computation",
        "expires",
        "items",
        "original",
        "state",
        "text",
        "timers",
        "version",
    )  # fmt: skip

    def __init__(self, original: KeyState, computation: Computation) -> None:
        self.original, self.computation = original, computation
        self.put(original)

    def put(self, state: KeyState) -> None:
        """Replace the working copy by a state, discarding later changes."""
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
        """Return the current state of the key.

        Raises:
            Exception: the state cannot be written.
        """
        if self.items is not None:
            self.text = self.computation.codec.dump(self.items) if self.items else ""
            self.version = self.computation.version
            check_size(self.text)
        if not self.text and not self.timers:
            return NOTHING
        check_timers(self.timers)
        state = KeyState(self.text, dict(self.timers), self.expires, self.version)
        return self.original if state == self.original else state  # It caches derived values.
