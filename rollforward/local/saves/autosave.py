"""Saves of Datastore while it runs, and the last one at its end."""

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from rollforward.local.errors import PlatformError
from rollforward.local.saves.saves import Save

# Under writes without pause; else a save is made as soon as there is none for a moment.
SAVE_EVERY_S = 30.0
# An idle Datastore's save is moved to the present: this is what a kill takes back of Cloud Tasks.
CONFIRM_EVERY_S = 10.0
# A save takes seconds when there is much to save: not more than a twentieth of the time.
_SAVE_SHARE = 20.0
_LOOK_EVERY_S = 2.0


class SavedDatastore(Protocol):
    """A Datastore that can be saved."""

    @property
    def saved(self) -> Save | None:
        """The newest save, None if there is none."""
        ...

    def changed_to(self) -> int | None:
        """Return the version that is not saved yet, None if there is nothing to save."""
        ...

    def save(self, as_of: float = 0.0, *, is_last: bool = False, may_export: bool = True) -> bool:
        """Save data that have changed; return whether it did. Else move the last save to now."""
        ...


@dataclass
class Autosave:
    """Saves one Datastore.

    Attributes:
        paused: Suspends the app for as long as an export takes.
        tasks_time: The time on Cloud Tasks' clock, which goes into each save.
        say: Called with a line for the person at the terminal.
    """

    datastore: SavedDatastore
    paused: Callable[[], AbstractContextManager[None]]
    tasks_time: Callable[[], float]
    say: Callable[[str], None]

    async def run(self) -> None:
        """Save Datastore when it has changed and is calm, or has changed for long enough.

        The app pauses meanwhile, for as long as the export takes.
        """
        version: int | None = None
        pause_s, saved_at, is_failing = SAVE_EVERY_S, time.monotonic(), False
        confirmed_at = saved_at
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            began, as_of = time.monotonic(), self.tasks_time()
            try:
                earlier, version = version, await asyncio.to_thread(self.datastore.changed_to)
                if version is None and began - confirmed_at >= CONFIRM_EVERY_S:
                    await asyncio.to_thread(self.datastore.save, as_of, may_export=False)
                    confirmed_at = began
                    is_failing = False
                is_calm = version == earlier and not is_failing
                if version is None or not (is_calm or began - saved_at >= pause_s):
                    continue
                await asyncio.to_thread(self._save)
                is_failing = False
            except PlatformError as error:
                if not is_failing:
                    self.say(f"could not be saved, and is tried again: {error}")
                is_failing = True
            saved_at = time.monotonic()
            pause_s = max(SAVE_EVERY_S, _SAVE_SHARE * (saved_at - began))

    def _save(self) -> None:
        with self.paused():
            self.datastore.save(self.tasks_time())

    async def save_last(self, *, is_abandoned: bool) -> None:
        """Save what Datastore holds; say so if it cannot be saved, or is not to be."""
        if is_abandoned:
            self.say(self._what_is_lost())
            return
        try:
            await asyncio.to_thread(self.datastore.save, self.tasks_time(), is_last=True)
        except PlatformError as error:
            self.say(f"{error} {self._what_is_lost()}")

    def _what_is_lost(self) -> str:
        saved = self.datastore.saved
        if saved is None:
            return "Not saved: all that it took in this run is lost."
        return f"Not saved: what it took since {clock_time(saved.real_time)} is lost."


def clock_time(moment: float) -> str:
    """Return the local time of day of seconds since 1970."""
    return time.strftime("%H:%M:%S", time.localtime(moment))
