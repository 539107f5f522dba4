"""What becomes of a record or a timer that nobody can work on: it is a dead letter.

A hook that raises is undone and tried again (bundle_runner.py). This is about everything else.

A batch that cannot be worked on, because something raises outside of the hooks, or because nobody
can write what it leads to, is gathered again with a quarter of its records, down to one. That one
is a dead letter, with the text that it came with, so nothing of it has to be understood.

A process that dies, or that takes longer than its lease, raises nothing. But whoever takes the
interval after it finds that it committed nothing. After two such deaths in a row timers and records
are worked on one by one, and the interval names the one that is begun. With the fifth death that
one is a dead letter. When another comes to stand before it, deaths count from the second again. A
worker whose memory is used up counts as one that died: others may have used it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rollforward.runtime.texts import storable
from rollforward.streams.model.bundle import Counts, Effects, Failure, KeyedRecord
from rollforward.streams.model.key_state import KeyState
from rollforward.streams.storage.remote_calls import UnworkableError

MAX_CRASHES = 5
MAX_ERROR_CHARS = 500
WORKERS_DIED = f"{MAX_CRASHES} workers died, or took too long"


@contextmanager
def blame_records() -> Iterator[None]:
    """Have the records at work answer for what is raised: no remote call is made in here.

    Raises:
        UnworkableError: something was raised.
    """
    try:
        yield
    except (UnworkableError, MemoryError):
        raise
    except Exception as error:
        raise UnworkableError(f"{type(error).__name__}: {error}") from error


def quarantine(
    due: Sequence[str],
    state: KeyState,
    inputs: Sequence[KeyedRecord],
    watermark: int,
    now_ms: int,
    error: str = WORKERS_DIED,
) -> Effects | None:
    """Return what it leads to that the first timer, or else the first record, is given up.

    Args:
        due: Keys that have something to do.
        state: Of the first of them.

    Returns:
        None: nothing is there that could be at fault.
    """
    tag = first_due(state, watermark, now_ms)
    if tag is not None:
        left = dict(state.timers)
        failure = Failure(due[0], (tag, left.pop(tag)), storable(error, MAX_ERROR_CHARS))
        keys = {due[0]: state._replace(timers=left)}
        return Effects(keys, failures=[failure], counts=Counts(dead=1))
    if inputs and not due:
        failure = Failure(inputs[0].key, inputs[0], storable(error, MAX_ERROR_CHARS))
        return Effects(failures=[failure], counts=Counts(dead=1), consumed=1)
    return None


def first_due(state: KeyState, watermark: int, now_ms: int) -> str | None:
    """Return the tag of the timer of a key that fires first, if one is due."""
    due = [
        (timer.is_processing_time, timer.at_ms, tag)
        for tag, timer in state.timers.items()
        if timer.is_due(watermark, now_ms)
    ]
    return min(due)[2] if due else None
