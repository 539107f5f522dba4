"""The end of the app: it takes no request any more, and ends those in progress."""

import asyncio
from collections.abc import Callable

from rollforward.local.app.server import AppServer
from rollforward.local.cloudtasks.emulator import Emulator

_SAY_EVERY_S = 5.0


async def drain(
    app: AppServer, tasks: Emulator, hurried: asyncio.Event, say: Callable[[str], None]
) -> None:
    """End the app when its requests are done, or their time is up, or in a hurry.

    Args:
        tasks: The emulator whose deliveries are among the requests.
        hurried: Set to wait no longer.
        say: Called with a line for the person at the terminal.
    """
    ending = asyncio.create_task(app.stop())
    hurrying = asyncio.create_task(hurried.wait())
    left_s = float(app.grace_s)
    while not ending.done() and not hurried.is_set():
        await asyncio.wait(
            {ending, hurrying}, timeout=_SAY_EVERY_S, return_when=asyncio.FIRST_COMPLETED
        )
        left_s -= _SAY_EVERY_S
        if not ending.done() and not hurried.is_set():
            say(_what_is_left(tasks.in_progress, left_s))
    if not ending.done():
        cut = tasks.in_progress
        app.kill()
        say(f"ended in a hurry. Deliveries that were cut off ({cut}) come again at the next start.")
    await ending
    hurrying.cancel()


def _what_is_left(in_progress: int, left_s: float) -> str:
    deliveries = f" ({in_progress} deliveries)" if in_progress else ""
    limit = f"{max(0.0, left_s):.0f} s at most"
    return f"waiting for requests under way{deliveries}, {limit} (Ctrl-C hurries)"
