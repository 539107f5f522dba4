"""Records of steps: what a flow's row knows of each, by its name."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

Kind = Literal["commit", "outside", "sleep", "wait", "batch"]
State = Literal["waiting", "done", "failed"]

WAITING: State = "waiting"
DONE: State = "done"
FAILED: State = "failed"


@dataclass(frozen=True)
class StepRecord:
    """One step of a flow.

    Attributes:
        attempts: How often it has failed, or its worker died over it, since its flow was last
            retried.
        doubts: How often it is unknown whether it took effect: its worker died over it.
        began, ended: When, in seconds since 1970.
        until: When its pause, its wait or its sleep ends, in seconds since 1970.
        error: Why it failed last.
        value: Its result, as JSON; "": it has none, or it is in rows of its own.
        rows: The owner of these rows; "": none.
        chunks: How many rows they are.
        event: The event that it waits for.
        event_id, event_at: The event that it has taken; "": none came in time.
        batch: The id of its batch.
        is_called: Whether a delivery has begun its call and not noted what came of it.
        is_undo: Whether it undoes another.
        is_reject: Whether it has failed by rejecting its flow.
    """

    kind: str
    state: str = WAITING
    attempts: int = 0
    doubts: int = 0
    began: float = 0.0
    ended: float = 0.0
    until: float = 0.0
    error: str = ""
    value: str = ""
    rows: str = ""
    chunks: int = 0
    event: str = ""
    event_id: str = ""
    event_at: float = 0.0
    batch: str = ""
    is_called: bool = False
    is_undo: bool = False
    is_reject: bool = False

    @property
    def has_ended(self) -> bool:
        return self.state != WAITING

    @property
    def body(self) -> dict[str, Any]:
        """The record as JSON, without defaults."""
        return {
            key: value for key, usual in _DEFAULTS.items() if (value := getattr(self, key)) != usual
        }

    def ends(self, state: State, at_s: float, **fields: Any) -> StepRecord:
        """Return the record of the step as it has ended."""
        return replace(self, state=state, ended=at_s, until=0.0, is_called=False, **fields)

    def called(self) -> StepRecord:
        """Return the record of the step as its call begins."""
        died = int(self.is_called)
        attempts, doubts = self.attempts + died, self.doubts + died
        return replace(self, is_called=True, attempts=attempts, doubts=doubts)

    def reopened(self) -> StepRecord:
        """Return the record of the step as it is tried again, at once."""
        return replace(self, state=WAITING, attempts=0, until=0.0, ended=0.0)


_DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(StepRecord)}


def record_of(body: dict[str, Any]) -> StepRecord:
    """Return the record in a row; what only another version knows of it is left out."""
    return StepRecord(**{key: value for key, value in body.items() if key in _DEFAULTS})
