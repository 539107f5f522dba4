"""The tree of a batch: the batches above it, and those that its members have become."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rollforward.batches.entities import REMOVED, BatchState, batches_in, state_key
from rollforward.tasks.runs import Run, RunBranch

# Reads of a page: batches above, batches below, and batches whose own ones are asked for.
MAX_ABOVE = 5
MAX_BELOW = 16
MAX_ASKED = 8


def tree_of(row: BatchState, run_of: Callable[[BatchState], Run]) -> Sequence[RunBranch]:
    """Return a batch between those above and below it; empty: there are none.

    A batch above that was removed ends the way up.
    """
    above = _ancestors_of(row)
    below, left_out = _children_by_parent(row.key.id())
    if not above and not row.parent and not below[row.key.id()]:
        return ()
    branches = [RunBranch(depth, run_of(batch)) for depth, batch in enumerate(above)]
    _add(branches, row, len(above), (below, left_out), run_of)
    return branches


def _ancestors_of(row: BatchState) -> list[BatchState]:
    """Return the batches above one, the uppermost first."""
    above: list[BatchState] = []
    seen, parent = {row.key.id()}, row.parent
    while parent and parent not in seen and len(above) < MAX_ABOVE:
        seen.add(parent)
        batch = state_key(parent).get()
        if batch is None or batch.state == REMOVED:
            break
        above.insert(0, batch)
        parent = batch.parent
    return above


def _children_by_parent(root: str) -> tuple[dict[str, list[BatchState]], set[str]]:
    """Return the batches below one by the batch above each, and those not shown in full."""
    below: dict[str, list[BatchState]] = {}
    left_out: set[str] = set()
    pending, seen, count = [root], {root}, 0
    while pending:
        parent = pending.pop(0)
        if len(below) == MAX_ASKED or count == MAX_BELOW:
            left_out.add(parent)
            continue
        rows = batches_in(parent).fetch(MAX_BELOW - count + 1)
        shown = [row for row in rows[: MAX_BELOW - count] if row.key.id() not in seen]
        if len(rows) > MAX_BELOW - count:
            left_out.add(parent)
        below[parent] = shown
        count += len(shown)
        seen |= {row.key.id() for row in shown}
        pending += [row.key.id() for row in shown]
    return below, left_out


def _add(
    branches: list[RunBranch],
    row: BatchState,
    depth: int,
    known: tuple[dict[str, list[BatchState]], set[str]],
    run_of: Callable[[BatchState], Run],
) -> None:
    """Add a batch and those below it, each before its own."""
    below, left_out = known
    branches.append(RunBranch(depth, run_of(row), row.key.id() in left_out))
    for child in below.get(row.key.id(), ()):
        _add(branches, child, depth + 1, known, run_of)
