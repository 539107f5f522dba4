"""Policies: when a batch is complete, and whether it has succeeded."""

from __future__ import annotations

from dataclasses import dataclass

from rollforward.batches.entities import FAILED, RUNNING, SUCCEEDED, BatchState

ALL, BEST_EFFORT, FAIL_FAST, DONE_AT = "all", "best-effort", "fail-fast", "done-at"


@dataclass(frozen=True)
class Policy:
    """Policy of a batch: when it is complete, and when it has succeeded.

    Use `Policy.all()`, `.best_effort()`, `.fail_fast()` or `.done_at(n)`.
    """

    kind: str
    n: int | None = None

    @classmethod
    def all(cls) -> Policy:
        """Every member runs; the batch succeeds if all of them do."""
        return cls(ALL)

    @classmethod
    def best_effort(cls) -> Policy:
        """Every member runs; the batch succeeds even if some fail."""
        return cls(BEST_EFFORT)

    @classmethod
    def fail_fast(cls) -> Policy:
        """The first member that fails ends the batch; the rest is cancelled."""
        return cls(FAIL_FAST)

    @classmethod
    def done_at(cls, n: int) -> Policy:
        """The batch succeeds, sealed or not, when n members are done; the rest is cancelled.

        Raises:
            ValueError: n is less than 1.
        """
        if n < 1:
            raise ValueError(f"n must be at least 1, got {n}")
        return cls(DONE_AT, n)


def is_over(state: BatchState) -> bool:
    """Return whether a batch is complete now."""
    if state.policy == FAIL_FAST and state.failed:
        return True
    if _is_reached(state):
        return True
    return bool(state.sealed) and state.waiting <= 0


def is_waiting_for(state: BatchState | None, generation: int) -> bool:
    """Return whether a batch waits for those members of a generation that have not ended."""
    if state is None or state.state != RUNNING:
        return False
    return generation > int(state.cancelled_through)


def outcome_of(state: BatchState) -> str:
    """Return the outcome of a batch that is over and was not cancelled."""
    if state.policy == BEST_EFFORT or _is_reached(state):
        return SUCCEEDED
    return FAILED if state.policy == DONE_AT or state.failed else SUCCEEDED


def can_run_again(state: BatchState) -> bool:
    """Return whether there are members to be run again."""
    return not _is_reached(state) and state.failed + state.cancelled > 0


def _is_reached(state: BatchState) -> bool:
    return bool(state.policy == DONE_AT and state.done >= (state.done_at or 1))
