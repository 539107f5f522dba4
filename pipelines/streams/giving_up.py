"""What becomes of a record or a timer that kills its workers: after five of them, a dead letter.

A process that dies, or that takes longer than its lease, raises nothing. But whoever takes the
interval after it finds that it committed nothing. After two such deaths in a row timers and records
are worked on one by one, so the next one that is begun is the one that kills.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipelines.streams.keys import Counts, Effects, Failure, Input, KeyState

MAX_DEATHS = 5
WORKERS_DIED = f"{MAX_DEATHS} workers died, or took too long"


def give_up(
    due: Sequence[str], state: KeyState, inputs: Sequence[Input], watermark: int, now: int
) -> Effects | None:
    """Return what it leads to that the first timer, or else the first record, is given up.

    Args:
        due: Keys that have something to do.
        state: Of the first of them.

    Returns:
        None: nothing is there that could kill a worker.
    """
    timers = [
        (timer.is_wall, timer.at, tag)
        for tag, timer in state.timers.items()
        if timer.is_due(watermark, now)
    ]
    if timers:
        _, _, tag = min(timers)
        left = dict(state.timers)
        failure = Failure(due[0], (tag, left.pop(tag)), WORKERS_DIED)
        keys = {due[0]: state._replace(timers=left)}
        return Effects(keys, failures=[failure], counts=Counts(dead=1))
    if inputs and not due:
        failure = Failure(inputs[0].key, inputs[0], WORKERS_DIED)
        return Effects(failures=[failure], counts=Counts(dead=1), taken=1)
    return None
