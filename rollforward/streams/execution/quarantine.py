"""Quarantine: a record or timer that no worker can process becomes a dead letter (poison pill).

A hook that raises is undone and retried (bundle_runner.py). Two other cases are handled here:

- A bundle fails outside of the hooks, or its effects cannot be written. It is retried with a
  quarter of its records, down to a single one. That record becomes a dead letter, with its stored
  text, so its value need not be decoded.
- A worker crashes, or exceeds its lease, which raises nothing. The next worker of the interval sees
  that there was no commit. After two such crashes in a row it processes timers and records one by
  one, and stores the current one as the suspect. With the fifth crash the suspect becomes a dead
  letter. If another item comes to be first, crashes count from the second one again. Running out of
  memory counts as a crash, because other work of the process may have caused it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rollforward.app_code import SIGNALS
from rollforward.runtime.texts import describe_error, storable
from rollforward.streams.execution.hook_backend import without_hold
from rollforward.streams.model.bundle import Counts, Effects, Failure, KeyedRecord
from rollforward.streams.model.errors import MissingCodeError
from rollforward.streams.model.key_state import KeyState
from rollforward.streams.storage.remote_calls import UnworkableError

MAX_CRASHES = 5
MAX_ERROR_CHARS = 500
WORKERS_DIED = f"{MAX_CRASHES} workers died, or took too long"


@contextmanager
def find_culprit() -> Iterator[None]:
    """Attribute errors of a block to the records it processes; it must make no remote call.

    Raises:
        UnworkableError: the block raised.
        MissingCodeError: only other instances have the code, so the records are not to blame.
    """
    try:
        yield
    except (UnworkableError, MissingCodeError, MemoryError, *SIGNALS):
        raise
    except BaseException as error:
        raise UnworkableError(describe_error(error)) from error


def quarantine(
    due: Sequence[str],
    state: KeyState,
    inputs: Sequence[KeyedRecord],
    watermark: int,
    now_ms: int,
    error: str = WORKERS_DIED,
) -> Effects | None:
    """Return the effects of a dead letter for the first due timer, or else the first record.

    Args:
        due: Due keys.
        state: The state of the first of them.

    Returns:
        None: there is neither a timer nor a record.
    """
    tag = first_due(state, watermark, now_ms)
    if tag is not None:
        timers = dict(state.timers)
        failure = Failure(due[0], (tag, timers.pop(tag)), storable(error, MAX_ERROR_CHARS))
        keys = {due[0]: state._replace(timers=without_hold(timers, tag))}
        return Effects(keys, failures=[failure], counts=Counts(dead=1))
    if inputs and not due:
        failure = Failure(inputs[0].key, inputs[0], storable(error, MAX_ERROR_CHARS))
        return Effects(failures=[failure], counts=Counts(dead=1), consumed=1)
    return None


def first_due(state: KeyState, watermark: int, now_ms: int) -> str | None:
    """Return the tag of the due timer of a key that fires first; None: no timer is due."""
    due = [
        (timer.is_processing_time, timer.at_ms, tag)
        for tag, timer in state.timers.items()
        if timer.is_due(watermark, now_ms) and not timer.is_hold
    ]
    return min(due)[2] if due else None
