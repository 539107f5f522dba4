"""The watch over a schedule: one that hangs for ever is ended, and its stacks are told.

Actors share one thread. If one pauses while it holds a lock, and another one takes the lock, no
turn of the world ever ends again. The watch notices that from a thread of its own, and interrupts
the main thread by a signal: there the actor that waits dies, as in a crash.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from rollforward.testing.injection import Crash

if TYPE_CHECKING:
    from tests.simulation.actors import Actor
    from tests.simulation.world import World

# Looks without a turn between them. A process that gets no processor has no looks either.
TICKS, TICK_S = 20, 1.0
SIGNAL = signal.SIGUSR2  # The alarm belongs to the time limit of a test.
SHOWN_FRAMES = 6
_HERE = Path(__file__).parent
_OF_THE_WORLD = {str(_HERE / name) for name in ("actors.py", "world.py", "fault_line.py")}


class StuckError(AssertionError):
    """The world takes no turn any more: an actor waits for what a paused one holds, or loops."""


class _Watch:
    def __init__(self, world: World, ticks: int, tick_s: float) -> None:
        self._world = world
        self._ticks = ticks
        self._tick_s = tick_s
        self._over = threading.Event()
        self._seen = -1
        self._main_id = threading.main_thread().ident

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        before = signal.signal(SIGNAL, self._interrupt)
        thread = threading.Thread(target=self._look, name="watch of a schedule", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()
            signal.signal(SIGNAL, before)

    def _look(self) -> None:
        """Count looks without progress; interrupt again while it does not help."""
        same = 0
        while not self._over.wait(self._tick_s):
            seen = self._world.progress()
            same = same + 1 if seen == self._seen else 0
            self._seen = seen
            if same >= self._ticks and self._main_id is not None:
                same = 0
                signal.pthread_kill(self._main_id, SIGNAL)

    def _interrupt(self, _signal: int, frame: FrameType | None) -> None:
        """End what the main thread does, unless it has gone on meanwhile."""
        world = self._world
        if self._over.is_set() or world.progress() != self._seen:
            return
        error = StuckError(_told(world, frame))
        if world.current is None:
            raise error
        world.stuck = error
        world.current.abandon()
        raise Crash


@contextlib.contextmanager
def watched(world: World, ticks: int = TICKS, tick_s: float = TICK_S) -> Iterator[None]:
    """Raise a StuckError in a world that takes no turn for so many looks.

    A signal reaches the main thread alone: on another thread nothing is watched.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with _Watch(world, ticks, tick_s).open():
        yield


def _told(world: World, frame: FrameType | None) -> str:
    """Return who waits where, and the paused actors: those of the same process first."""
    current = world.current
    lines = [f"no turn any more: {current or 'the model'} waits or loops{_stack(frame)}"]

    def is_of_another(actor: Actor) -> bool:
        return current is not None and actor.process is not current.process

    for actor in sorted(world.actors, key=is_of_another):
        if actor is not current:
            lines.append(f"paused: {actor}{_stack(actor.frame)}")
    return "\n".join(lines)


def _stack(frame: FrameType | None) -> str:
    """Return the last lines that ran, but for those of the world itself."""
    places = [
        f"\n  {summary.filename}:{summary.lineno} in {summary.name}: {summary.line}"
        for summary in traceback.extract_stack(frame)
        if summary.filename not in _OF_THE_WORLD
    ]
    return "".join(places[-SHOWN_FRAMES:]) if frame is not None else ""
