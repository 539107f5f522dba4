"""Who waits for an inbox wakes when something comes: from this process or another of its instance.

What comes from another instance is found by the next look.
"""

from __future__ import annotations

import threading
from collections.abc import Collection

from pipelines.runtime.process_state import ProcessState
from pipelines.runtime.siblings import open_siblings


class Arrivals:
    """The inboxes that somebody in this process has waited for."""

    def __init__(self) -> None:
        self._arrived: dict[str, threading.Event] = {}
        self._siblings = open_siblings(self._note)

    @classmethod
    def of(cls, state: ProcessState) -> Arrivals:
        """Return those of a process."""
        found = state.get_or_create("streams arrivals", cls)
        state.on_shutdown("streams arrivals", found.close)
        return found

    def wait(self, inbox: str, seconds: float) -> None:
        """Wait until something has come to an inbox since it was last looked into, or so long."""
        self._arrived.setdefault(inbox, threading.Event()).wait(seconds)

    def look(self, inbox: str) -> None:
        """Note that an inbox is about to be looked into: what comes from now on is new."""
        if arrived := self._arrived.get(inbox):
            arrived.clear()

    def came(self, inboxes: Collection[str]) -> None:
        """Wake those who wait for some inboxes."""
        for inbox in inboxes:
            self._note(inbox)
        if inboxes and self._siblings is not None:
            self._siblings.tell(inboxes)

    def close(self) -> None:
        """Hear nothing any more."""
        if self._siblings is not None:
            self._siblings.close()

    def _note(self, inbox: str) -> None:
        if arrived := self._arrived.get(inbox):
            arrived.set()
