"""The way down: what has been started is stopped in the reverse order, also after failures."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

Stop = Callable[[], Awaitable[None]]


class Shutdown:
    """The stops of one run.

    Args:
        say: Called with a service's name and a line for the person at the terminal.

    Attributes:
        hurried: Set to wait no longer for requests in progress.
        is_abandoned: Whether Datastore is not to be saved, either.
    """

    def __init__(self, say: Callable[[str, str], None]) -> None:
        self._say = say
        self._stops: list[tuple[str, Stop]] = []
        self.hurried = asyncio.Event()
        self.is_abandoned = False

    def add(self, name: str, stop: Stop) -> None:
        """Add the stop of a service that has just started."""
        self._stops.append((name, stop))

    def run_until_then(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Run something in the background until its stop."""
        task = asyncio.create_task(work, name=name)

        async def end() -> None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

        self.add(name, end)

    async def run(self) -> None:
        """Stop everything, the last started first."""
        while self._stops:
            name, stop = self._stops.pop()
            try:
                await stop()
            except Exception as error:  # the others must be stopped all the same
                self._say(name, f"did not stop cleanly: {error!r}")
